//! From registers to a controller that is ready, and back (NVMe Base 2.1 §3.5.1, §3.7.2, §3.6).

use std::time::{Duration, Instant};

use nvme::registers::{Aqa, Cap, Cc, Csts, ShutdownNotification, ShutdownStatus, cap_crms, cap_css, offset};

use crate::{error::Error, shared::Shared, transport::Transport};

/// Waits between looks at a register, growing from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LAST_PAUSE: Duration = Duration::from_millis(5);

/// What CAP says, as far as it is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) cap: Cap,
    /// Memory page to use, bytes.
    pub(crate) page: usize,
    /// Most entries of a queue.
    pub(crate) entries: u32,
    /// Greatest queue id whose doorbells are in BAR 0.
    pub(crate) last_qid: u16,
    /// How long CSTS.RDY may take.
    pub(crate) ready_time: Duration,
}

impl Limits {
    pub(crate) fn read(transport: &dyn Transport) -> Result<Self, Error> {
        let cap = match transport.read64(offset::CAP)? {
            u64::MAX => return Err(Error::DeviceGone),
            cap => Cap(cap),
        };
        if cap.mqes_z() == 0 {
            return Err(Error::Implausible("CAP.MQES is 0"));
        }
        if cap.css() & (cap_css::NVM | cap_css::IO_COMMAND_SETS) == 0 {
            return Err(Error::Unsupported("has no NVM command set"));
        }
        if cap.mpsmin() > 4 {
            return Err(Error::Unsupported("wants memory pages of more than 64 KiB"));
        }
        let doorbells = transport.register_bytes().saturating_sub(offset::DOORBELLS) / (4 << cap.dstrd());
        // SQ and CQ have one each.
        let pairs = doorbells / 2;
        let last_qid = pairs.checked_sub(1).ok_or(Error::Implausible("BAR 0 has no room for doorbells"))?;
        let mut units = u32::from(cap.to_500ms());
        if cap.crms() & cap_crms::WITH_MEDIA != 0 {
            // CRTO.CRWMT says more than CAP.TO can (NVMe Base 2.1 §3.1.4.24).
            units = units.max(transport.read32(offset::CRTO)? & 0xffff);
        }
        // Bounded, whatever the controller claims: CAP.TO goes up to 127.5 s.
        let ready_time = Duration::from_millis(500) * units.clamp(1, 255);
        Ok(Self {
            cap,
            page: 4096 << cap.mpsmin(),
            entries: u32::from(cap.mqes_z()) + 1,
            last_qid: u16::try_from(last_qid).unwrap_or(u16::MAX - 1),
            ready_time,
        })
    }
}

impl Shared {
    /// Waits until `done` says so of CSTS.
    fn wait_status(&self, limit: Duration, done: impl Fn(Csts) -> Result<bool, Error>) -> Result<bool, Error> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            // Read after the clock, so that the last look is not too early.
            let over = start.elapsed() >= limit;
            if done(self.status()?)? {
                return Ok(true);
            }
            if over {
                return Ok(false);
            }
            if self.transport.is_cooperative() {
                self.transport.drive();
                std::thread::yield_now();
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    }

    /// Clears CC.EN and waits until the controller is disabled: afterwards it uses no memory.
    pub(crate) fn disable(&self, limit: Duration) -> Result<(), Error> {
        let cc = match self.transport.read32(offset::CC)? {
            u32::MAX => return Err(Error::DeviceGone),
            cc => Cc(cc),
        };
        self.transport.write32(offset::CC, cc.with_en(false).with_shn(ShutdownNotification::NONE).0)?;
        if self.wait_status(limit, |csts| Ok(!csts.rdy()))? {
            Ok(())
        } else {
            Err(Error::NotReady { wanted: false, waited: limit })
        }
    }

    /// Names the admin queues, sets CC.EN and waits until the controller is ready.
    pub(crate) fn enable(&self, limits: &Limits, entries: u32, asq: u64, acq: u64) -> Result<(), Error> {
        let size_z = u16::try_from(entries - 1).unwrap_or(u16::MAX);
        self.transport.write32(offset::AQA, Aqa::new(size_z, size_z).0)?;
        self.transport.write64(offset::ASQ, asq)?;
        self.transport.write64(offset::ACQ, acq)?;
        let css = if limits.cap.css() & cap_css::NVM != 0 { 0 } else { 6 };
        let cc = Cc(0).with_css(css).with_mps(limits.cap.mpsmin()).with_iosqes(6).with_iocqes(4).with_en(true);
        self.transport.write32(offset::CC, cc.0)?;
        let ready = self
            .wait_status(limits.ready_time, |csts| if csts.cfs() { Err(Error::FatalStatus) } else { Ok(csts.rdy()) })?;
        if ready { Ok(()) } else { Err(Error::NotReady { wanted: true, waited: limits.ready_time }) }
    }

    /// Normal shutdown.
    pub(crate) fn shut_down(&self, limit: Duration) -> Result<(), Error> {
        let cc = match self.transport.read32(offset::CC)? {
            u32::MAX => return Err(Error::DeviceGone),
            cc => Cc(cc),
        };
        self.transport.write32(offset::CC, cc.with_shn(ShutdownNotification::NORMAL).0)?;
        let done = self.wait_status(limit, |csts| {
            if csts.cfs() { Err(Error::FatalStatus) } else { Ok(csts.shst() == ShutdownStatus::COMPLETE) }
        })?;
        if done { Ok(()) } else { Err(Error::NotShutDown(limit)) }
    }
}
