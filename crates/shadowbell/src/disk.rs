//! DISK arguments: what they mean, and how they are opened.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use block::{
    BlockDevice, NullDevice, RamDevice,
    file::{Direct, FileDevice, FileOptions},
};

use crate::{
    cli::{DirectMode, ServeArgs, Size, Switch},
    output::Failure,
};

/// One DISK argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DiskSpec {
    /// Drops writes; reads are zeros, or what was in the buffer.
    Null { size: u64, zeroes: bool },
    /// Memory of this process.
    Ram { size: u64 },
    /// A raw image or a block device.
    Path(PathBuf),
}

impl FromStr for DiskSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("null", rest)) => {
                let (size, option) = rest.split_once(',').map_or((rest, None), |(size, option)| (size, Some(option)));
                let zeroes = match option {
                    None | Some("zeroes=off") => false,
                    Some("zeroes=on") => true,
                    Some(other) => {
                        return Err(format!("`{other}` is no option of a null disk; there is zeroes=on|off"));
                    }
                };
                Ok(Self::Null { size: positive(size)?, zeroes })
            }
            Some(("ram", size)) => Ok(Self::Ram { size: positive(size)? }),
            _ if text.is_empty() => Err("a disk is a path, null:SIZE or ram:SIZE".to_owned()),
            _ => Ok(Self::Path(text.into())),
        }
    }
}

fn positive(text: &str) -> Result<u64, String> {
    match text.parse::<Size>()? {
        Size(0) => Err("a disk of 0 bytes is no disk".to_owned()),
        Size(bytes) => Ok(bytes),
    }
}

impl fmt::Display for DiskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null { size, zeroes } => write!(f, "null:{size}{}", if *zeroes { ",zeroes=on" } else { "" }),
            Self::Ram { size } => write!(f, "ram:{size}"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

impl DiskSpec {
    /// Opens the disk as the arguments say.
    pub(crate) fn open(&self, args: &ServeArgs) -> Result<Arc<dyn BlockDevice>, Failure> {
        let block_size = args.block_size.unwrap_or(512);
        let whole = |size: u64| {
            if size.is_multiple_of(block_size.into()) {
                return Ok(size);
            }
            Err(Failure::usage(format!("disk {self}: its size is not a multiple of the block size {block_size}")))
        };
        Ok(match self {
            Self::Null { size, zeroes } => {
                let device = NullDevice::new(whole(*size)?, block_size, *zeroes);
                Arc::new(device.map_err(|error| Failure::runtime(format!("disk {self}: {error}")))?)
            }
            Self::Ram { size } => {
                let device = RamDevice::new(whole(*size)?, block_size);
                Arc::new(device.map_err(|error| Failure::runtime(format!("disk {self}: {error}")))?)
            }
            Self::Path(path) => {
                let options = FileOptions {
                    read_only: args.read_only,
                    write_cache: args.write_cache == Switch::On,
                    direct: match args.direct {
                        DirectMode::Auto => Direct::Auto,
                        DirectMode::On => Direct::On,
                        DirectMode::Off => Direct::Off,
                    },
                    block_size: args.block_size,
                    // One that exists keeps its size.
                    create: args.create.map(|Size(bytes)| bytes).filter(|_| !path.exists()),
                    ..FileOptions::default()
                };
                Arc::new(FileDevice::open(path, options).map_err(|error| Failure::runtime(format!("disk {error}")))?)
            }
        })
    }

    /// Text that stays the same for the same disk, whatever directory the server is started from.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Path(path) => path.canonicalize().unwrap_or_else(|_| path.clone()).display().to_string(),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_null_ram_or_paths() {
        let disk = |text: &str| text.parse::<DiskSpec>();
        assert_eq!(disk("null:64G"), Ok(DiskSpec::Null { size: 64 << 30, zeroes: false }));
        assert_eq!(disk("null:1M,zeroes=on"), Ok(DiskSpec::Null { size: 1 << 20, zeroes: true }));
        assert_eq!(disk("ram:512"), Ok(DiskSpec::Ram { size: 512 }));
        assert_eq!(disk("./null:64G"), Ok(DiskSpec::Path("./null:64G".into())));
        assert_eq!(disk("/srv/a:b.img"), Ok(DiskSpec::Path("/srv/a:b.img".into())));
        for bad in ["", "null:", "null:0", "ram:x", "null:1M,zeros=on", "null:1M,"] {
            assert!(disk(bad).is_err(), "{bad}");
        }
    }
}
