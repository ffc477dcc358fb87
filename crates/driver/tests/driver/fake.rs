//! A small controller that lies when it is told to.

use std::{os::fd::BorrowedFd, sync::Arc};

use dma::MemoryMap;
use pci::{Bar, Interrupt, Interrupts, PciFunction, Wait};
use shadowbell_driver::nvme::{
    AdminOpcode, CompletionQueueEntry, Status, SubmissionQueueEntry,
    admin::{CreateCq, CreateSq, DeleteQueue, DoorbellBufferConfig, IdentifyCmd},
    command::{CQE_BYTES, SQE_BYTES},
    features::NumberOfQueues,
    identify::{Cns, IdentifyController, IdentifyNamespace, LbaFormat, entry_sizes},
    registers::{Aqa, CapFields, Cc, Csts, Doorbell, ShutdownStatus, cap_css, doorbell_at, offset},
    shadow::{cq_slot, sq_slot},
    zerocopy::{FromBytes, FromZeros, IntoBytes},
};

/// What the device does with an I/O command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Io {
    Complete,
    /// Nothing, ever.
    Ignore,
    /// The same completion two times.
    Twice,
    /// The right completion, then one of a command that was complete before.
    Stale,
    OtherCid(u16),
    OtherQueue(u16),
    Head(u16),
    /// A completion whose SQHD says that the command was not fetched.
    BeforeFetch,
    /// An entry with the phase of the round before.
    WrongPhase,
    /// Noise all over the completion queue.
    Garbage,
}

type Identify = Box<dyn FnMut(Cns, u32, &mut [u8]) + Send>;
type Admin = Box<dyn FnMut(&SubmissionQueueEntry) -> Option<Reply> + Send>;

/// An answer to an admin command that takes the place of the right one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    Status(Status, u32),
    Never,
}

struct Sq {
    base: u64,
    entries: u16,

    head: u16,
    register: u16,
}

struct Cq {
    base: u64,
    entries: u16,
    tail: u16,
    phase: bool,
    vector: Option<u16>,
}

/// A controller with one namespace of 4 KiB blocks and no data behind it.
pub(crate) struct Fake {
    pub(crate) vendor: u16,
    pub(crate) cap: CapFields,
    pub(crate) oacs: u16,
    /// Registers read as ones.
    pub(crate) gone: bool,
    pub(crate) never_ready: bool,
    pub(crate) never_disabled: bool,
    pub(crate) fatal: bool,
    /// Function-level resets that came, and whether one mends `never_disabled`.
    pub(crate) resets: u32,
    pub(crate) reset_mends: bool,
    pub(crate) doorbell_status: Status,
    pub(crate) io: Io,
    /// Changes what Identify says.
    pub(crate) identify: Option<Identify>,
    pub(crate) admin: Option<Admin>,
    /// Opcodes of all admin commands but Identify, since the controller was enabled; 1000h stands for an I/O command.
    pub(crate) log: Vec<u16>,
    /// Slots of I/O queues that were not zero when their queue was created.
    pub(crate) dirty_slots: u32,
    pub(crate) register_rings: u32,
    config: [u8; 256],
    cc: Cc,
    csts: Csts,
    aqa: Aqa,
    asq: u64,
    acq: u64,
    memory: Arc<MemoryMap>,
    interrupts: Interrupts,
    sqs: Vec<Option<Sq>>,
    cqs: Vec<Option<Cq>>,
    shadow: Option<DoorbellBufferConfig>,
    last: Option<CompletionQueueEntry>,
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fake").finish_non_exhaustive()
    }
}

const QUEUES: usize = 8;

impl Fake {
    pub(crate) fn new() -> Self {
        let mut config = [0; 256];
        config[6] = 0x10;
        config[0x34] = 0x40;
        // MSI-X with as many vectors as queues.
        config[0x40..0x44].copy_from_slice(&[0x11, 0, 7, 0]);
        Self {
            vendor: 0x1234,
            cap: CapFields { mqes_z: 63, to_500ms: 1, css: cap_css::NVM, ..CapFields::default() },
            oacs: 0,
            gone: false,
            never_ready: false,
            never_disabled: false,
            fatal: false,
            resets: 0,
            reset_mends: false,
            doorbell_status: Status::SUCCESS,
            io: Io::Complete,
            identify: None,
            admin: None,
            log: Vec::new(),
            dirty_slots: 0,
            register_rings: 0,
            config,
            cc: Cc(0),
            csts: Csts(0),
            aqa: Aqa(0),
            asq: 0,
            acq: 0,
            memory: Arc::default(),
            interrupts: Interrupts::new(8),
            sqs: Vec::new(),
            cqs: Vec::new(),
            shadow: None,
            last: None,
        }
    }

