//! SET_IRQS: which eventfd carries which interrupt.

use std::os::fd::OwnedFd;

use pci::{Interrupt, PciFunction};
use rustix::io::Errno;

use crate::codec::wire::{IrqInfo, SetIrqs, irq};

/// One MSI-X vector as the client set it up.
#[derive(Debug, Clone, Default)]
struct Vector {
    interrupt: Option<Interrupt>,
    masked: bool,
}

/// The interrupts of one client.
///
/// Masking is done by taking the eventfd away from the function, which then remembers what became pending.
#[derive(Debug, Default)]
pub(crate) struct Irqs {
    msix: Vec<Vector>,
    intx: Option<Interrupt>,
    intx_masked: bool,
    /// An eventfd by which the client unmasks the legacy line without a message.
    unmask: Option<OwnedFd>,
    unmask_changed: bool,
}

/// What SET_IRQS asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Mask,
    Unmask,
    Trigger,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    None,
    Bool,
    Eventfd,
}

impl Irqs {
    pub(crate) fn new(vectors: u16) -> Self {
        Self { msix: vec![Vector::default(); usize::from(vectors)], ..Self::default() }
    }

    /// Answers DEVICE_GET_IRQ_INFO.
    pub(crate) fn info(&self, index: u32) -> Option<IrqInfo> {
        let (flags, count) = match index {
            irq::INTX => (irq::INFO_EVENTFD | irq::INFO_MASKABLE | irq::INFO_AUTOMASKED, 1),
            irq::MSI => (0, 0),
            // Vectors can be bound one by one, so no NORESIZE.
            irq::MSIX => (irq::INFO_EVENTFD, u32::try_from(self.msix.len()).unwrap_or(0)),
            // Never raised. QEMU warns at each start about a device without it.
            irq::ERROR => (irq::INFO_EVENTFD, 1),
            irq::REQUEST => (0, 0),
            _ => return None,
        };
        Some(IrqInfo { argsz: 16, flags, index, count })
    }

    /// Executes DEVICE_SET_IRQS. `bools` has `set.count` entries when the flags announce them.
    pub(crate) fn set<F: PciFunction + ?Sized>(
        &mut self,
        set: &SetIrqs,
        bools: &[u8],
        fds: &mut Vec<OwnedFd>,
        function: &mut F,
    ) -> Result<(), Errno> {
        let count = self.info(set.index).ok_or(Errno::INVAL)?.count;
        let data = match set.flags & (irq::DATA_NONE | irq::DATA_BOOL | irq::DATA_EVENTFD) {
            irq::DATA_NONE => Data::None,
            irq::DATA_BOOL => Data::Bool,
            irq::DATA_EVENTFD => Data::Eventfd,
            _ => return Err(Errno::INVAL),
        };
        let action = match set.flags & !(irq::DATA_NONE | irq::DATA_BOOL | irq::DATA_EVENTFD) {
            irq::ACTION_MASK => Action::Mask,
            irq::ACTION_UNMASK => Action::Unmask,
            irq::ACTION_TRIGGER => Action::Trigger,
            _ => return Err(Errno::INVAL),
        };
        if data != Data::Eventfd && !fds.is_empty() {
            return Err(Errno::INVAL);
        }
        if set.count == 0 {
            // Disables the whole index; also as an empty list of eventfds.
            if set.start != 0 || action != Action::Trigger || data == Data::Bool || !fds.is_empty() {
                return Err(Errno::INVAL);
            }
            self.disable(set.index, function);
            return Ok(());
        }
        let end = set.start.checked_add(set.count).filter(|&end| end <= count).ok_or(Errno::INVAL)?;
        if data == Data::Eventfd && !fds.is_empty() && u32::try_from(fds.len()) != Ok(set.count) {
            return Err(Errno::INVAL);
        }
        if data == Data::Eventfd && action != Action::Trigger {
            return self.set_unmask(set.index, action, fds);
        }
        // All or nothing: a descriptor that is no eventfd changes no vector.
        let interrupts = fds.drain(..).map(Interrupt::new).collect::<Result<Vec<_>, _>>()?;
        let mut interrupts = interrupts.into_iter();
        for (i, number) in (set.start..end).enumerate() {
            if data == Data::Bool && bools.get(i).is_none_or(|&b| b == 0) {
                continue;
            }
            match (action, data) {
                (Action::Trigger, Data::Eventfd) => self.connect(set.index, number, interrupts.next(), function),
                (Action::Trigger, _) => self.trigger(set.index, number),
                (Action::Mask | Action::Unmask, _) => {
                    self.mask(set.index, number, action == Action::Mask, function);
                }
            }
        }
        Ok(())
    }

