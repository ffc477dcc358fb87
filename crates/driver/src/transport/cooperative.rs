//! A device in this process that works only while the driver waits: deterministic, and without a thread.

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dma::{AddressSpace, Backing, Mapping, Protection};
use pci::{Interrupt, Pace, Pacer, PciFunction, PollMode, Wait};

use super::{PciId, Transport, pci_setup};
use crate::{error::TransportError, memory::DmaRange};

/// Turns that the device gets in one go at most.
const TURNS: usize = 16;
/// Turns that a reset or an unmap may take.
const QUIET_TURNS: usize = 1_000_000;

#[derive(Debug)]
struct State<F> {
    function: F,
    space: AddressSpace,
    pacer: Pacer,
}

/// A function driven by the thread that drives the driver.
#[derive(Debug)]
pub struct Cooperative<F> {
    id: PciId,
    register_bytes: u64,
    vectors: u16,
    state: Mutex<State<F>>,
}

impl<F: PciFunction> Cooperative<F> {
    /// A transport to `function`.
    ///
    /// # Errors
    /// [`TransportError::Gone`] when the function's vendor id is FFFFh.
    pub fn new(mut function: F) -> Result<Self, TransportError> {
        let id = pci_setup::identity(&mut Config(&mut function))?;
        let vectors = pci_setup::msix(&mut Config(&mut function))?.map_or(0, |(_, vectors)| vectors);
        let register_bytes = function.bars()[0].map_or(0, |bar| bar.size);
        let state = Mutex::new(State { function, space: AddressSpace::new(), pacer: Pacer::new(PollMode::Auto) });
        Ok(Self { id, register_bytes, vectors, state })
    }

    fn state(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the function, or does something to it.
    pub fn with<R>(&self, f: impl FnOnce(&mut F) -> R) -> R {
        f(&mut self.state().function)
    }
}

impl<F: PciFunction> State<F> {
    /// Works until `done`.
    fn drain(&mut self, what: &'static str, done: impl Fn(&F) -> bool) -> Result<(), TransportError> {
        for _ in 0..QUIET_TURNS {
            if done(&self.function) {
                return Ok(());
            }
            if self.function.poll() == 0 {
                std::thread::yield_now();
            }
        }
        Err(TransportError::TimedOut(what))
    }

    /// Checks an access to BAR 0, as the function demands.
    fn inside(&self, offset: u64, len: u64) -> bool {
        let size = self.function.bars()[0].map_or(0, |bar| bar.size);
        offset.checked_add(len).is_some_and(|end| end <= size)
    }

    fn read(&mut self, offset: u64, data: &mut [u8]) {
        // A bus access to nowhere reads ones.
        data.fill(0xff);
        if self.inside(offset, data.len() as u64) {
            self.function.bar_read(0, offset, data);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if self.inside(offset, data.len() as u64) {
            self.function.bar_write(0, offset, data);
        }
    }
}

impl<F: PciFunction + Send + std::fmt::Debug> Transport for Cooperative<F> {
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
        pci_setup::enable(&mut Config(&mut self.state().function))
    }

    fn read32(&self, offset: u64) -> Result<u32, TransportError> {
        let mut data = [0; 4];
        self.state().read(offset, &mut data);
        Ok(u32::from_le_bytes(data))
    }

    fn read64(&self, offset: u64) -> Result<u64, TransportError> {
        let mut data = [0; 8];
        self.state().read(offset, &mut data);
        Ok(u64::from_le_bytes(data))
    }

    fn write32(&self, offset: u64, value: u32) -> Result<(), TransportError> {
        self.state().write(offset, &value.to_le_bytes());
        Ok(())
    }

    fn write64(&self, offset: u64, value: u64) -> Result<(), TransportError> {
        self.state().write(offset, &value.to_le_bytes());
        Ok(())
    }

    fn ring(&self, offset: u64, value: u32) -> Result<(), TransportError> {
        self.write32(offset, value)
    }

    fn map(&self, range: &DmaRange) -> Result<(), TransportError> {
        let mut state = self.state();
        map(&mut state.space, range.iova(), range.len(), range.mapping().clone())?;
        let snapshot = state.space.snapshot();
        state.function.set_memory(snapshot);
        Ok(())
    }

    fn unmap(&self, range: &DmaRange) -> Result<(), TransportError> {
        let mut state = self.state();
        let old = state.space.snapshot();
        unmap(&mut state.space, range.iova(), range.len())?;
        let snapshot = state.space.snapshot();
        state.function.set_memory(snapshot);
        state.drain("unmapping memory", |_| AddressSpace::is_idle(&old))
    }

    fn connect_vector(&self, vector: u16, eventfd: BorrowedFd<'_>) -> Result<(), TransportError> {
        let interrupt = interrupt(eventfd)?;
        self.state().function.connect_msix(vector, Some(interrupt));
        Ok(())
    }

    fn reset(&self) -> Result<(), TransportError> {
        let mut state = self.state();
        state.function.reset();
        state.drain("resetting the function", F::is_quiet)
    }

    fn is_cooperative(&self) -> bool {
        true
    }

    fn drive(&self) {
        let mut state = self.state();
        for _ in 0..TURNS {
            match state.function.poll() {
                0 if state.function.wants_polling() && state.pacer.next(true) != Pace::Rest => {}
                0 if state.function.prepare_wait() != Wait::Busy => return,
                0 => {}
                done => state.pacer.worked(done),
            }
        }
    }
}

/// Configuration space of a function in this process.
pub(super) struct Config<'a, F>(pub(super) &'a mut F);

impl<F: PciFunction> pci_setup::ConfigAccess for Config<'_, F> {
    fn read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), TransportError> {
        self.0.config_read(offset, data);
        Ok(())
    }

    fn write(&mut self, offset: u16, data: &[u8]) -> Result<(), TransportError> {
        self.0.config_write(offset, data);
        Ok(())
    }
}

fn failed(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> TransportError {
    move |reason| TransportError::Failed { what, reason: reason.to_string() }
}

pub(super) fn map(space: &mut AddressSpace, iova: u64, len: u64, mapping: Arc<Mapping>) -> Result<(), TransportError> {
    space
        .map(iova, len, Backing::Mapped(mapping), Protection::READ_WRITE)
        .map_err(|error| failed("mapping memory")(&error))
}

pub(super) fn unmap(space: &mut AddressSpace, iova: u64, len: u64) -> Result<(), TransportError> {
    space.unmap(iova, len).map(drop).map_err(|error| failed("unmapping memory")(&error))
}

pub(super) fn interrupt(eventfd: BorrowedFd<'_>) -> Result<Interrupt, TransportError> {
    let failed = failed("connecting a vector");
    let fd = eventfd.try_clone_to_owned().map_err(|error| failed(&error))?;
    Interrupt::new(fd).map_err(|error| failed(&error))
}