    /// Writes where it should not.
    pub(crate) fn scribble(&self, iova: u64, bytes: &[u8]) {
        self.memory.write(iova, bytes).unwrap();
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.cc.en()
    }

    fn configure(&mut self, cc: Cc) {
        let before = std::mem::replace(&mut self.cc, cc);
        if cc.en() && !before.en() {
            self.sqs = (0..QUEUES).map(|_| None).collect();
            self.cqs = (0..QUEUES).map(|_| None).collect();
            let (sq, cq) = (self.aqa.asqs_z() + 1, self.aqa.acqs_z() + 1);
            self.sqs[0] = Some(Sq { base: self.asq, entries: sq, head: 0, register: 0 });
            self.cqs[0] = Some(Cq { base: self.acq, entries: cq, tail: 0, phase: true, vector: Some(0) });
            self.shadow = None;
            self.log.clear();
            self.csts = Csts(0).with_rdy(!self.never_ready).with_cfs(self.fatal);
        } else if !cc.en() && before.en() && !self.never_disabled {
            self.sqs.clear();
            self.cqs.clear();
            self.csts = Csts(0);
        }
        if cc.shn().0 != 0 {
            self.csts = self.csts.with_shst(ShutdownStatus::COMPLETE);
        }
    }

    fn slot(&self, base: u64, at: usize) -> u32 {
        let mut word = [0; 4];
        self.memory.read(base + at as u64, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn tail(&self, qid: usize) -> u16 {
        let register = self.sqs[qid].as_ref().unwrap().register;
        match &self.shadow {
            Some(pages) if qid > 0 => self.slot(pages.shadow, sq_slot(qid as u16, self.cap.dstrd)) as u16,
            _ => register,
        }
    }

    fn run(&mut self, qid: usize) -> bool {
        let Some(Some(sq)) = self.sqs.get(qid) else { return false };
        if sq.head == self.tail(qid) {
            return false;
        }
        let mut bytes = [0; SQE_BYTES];
        self.memory.read(sq.base + u64::from(sq.head) * 64, &mut bytes).unwrap();
        let sqe = SubmissionQueueEntry::read_from_bytes(&bytes).unwrap();
        let sq = self.sqs[qid].as_mut().unwrap();
        sq.head = (sq.head + 1) % sq.entries;
        if let Some(pages) = self.shadow
            && qid > 0
        {
            // Awake for ever: the driver never has to ring.
            let (behind, entries) = (u32::from(sq.head) + u32::from(sq.entries) - 1, u32::from(sq.entries));
            let at = sq_slot(qid as u16, self.cap.dstrd) as u64;
            self.memory.write(pages.event_idx + at, &(behind % entries).to_le_bytes()).unwrap();
        }
        if qid == 0 {
            self.admin_command(&sqe)
        } else {
            self.io_command(qid, &sqe)
        }
        true
    }

    fn entry(&self, qid: usize, cid: u16, status: Status, dw0: u32) -> CompletionQueueEntry {
        CompletionQueueEntry {
            dw0: dw0.into(),
            dw1: 0.into(),
            sqhd: self.sqs[qid].as_ref().unwrap().head.into(),
            sqid: (qid as u16).into(),
            cid: cid.into(),
            status_phase: 0.into(),
        }
        .with_status(status)
    }

    fn post(&mut self, qid: usize, entry: CompletionQueueEntry) {
        let cq = self.cqs[qid].as_mut().unwrap();
        let entry = entry.with_phase(cq.phase);
        self.memory.write(cq.base + u64::from(cq.tail) * CQE_BYTES as u64, entry.as_bytes()).unwrap();
        cq.tail = (cq.tail + 1) % cq.entries;
        cq.phase ^= cq.tail == 0;
        if let Some(vector) = cq.vector {
            self.interrupts.signal_msix(vector);
        }
    }

    fn io_command(&mut self, qid: usize, sqe: &SubmissionQueueEntry) {
        self.log.push(0x1000);
        let good = self.entry(qid, sqe.cid.get(), Status::SUCCESS, 0);
        match self.io {
            Io::Complete => self.post(qid, good),
            Io::Ignore => {}
            Io::Twice => {
                self.post(qid, good);
                self.post(qid, good);
            }
            Io::Stale => {
                self.post(qid, good);
                if let Some(last) = self.last.take() {
                    self.post(qid, CompletionQueueEntry { sqhd: good.sqhd, ..last });
                }
            }
            Io::OtherCid(cid) => self.post(qid, CompletionQueueEntry { cid: cid.into(), ..good }),
            Io::OtherQueue(sqid) => self.post(qid, CompletionQueueEntry { sqid: sqid.into(), ..good }),
            Io::Head(sqhd) => self.post(qid, CompletionQueueEntry { sqhd: sqhd.into(), ..good }),
            Io::BeforeFetch => {
                let before = self.sqs[qid].as_ref().unwrap().head.wrapping_sub(1);
                self.post(qid, CompletionQueueEntry { sqhd: before.into(), ..good });
            }
            Io::WrongPhase => {
                let cq = self.cqs[qid].as_ref().unwrap();
                let entry = good.with_phase(!cq.phase);
                self.memory.write(cq.base + u64::from(cq.tail) * 16, entry.as_bytes()).unwrap();
            }
            Io::Garbage => {
                let cq = self.cqs[qid].as_ref().unwrap();
                let noise = crate::rig::pattern(u64::from(sqe.cid.get()) + 1, usize::from(cq.entries) * 16);
                self.memory.write(cq.base, &noise).unwrap();
            }
        }
        self.last = Some(good);
    }

    fn admin_command(&mut self, sqe: &SubmissionQueueEntry) {
        let opcode = AdminOpcode(sqe.opcode);
        if opcode != AdminOpcode::IDENTIFY {
            self.log.push(sqe.opcode.into());
        }
        let reply = self.admin.as_mut().and_then(|admin| admin(sqe));
        let (status, dw0) = match reply {
            Some(Reply::Status(status, dw0)) => (status, dw0),
            Some(Reply::Never) => return,
            None => match opcode {
                AdminOpcode::IDENTIFY => (self.identify_command(sqe), 0),
                AdminOpcode::SET_FEATURES => {
                    (Status::SUCCESS, NumberOfQueues { nsq_z: QUEUES as u16 - 2, ncq_z: QUEUES as u16 - 2 }.to_dword())
                }
                AdminOpcode::ASYNC_EVENT_REQUEST => return,
                AdminOpcode::CREATE_CQ => {
                    let CreateCq { qid, size_z, ien, iv, prp1, .. } = sqe.into();
                    self.check_slot(cq_slot(qid, self.cap.dstrd));
                    let vector = ien.then_some(iv);
                    self.cqs[usize::from(qid)] =
                        Some(Cq { base: prp1, entries: size_z + 1, tail: 0, phase: true, vector });
                    (Status::SUCCESS, 0)
                }
                AdminOpcode::CREATE_SQ => {
                    let CreateSq { qid, size_z, prp1, .. } = sqe.into();
                    self.check_slot(sq_slot(qid, self.cap.dstrd));
                    self.sqs[usize::from(qid)] = Some(Sq { base: prp1, entries: size_z + 1, head: 0, register: 0 });
                    (Status::SUCCESS, 0)
                }
                AdminOpcode::DELETE_SQ => {
                    self.sqs[usize::from(DeleteQueue::from(sqe).qid)] = None;
                    (Status::SUCCESS, 0)
                }
                AdminOpcode::DELETE_CQ => {
                    self.cqs[usize::from(DeleteQueue::from(sqe).qid)] = None;
                    (Status::SUCCESS, 0)
                }
                AdminOpcode::DOORBELL_BUFFER_CONFIG | AdminOpcode::GOOGLE_DOORBELL_BUFFER_CONFIG => {
                    if self.doorbell_status.is_success() {
                        self.shadow = Some(sqe.into());
                    }
                    (self.doorbell_status, 0)
                }
                _ => (Status::INVALID_OPCODE, 0),
            },
        };
        let entry = self.entry(0, sqe.cid.get(), status, dw0);
        self.post(0, entry);
    }

    fn check_slot(&mut self, at: usize) {
        if let Some(pages) = self.shadow {
            self.dirty_slots += u32::from(self.slot(pages.shadow, at) != 0);
        }
    }

    fn identify_command(&mut self, sqe: &SubmissionQueueEntry) -> Status {
        let command = IdentifyCmd::from(sqe);
        let mut data = vec![0; 4096];
        match command.cns {
            Cns::CONTROLLER => {
                let mut identify = IdentifyController::new_zeroed();
                identify.sqes = entry_sizes(6, 6);
                identify.cqes = entry_sizes(4, 4);
                identify.oacs = self.oacs.into();
                identify.nn = 1.into();
                identify.mdts = 5;
                data.copy_from_slice(identify.as_bytes());
            }
            Cns::NAMESPACE => {
                let mut identify = IdentifyNamespace::new_zeroed();
                identify.nsze = 1024.into();
                identify.lbaf[0] = LbaFormat::new(12);
                data.copy_from_slice(identify.as_bytes());
            }
            Cns::ACTIVE_NAMESPACE_LIST if command.nsid == 0 => data[0] = 1,
            Cns::ACTIVE_NAMESPACE_LIST => {}
            _ => return Status::INVALID_FIELD,
        }
        if let Some(identify) = &mut self.identify {
            identify(command.cns, command.nsid, &mut data);
        }
        self.memory.write(sqe.prp1.get(), &data).unwrap();
        Status::SUCCESS
    }
}

impl PciFunction for Fake {
    fn bars(&self) -> [Option<Bar>; 6] {
        [Some(Bar { size: 0x4000, is_64bit: true, prefetchable: false }), None, None, None, None, None]
    }

    fn msix_vectors(&self) -> u16 {
        8
    }

    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        let [low, high] = self.vendor.to_le_bytes();
        self.config[..2].copy_from_slice(&[low, high]);
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = if self.gone { 0xff } else { self.config.get(usize::from(offset) + i).copied().unwrap_or(0) };
        }
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        self.config[usize::from(offset)..][..data.len()].copy_from_slice(data);
    }

