//! A namespace: one block device with NVMe's names for its parts.

use std::{collections::VecDeque, fmt, io, sync::Arc};

use block::{BlockDevice, BlockQueue, Capabilities, Request, Submitted};

/// Requests that one namespace may have with its backend at a time.
const BACKEND_DEPTH: usize = 1024;

pub(crate) struct Namespace {
    pub(crate) capabilities: Capabilities,
    pub(crate) queue: Box<dyn BlockQueue>,
    /// The queue has requests, or has had some since the last poll that found none.
    pub(crate) at_work: bool,
    /// Requests that the backend had no room for; nothing new is fetched until they are on their way.
    pub(crate) backlog: VecDeque<Request>,
    /// log2 of the block size in bytes.
    pub(crate) lba_shift: u8,
    /// Size in blocks.
    pub(crate) blocks: u64,
    pub(crate) nguid: [u8; 16],
    pub(crate) uuid: [u8; 16],
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace")
            .field("capabilities", &self.capabilities)
            .field("backlog", &self.backlog.len())
            .finish_non_exhaustive()
    }
}

impl Namespace {
    /// Gives a request to the backend, or lets it wait here where others do or there is no room.
    #[inline]
    pub(crate) fn hand_over(&mut self, request: &mut Request) -> Submitted {
        let submitted = if self.backlog.is_empty() { self.queue.submit(request) } else { Submitted::Full };
        match submitted {
            Submitted::Done(_) => {}
            Submitted::Queued => self.at_work = true,
            Submitted::Full => self.backlog.push_back(request.take()),
        }
        submitted
    }

    /// Opens the device. Its identifiers follow from the controller's serial number and the NSID.
    pub(crate) fn open(device: &Arc<dyn BlockDevice>, serial: &str, nsid: u32) -> io::Result<Self> {
        let capabilities = device.capabilities();
        let lba_shift = match capabilities.block_size {
            512 => 9,
            4096 => 12,
            other => {
                return Err(io::Error::other(format!(
                    "{} has blocks of {other} bytes, not 512 or 4096",
                    device.name()
                )));
            }
        };
        Ok(Self {
            capabilities,
            queue: device.open_queue(BACKEND_DEPTH)?,
            at_work: true,
            backlog: VecDeque::new(),
            lba_shift,
            blocks: capabilities.size >> lba_shift,
            nguid: identifier("nguid", serial, nsid),
            uuid: uuid(identifier("uuid", serial, nsid)),
        })
    }
}

/// FNV-1a over 128 bits: the same disk gets the same identifier at each start, different disks different ones.
fn identifier(kind: &str, serial: &str, nsid: u32) -> [u8; 16] {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in kind.bytes().chain([0]).chain(serial.bytes()).chain([0]).chain(nsid.to_le_bytes()) {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    hash.to_be_bytes()
}

/// Version 8 (vendor specific content), variant 1 of RFC 9562.
fn uuid(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// The subsystem's own UUID, in text form.
pub(crate) fn subsystem_uuid(serial: &str) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(uuid(identifier("subsystem", serial, 0))));
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default().to_owned();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}
