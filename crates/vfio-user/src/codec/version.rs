//! The JSON that VERSION messages carry.

use serde_json::{Map, Value};

use super::wire::{MAX_DATA_XFER, MAX_MESSAGE_FDS};

/// The protocol's major version.
pub const MAJOR: u16 = 0;
/// The newest minor version that we know.
pub const MINOR: u16 = 1;

/// Longest JSON that is looked at, in bytes.
const MAX_JSON: usize = 16 << 10;

/// What one side can do. Missing values are the protocol's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// File descriptors that the sender takes with one message.
    pub max_msg_fds: u64,
    /// Largest count of one data transfer in bytes.
    pub max_data_xfer_size: u64,
    /// DMA ranges that can be mapped at one time.
    pub max_dma_maps: u64,
    /// Page sizes for DMA, or'ed together.
    pub pgsizes: u64,
    /// REGION_WRITE_MULTI is understood.
    pub write_multiple: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_msg_fds: 1,
            max_data_xfer_size: MAX_DATA_XFER as u64,
            max_dma_maps: 65535,
            pgsizes: 4096,
            write_multiple: false,
        }
    }
}

/// Why the data of a VERSION message was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// The data, or the capabilities in them, are no JSON object.
    #[error("version data, or the capabilities in them, are no JSON object")]
    Json,
    /// More data than anyone needs.
    #[error("{0} bytes of version data, at most {MAX_JSON} are read")]
    TooLong(usize),
    /// A capability has a value of the wrong kind.
    #[error("capability {0} has a value of the wrong kind")]
    Capability(&'static str),
}

impl Capabilities {
    /// What we offer: everything that this crate implements.
    pub fn ours() -> Self {
        Self {
            max_msg_fds: MAX_MESSAGE_FDS as u64,
            max_dma_maps: dma::AddressSpace::MAX_RANGES as u64,
            write_multiple: true,
            ..Self::default()
        }
    }

    /// Reads version data: no bytes at all, or JSON with or without a NUL behind it. Unknown keys are skipped.
    ///
    /// # Errors
    /// [`VersionError`].
    pub fn parse(data: &[u8]) -> Result<Self, VersionError> {
        let json = data.split(|&byte| byte == 0).next().unwrap_or_default();
        if json.len() > MAX_JSON {
            return Err(VersionError::TooLong(json.len()));
        }
        let mut parsed = Self::default();
        if json.iter().all(u8::is_ascii_whitespace) {
            return Ok(parsed);
        }
        let mut document: Map<String, Value> = serde_json::from_slice(json).map_err(|_| VersionError::Json)?;
        let capabilities = match document.remove("capabilities") {
            None => return Ok(parsed),
            Some(Value::Object(capabilities)) => capabilities,
            Some(_) => return Err(VersionError::Json),
        };
        let number = |name: &'static str, to: &mut u64| match capabilities.get(name) {
            None | Some(Value::Null) => Ok(()),
            Some(value) => value.as_u64().map(|v| *to = v).ok_or(VersionError::Capability(name)),
        };
        number("max_msg_fds", &mut parsed.max_msg_fds)?;
        number("max_data_xfer_size", &mut parsed.max_data_xfer_size)?;
        number("max_dma_maps", &mut parsed.max_dma_maps)?;
        number("pgsizes", &mut parsed.pgsizes)?;
        match capabilities.get("write_multiple") {
            None | Some(Value::Null) => {}
            Some(value) => {
                parsed.write_multiple = value.as_bool().ok_or(VersionError::Capability("write_multiple"))?;
            }
        }
        Ok(parsed)
    }

    /// The JSON for a VERSION message, with its NUL.
    pub fn to_json(&self) -> Vec<u8> {
        let Self { max_msg_fds, max_data_xfer_size, max_dma_maps, pgsizes, write_multiple } = self;
        let mut capabilities = serde_json::json!({
            "max_msg_fds": max_msg_fds,
            "max_data_xfer_size": max_data_xfer_size,
            "max_dma_maps": max_dma_maps,
            "pgsizes": pgsizes,
        });
        if *write_multiple {
            capabilities["write_multiple"] = Value::Bool(true);
        }
        let mut json = serde_json::json!({ "capabilities": capabilities }).to_string().into_bytes();
        json.push(0);
        json
    }
}
