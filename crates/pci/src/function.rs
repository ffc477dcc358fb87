//! The trait by which a VMM drives a device.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use dma::MemoryMap;

use crate::Interrupt;

/// One base address register's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bar {
    /// Size in bytes, a power of two.
    pub size: u64,
    /// It takes two BAR slots and may lie above 4 GiB.
    pub is_64bit: bool,
    /// Reads have no side effects.
    pub prefetchable: bool,
}

/// A part of a BAR that is plain memory, for the guest to access without an exit; see [`PciFunction::mappable`].
#[derive(Debug, Clone)]
pub struct MappableArea {
    /// Where it starts in the BAR, in bytes; a multiple of the host's page size.
    pub offset: u64,
    /// Its size in bytes; a multiple of the host's page size.
    pub len: u64,
    /// The file that holds it, at the same offset as in the BAR.
    pub fd: Arc<OwnedFd>,
}

/// What a caller of [`PciFunction::prepare_wait`] may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// There is work: poll again.
    Busy,
    /// Sleep until a descriptor of [`PciFunction::wait_fds`] is readable, the VMM has an access to deliver, or the time has
    /// come.
    Until(Option<Instant>),
}

/// A device behind PCI, driven by one thread.
///
/// The owner delivers accesses in the order in which the guest made them and calls [`PciFunction::poll`] in between:
///
/// ```text
/// loop {
///     deliver accesses;
///     if function.poll() == 0 {
///         match function.prepare_wait() { Busy => continue, Until(t) => sleep }
///     }
/// }
/// ```
///
/// An owner that expects more work soon polls some more before it arms; [`crate::Pacer`] says when that pays.
///
/// Every argument that stems from a guest is hostile; no method panics on one.
pub trait PciFunction {
    /// The BARs by slot; the upper slot of a 64-bit BAR is `None`.
    fn bars(&self) -> [Option<Bar>; 6];

    /// Number of MSI-X vectors.
    fn msix_vectors(&self) -> u16;

    /// Reads configuration space (256 or 4096 bytes). Bytes past its end read as zero.
    fn config_read(&mut self, offset: u16, data: &mut [u8]);

    /// Writes configuration space; read-only bits keep their value.
    fn config_write(&mut self, offset: u16, data: &[u8]);

    /// Reads a BAR. `offset + data.len()` is within the BAR (the caller checks); any width and alignment may come.
    fn bar_read(&mut self, bar: usize, offset: u64, data: &mut [u8]);

    /// Writes a BAR; see [`PciFunction::bar_read`].
    fn bar_write(&mut self, bar: usize, offset: u64, data: &[u8]);

    /// The part of a BAR that the owner may map into the guest, shared, readable and writable. The guest's accesses to it then
    /// reach the function without [`PciFunction::bar_read`] and [`PciFunction::bar_write`], and without waking anybody: a
    /// function that offers an area comes back by the clock ([`Wait::Until`]). Accesses that are trapped all the same are
    /// delivered as ever.
    ///
    /// The area stays the same until [`PciFunction::revoke`], over resets as well; it then holds what a reset leaves in it.
    fn mappable(&self, bar: usize) -> Option<MappableArea> {
        let _ = bar;
        None
    }

    /// Who mapped an area is gone, after a [`PciFunction::reset`], and may still hold the memory. From now on the function uses
    /// other memory, and [`PciFunction::mappable`] names that.
    fn revoke(&mut self) {}

    /// Connects or disconnects an MSI-X vector. What became pending while it was unconnected is delivered now. A vector
    /// out of range is ignored.
    fn connect_msix(&mut self, vector: u16, interrupt: Option<Interrupt>);

    /// Connects or disconnects the legacy interrupt line.
    fn connect_intx(&mut self, interrupt: Option<Interrupt>);

    /// The VMM is ready for the next edge of the legacy line: signal again if the level is still active.
    fn intx_unmasked(&mut self);

    /// The guest's memory changed. Afterwards the device uses only `map`, but for requests in flight, which hold the old
    /// snapshot until they are done (see [`dma::AddressSpace::is_idle`]); keep polling until then.
    fn set_memory(&mut self, map: Arc<MemoryMap>);

    /// Starts a function-level reset, as at power on. It is done when [`PciFunction::is_quiet`] says so.
    fn reset(&mut self);

    /// No reset is running and no request is in flight.
    fn is_quiet(&self) -> bool;

    /// Does what there is to do, without blocking and not for long, and says how many things that were: each command that
    /// was fetched is one; 0 is nothing at all.
    fn poll(&mut self) -> usize;

    /// Polling may find work that nobody has told of otherwise: the device is set up, and has queues. While it says `false`,
    /// arming is as good, and no thread may be kept awake for it.
    fn wants_polling(&self) -> bool;

    /// Arms all wake-ups, at once: whether to poll some more before is the caller's matter. Only after [`Wait::Until`] may the caller sleep, and only until its next call.
    fn prepare_wait(&mut self) -> Wait;

    /// Names the descriptors whose readability means work.
    fn wait_fds(&self, add: &mut dyn FnMut(BorrowedFd<'_>));

    /// Changes whenever [`PciFunction::wait_fds`] may name other descriptors than before. Asked before each sleep, where it
    /// spares the owner the comparison; a number that a new descriptor took over from a closed one would escape that anyway.
    fn wait_fds_generation(&self) -> u64 {
        0
    }
}