    /// Takes every eventfd back.
    pub(crate) fn disconnect<F: PciFunction + ?Sized>(&mut self, function: &mut F) {
        self.disable(irq::INTX, function);
        self.disable(irq::MSIX, function);
    }

    /// The eventfd that unmasks the legacy line, if it is another one than at the last call.
    pub(crate) fn changed_unmask(&mut self) -> Option<Option<&OwnedFd>> {
        std::mem::take(&mut self.unmask_changed).then_some(self.unmask.as_ref())
    }

    /// The eventfd that unmasks the legacy line is readable.
    pub(crate) fn unmask_event<F: PciFunction + ?Sized>(&mut self, function: &mut F) {
        let Some(fd) = &self.unmask else { return };
        match rustix::io::read(fd, &mut [0u8; 8]) {
            Ok(8) => self.mask(irq::INTX, 0, false, function),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Not usable: do not look at it again.
            _ => (self.unmask, self.unmask_changed) = (None, true),
        }
    }

    fn disable<F: PciFunction + ?Sized>(&mut self, index: u32, function: &mut F) {
        match index {
            irq::INTX => {
                self.connect(index, 0, None, function);
                if self.unmask.take().is_some() {
                    self.unmask_changed = true;
                }
            }
            irq::MSIX => {
                for number in 0..self.msix.len() {
                    self.connect(index, u32::try_from(number).unwrap_or(u32::MAX), None, function);
                }
            }
            _ => {}
        }
    }

    fn connect<F: PciFunction + ?Sized>(
        &mut self,
        index: u32,
        number: u32,
        interrupt: Option<Interrupt>,
        function: &mut F,
    ) {
        match index {
            irq::INTX => {
                self.intx_masked = false;
                self.intx.clone_from(&interrupt);
                function.connect_intx(interrupt);
            }
            irq::MSIX => {
                if let Some((vector, number)) = self.vector(number) {
                    *vector = Vector { interrupt: interrupt.clone(), masked: false };
                    function.connect_msix(number, interrupt);
                }
            }
            _ => {}
        }
    }

    fn trigger(&mut self, index: u32, number: u32) {
        let interrupt = match index {
            irq::INTX => self.intx.as_ref(),
            irq::MSIX => self.vector(number).and_then(|(vector, _)| vector.interrupt.as_ref()),
            _ => None,
        };
        if let Some(interrupt) = interrupt {
            interrupt.signal();
        }
    }

    fn mask<F: PciFunction + ?Sized>(&mut self, index: u32, number: u32, mask: bool, function: &mut F) {
        match index {
            irq::INTX => {
                if std::mem::replace(&mut self.intx_masked, mask) != mask {
                    function.connect_intx(if mask { None } else { self.intx.clone() });
                }
                if !mask {
                    function.intx_unmasked();
                }
            }
            irq::MSIX => {
                if let Some((vector, number)) = self.vector(number)
                    && std::mem::replace(&mut vector.masked, mask) != mask
                {
                    function.connect_msix(number, if mask { None } else { vector.interrupt.clone() });
                }
            }
            _ => {}
        }
    }

    /// EVENTFD with UNMASK: the legacy line only. Nobody needs to hear of our masking.
    fn set_unmask(&mut self, index: u32, action: Action, fds: &mut Vec<OwnedFd>) -> Result<(), Errno> {
        if index != irq::INTX || action != Action::Unmask {
            return Err(Errno::NOTTY);
        }
        // Checked to be an eventfd, and made non-blocking.
        let fd = match fds.pop() {
            Some(fd) => {
                Interrupt::new(fd.try_clone().map_err(|_| Errno::MFILE)?)?;
                Some(fd)
            }
            None => None,
        };
        (self.unmask, self.unmask_changed) = (fd, true);
        Ok(())
    }

    fn vector(&mut self, number: u32) -> Option<(&mut Vector, u16)> {
        let number = u16::try_from(number).ok()?;
        Some((self.msix.get_mut(usize::from(number))?, number))
    }
}