    fn bar_read(&mut self, _bar: usize, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if self.gone {
            return;
        }
        let value = match offset {
            offset::CAP => self.cap.encode().0,
            offset::VS => 0x2_0000,
            offset::CC => self.cc.0.into(),
            offset::CSTS => self.csts.with_cfs(self.csts.cfs() || self.fatal).0.into(),
            _ => 0,
        };
        let len = data.len();
        data.copy_from_slice(&value.to_le_bytes()[..len]);
    }

    fn bar_write(&mut self, _bar: usize, offset: u64, data: &[u8]) {
        let mut word = [0; 8];
        word[..data.len()].copy_from_slice(data);
        let value = u64::from_le_bytes(word);
        match offset {
            offset::CC => self.configure(Cc(value as u32)),
            offset::AQA => self.aqa = Aqa(value as u32),
            offset::ASQ => self.asq = value,
            offset::ACQ => self.acq = value,
            _ => {
                if let Some(Doorbell::SqTail(qid)) = doorbell_at(offset, self.cap.dstrd)
                    && let Some(Some(sq)) = self.sqs.get_mut(usize::from(qid))
                {
                    sq.register = value as u16;
                    self.register_rings += u32::from(qid > 0);
                }
            }
        }
    }

    fn connect_msix(&mut self, vector: u16, interrupt: Option<Interrupt>) {
        self.interrupts.connect_msix(vector, interrupt);
    }

    fn connect_intx(&mut self, _interrupt: Option<Interrupt>) {}

    fn intx_unmasked(&mut self) {}

    fn set_memory(&mut self, map: Arc<MemoryMap>) {
        self.memory = map;
    }

    fn reset(&mut self) {
        self.resets += 1;
        if self.reset_mends {
            self.never_disabled = false;
            self.csts = Csts(0);
            self.sqs.clear();
            self.cqs.clear();
        }
        self.configure(Cc(0));
    }

    fn is_quiet(&self) -> bool {
        true
    }

    fn poll(&mut self) -> usize {
        if self.gone || !self.csts.rdy() {
            return 0;
        }
        (0..self.sqs.len()).map(|qid| usize::from(self.run(qid))).sum()
    }

    fn wants_polling(&self) -> bool {
        false
    }

    fn prepare_wait(&mut self) -> Wait {
        Wait::Until(None)
    }

    fn wait_fds(&self, _add: &mut dyn FnMut(BorrowedFd<'_>)) {}
}
