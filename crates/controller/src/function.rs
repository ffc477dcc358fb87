//! The controller behind PCI: what a VMM embeds or serves.

use std::{os::fd::BorrowedFd, sync::Arc};

use dma::MemoryMap;
use pci::{
    Bar, ConfigEvents, ConfigSpace, ConfigSpaceBuilder, Interrupt, MappableArea, MsixLayout, MsixTable, PciFunction,
    Wait,
};

use crate::{
    config::Config,
    controller::{Controller, CreateError},
    stats::Report,
};

/// BAR of the registers and doorbells.
const REGISTER_BAR: usize = 0;
/// BAR of the MSI-X table and its pending bits.
const MSIX_BAR: usize = 4;
/// Where the pending bits start in it.
const PBA_OFFSET: u64 = 0x4000;

/// Both BARs are 64-bit. Windows' driver wants 16 KiB of registers; the doorbells of 511 queue pairs end below that.
const REGISTERS: Bar = Bar { size: 0x4000, is_64bit: true, prefetchable: false };
/// 512 entries of 16 bytes, and a bit for each.
const MSIX: Bar = Bar { size: 0x8000, is_64bit: true, prefetchable: false };

/// The Status register in configuration space.
const STATUS: u16 = 6;
const STATUS_END: u16 = 8;

/// Mass storage, non-volatile memory, NVMe I/O controller.
const CLASS: u32 = 0x01_08_02;

/// An NVMe controller as a PCI function.
#[derive(Debug)]
pub struct NvmeFunction {
    controller: Controller,
    space: ConfigSpace,
    table: MsixTable,
}

impl NvmeFunction {
    /// A controller in the state of power on, with its disks' queues open.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn new(config: Config) -> Result<Self, CreateError> {
        let controller = Controller::new(config)?;
        let vectors = controller.interrupts.vectors();
        let pci_id = controller.config.pci_id;
        let space = ConfigSpaceBuilder {
            vendor: pci_id.vendor,
            device: pci_id.device,
            subsystem_vendor: pci_id.vendor,
            subsystem: pci_id.device,
            revision: 0,
            class: CLASS,
            bars: BARS,
            msix: Some(MsixLayout { vectors, table_bar: 4, table_offset: 0, pba_bar: 4, pba_offset: 0x4000 }),
        }
        .build()
        .map_err(CreateError::Pci)?;
        Ok(Self { controller, space, table: MsixTable::new(vectors) })
    }

    /// The counters.
    pub fn report(&self) -> Report {
        self.controller.report()
    }

    /// Starts to bring every disk's cache to stable storage; done when [`PciFunction::is_quiet`] says so.
    pub fn flush(&mut self) {
        self.controller.engine.flush_all();
    }

    fn apply(&mut self, events: ConfigEvents) {
        if events.flr {
            self.reset();
            return;
        }
        self.controller.msix_enabled = self.space.msix_enabled();
        self.controller.intx_disabled = self.space.intx_disabled();
        self.controller.engine.set_bus_master(self.space.bus_master());
        if events.msix || events.command {
            // The line was silent whatever its level.
            self.controller.raise_line();
        }
    }
}

const BARS: [Option<Bar>; 6] = [Some(REGISTERS), None, None, None, Some(MSIX), None];

impl PciFunction for NvmeFunction {
    fn bars(&self) -> [Option<Bar>; 6] {
        BARS
    }

    fn msix_vectors(&self) -> u16 {
        self.controller.interrupts.vectors()
    }

    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        if offset < STATUS_END && usize::from(STATUS.saturating_sub(offset)) < data.len() {
            let active = self.controller.line().is_some();
            self.space.set_interrupt_status(active);
        }
        self.space.read(offset, data);
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        let events = self.space.write(offset, data);
        self.apply(events);
    }

    fn bar_read(&mut self, bar: usize, offset: u64, data: &mut [u8]) {
        match bar {
            REGISTER_BAR => self.controller.registers.read(offset, data),
            MSIX_BAR if offset < PBA_OFFSET => self.table.read(offset, data),
            MSIX_BAR => {
                let interrupts = &self.controller.interrupts;
                self.table.read_pba(offset - PBA_OFFSET, data, |vector| interrupts.is_pending(vector));
            }
            _ => data.fill(0),
        }
    }

    fn bar_write(&mut self, bar: usize, offset: u64, data: &[u8]) {
        match bar {
            REGISTER_BAR => self.controller.write(offset, data),
            MSIX_BAR if offset < PBA_OFFSET => self.table.write(offset, data),
            _ => {}
        }
    }

    fn mappable(&self, bar: usize) -> Option<MappableArea> {
        let page = self.controller.engine.doorbell_page.as_ref().filter(|_| bar == REGISTER_BAR)?;
        Some(page.area())
    }

    fn revoke(&mut self) {
        self.controller.set_up_doorbells();
    }

    fn connect_msix(&mut self, vector: u16, interrupt: Option<Interrupt>) {
        self.controller.interrupts.connect_msix(vector, interrupt);
    }

    fn connect_intx(&mut self, interrupt: Option<Interrupt>) {
        self.controller.interrupts.connect_intx(interrupt);
        self.controller.raise_line();
    }

    fn intx_unmasked(&mut self) {
        self.controller.raise_line();
    }

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        self.controller.set_memory(map);
    }

    fn reset(&mut self) {
        self.space.reset();
        self.table.reset();
        self.controller.msix_enabled = false;
        self.controller.intx_disabled = false;
        self.controller.engine.set_bus_master(false);
        self.controller.reset_function();
    }

    fn is_quiet(&self) -> bool {
        self.controller.is_quiet()
    }

    fn poll(&mut self) -> usize {
        self.controller.poll()
    }

    fn wants_polling(&self) -> bool {
        self.controller.is_running()
    }

    fn prepare_wait(&mut self) -> Wait {
        self.controller.prepare_wait()
    }

    fn wait_fds(&self, add: &mut dyn FnMut(BorrowedFd<'_>)) {
        for namespace in &self.controller.engine.namespaces {
            if let Some(fd) = namespace.queue.wait_fd() {
                add(fd);
            }
        }
    }
}
