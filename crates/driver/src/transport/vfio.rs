//! A device behind a vfio-user server.

use std::{
    os::fd::BorrowedFd,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use dma::Protection;
use vfio_user::{
    Client, ClientError, ClientOptions,
    codec::wire::{DEVICE_FLAG_PCI, irq, region},
};

use super::{PciId, Transport, mapped::MappedDoorbells, pci_setup};
use crate::{error::TransportError, memory::DmaRange};

/// Region of the registers.
const REGISTERS: u32 = 0;

/// A connection to a vfio-user server. Queue pairs that ring by register share it under a lock.
#[derive(Debug)]
pub struct VfioUser {
    id: PciId,
    register_bytes: u64,
    vectors: u16,
    /// Where the device offers them, ringing takes no lock, no message and no system call.
    doorbells: Option<MappedDoorbells>,
    client: Mutex<Client>,
}

impl VfioUser {
    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// [`TransportError`], also for a device that is not on PCI.
    pub fn connect(path: impl AsRef<Path>, options: ClientOptions) -> Result<Self, TransportError> {
        Self::over(Client::connect(path, options).map_err(failed("connecting"))?)
    }

    /// Takes a connection that was negotiated already.
    ///
    /// # Errors
    /// [`TransportError`], also for a device that is not on PCI.
    pub fn over(mut client: Client) -> Result<Self, TransportError> {
        let info = client.device_info().map_err(failed("asking about the device"))?;
        if info.flags & DEVICE_FLAG_PCI == 0 {
            let reason = "the server's device is not on PCI".to_owned();
            return Err(TransportError::Failed { what: "asking about the device", reason });
        }
        let registers = client.mappable_region(REGISTERS).map_err(failed("asking about BAR 0"))?;
        let doorbells = registers.fd.as_ref().and_then(|fd| {
            registers.areas.iter().find_map(|area| {
                let start = registers.info.offset.checked_add(area.offset)?;
                MappedDoorbells::new(area.offset, area.size, fd, start)
            })
        });
        let vectors = match client.irq_info(irq::MSIX) {
            Ok(info) => info.count,
            Err(ClientError::Refused { .. }) => 0,
            Err(error) => return Err(failed("asking about MSI-X")(error)),
        };
        let id = pci_setup::identity(&mut Config(&mut client))?;
        // The table of MSI-X holds 2048 vectors at most.
        let vectors = u16::try_from(vectors.min(2048)).unwrap_or(0);
        Ok(Self { id, register_bytes: registers.info.size, vectors, doorbells, client: Mutex::new(client) })
    }

    fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], TransportError> {
        let mut data = [0; N];
        self.client().region_read(REGISTERS, offset, &mut data).map_err(failed("reading a register"))?;
        Ok(data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), TransportError> {
        self.client().region_write(REGISTERS, offset, data).map_err(failed("writing a register"))
    }
}

fn failed(what: &'static str) -> impl Fn(ClientError) -> TransportError {
    move |error| match error {
        ClientError::Closed => TransportError::Gone,
        ClientError::TimedOut(_) => TransportError::TimedOut(what),
        error => TransportError::Failed { what, reason: error.to_string() },
    }
}

struct Config<'a>(&'a mut Client);

impl pci_setup::ConfigAccess for Config<'_> {
    fn read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), TransportError> {
        self.0.region_read(region::CONFIG, offset.into(), data).map_err(failed("reading configuration space"))
    }

    fn write(&mut self, offset: u16, data: &[u8]) -> Result<(), TransportError> {
        self.0.region_write(region::CONFIG, offset.into(), data).map_err(failed("writing configuration space"))
    }
}

impl Transport for VfioUser {
    fn pci_id(&self) -> PciId {
        self.id
    }

    fn register_bytes(&self) -> u64 {
        self.register_bytes
    }

    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn enable(&self) -> Result<(), TransportError> {
        pci_setup::enable(&mut Config(&mut self.client()))
    }

    fn read32(&self, offset: u64) -> Result<u32, TransportError> {
        self.read(offset).map(u32::from_le_bytes)
    }

    fn read64(&self, offset: u64) -> Result<u64, TransportError> {
        self.read(offset).map(u64::from_le_bytes)
    }

    fn write32(&self, offset: u64, value: u32) -> Result<(), TransportError> {
        self.write(offset, &value.to_le_bytes())
    }

    fn write64(&self, offset: u64, value: u64) -> Result<(), TransportError> {
        self.write(offset, &value.to_le_bytes())
    }

    #[inline]
    fn ring(&self, offset: u64, value: u32) -> Result<(), TransportError> {
        if self.doorbells.as_ref().is_some_and(|doorbells| doorbells.ring(offset, value)) {
            return Ok(());
        }
        self.client().region_write_posted(REGISTERS, offset, &value.to_le_bytes()).map_err(failed("ringing a doorbell"))
    }

    fn has_mapped_doorbells(&self) -> bool {
        self.doorbells.is_some()
    }

    fn map(&self, range: &DmaRange) -> Result<(), TransportError> {
        self.client()
            .dma_map(range.iova(), range.len(), Protection::READ_WRITE, Some((range.fd(), 0)))
            .map_err(failed("mapping memory"))
    }

    fn unmap(&self, range: &DmaRange) -> Result<(), TransportError> {
        self.client().dma_unmap(range.iova(), range.len()).map(drop).map_err(failed("unmapping memory"))
    }

    fn connect_vector(&self, vector: u16, eventfd: BorrowedFd<'_>) -> Result<(), TransportError> {
        self.client().connect_irqs(irq::MSIX, vector.into(), &[eventfd]).map_err(failed("connecting a vector"))
    }

    fn reset(&self) -> Result<(), TransportError> {
        self.client().reset().map_err(failed("resetting the device"))
    }
}
