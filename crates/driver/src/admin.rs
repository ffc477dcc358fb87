//! Admin commands: identify, features, logs, events, abort.

use std::time::{Duration, Instant};

use nvme::{
    AdminOpcode, NSID_BROADCAST, Status, SubmissionQueueEntry,
    admin::{AbortCmd, GetFeatures, GetLogPage, IdentifyCmd, SetFeatures},
    features::{FeatureId, NumberOfQueues, Select, async_event_config},
    identify::{Cns, Csi, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace},
    logs::{AsyncEvent, LogId, SmartLog},
    zerocopy::{FromBytes, FromZeros, IntoBytes},
};

use crate::{
    device::Device,
    error::{CommandId, Error},
    memory::{Buffer, Data},
    namespace::Namespace,
    prp,
};

/// Tag of an Asynchronous Event Request; other commands count from 0.
const EVENT_TAG: u64 = u64::MAX;
/// Events kept for [`Device::next_event`]; older ones are dropped.
const MAX_EVENTS: usize = 64;
/// Namespaces that are looked at, whatever the controller lists.
const MAX_NAMESPACES: usize = 1024;
/// A wait for an interrupt looks at the device's health this often.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Polls before a wait without interrupts begins to give the processor away.
const SPINS: u32 = 1000;
/// How long it gives it away each time.
const PAUSE: Duration = Duration::from_micros(50);

impl Device {
    // ---- any command ------------------------------------------------------------------------------------------------

    /// Sends an admin command and waits for it; returns status and dword 0. Its identifier is filled in, and its PRPs when
    /// there is data, of at most a page.
    ///
    /// # Errors
    /// [`Error`]; a status that tells of failure is none here.
    pub fn admin_raw(&mut self, sqe: SubmissionQueueEntry, data: Option<Data<'_>>) -> Result<(Status, u32), Error> {
        let opcode = AdminOpcode(sqe.opcode);
        let (sqe, buffer) = match data {
            None => (sqe, None),
            Some(data) => {
                let iova = data.iova().ok_or(Error::Argument("data is not inside its buffer, or not dword aligned"))?;
                let (prp1, prp2) = prp::pointers(self.shared.page, iova, data.len, None)
                    .ok_or(Error::Argument("an admin command has at most two pages of data"))?;
                let sqe = SubmissionQueueEntry { prp1: prp1.into(), prp2: prp2.into(), ..sqe };
                (sqe, Some(data.buffer.clone()))
            }
        };
        let tag = self.next_tag;
        self.next_tag += 1;
        let shared = self.shared.clone();
        let ring = self.admin.as_mut().ok_or(Error::NotEnabled)?;
        ring.push(sqe, tag, buffer).ok_or(Error::Argument("the admin queue is full"))?;
        let result = ring.ring(&*shared.transport).map_err(Error::from).and_then(|()| self.finish(opcode, tag));
        if result.is_err() {
            self.give_up_admin();
        }
        result
    }

    /// The admin queue can be used no more before a reset. Its memory, and that of its commands, stays until then.
    pub(crate) fn give_up_admin(&mut self) {
        if let Some(mut ring) = self.admin.take() {
            let mut memory = vec![ring.sq_memory().clone(), ring.cq_memory().clone()];
            ring.slots().take_buffers(&mut memory);
            self.shared.leave(crate::shared::Orphan { qid: 0, epoch: self.shared.epoch(), memory });
        }
    }

    /// Waits for the command with this tag.
    fn finish(&mut self, opcode: AdminOpcode, tag: u64) -> Result<(Status, u32), Error> {
        let start = Instant::now();
        let mut spins = 0u32;
        loop {
            if let Some(result) = self.poll_admin(Some(tag))? {
                return Ok(result);
            }
            spins = spins.saturating_add(1);
            if self.shared.transport.is_cooperative() || spins < SPINS && self.admin_vector.is_none() {
                std::thread::yield_now();
            }
            let left = self.options.admin_timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                self.shared.check_health()?;
                return Err(Error::AdminTimedOut(opcode));
            }
            if self.shared.transport.is_cooperative() {
                continue;
            }
            let quiet = match &self.admin_vector {
                Some(vector) => vector.wait(left.min(WAIT_SLICE))? == 0,
                None if spins < SPINS => false,
                None => {
                    std::thread::sleep(PAUSE);
                    spins.is_multiple_of(SPINS)
                }
            };
            if quiet {
                self.shared.check_health()?;
            }
        }
    }

    /// Takes admin completions: events to the list, and that of `tag`, if it is there, to the caller.
    fn poll_admin(&mut self, tag: Option<u64>) -> Result<Option<(Status, u32)>, Error> {
        let transport = &*self.shared.transport;
        if transport.is_cooperative() {
            transport.drive();
        }
        let Self { admin, events, owed_requests, .. } = self;
        let ring = admin.as_mut().ok_or(Error::NotEnabled)?;
        let mut found = None;
        ring.poll(transport, |completed| {
            if Some(completed.tag) == tag {
                found = Some((completed.status, completed.dw0));
            } else if completed.tag == EVENT_TAG && completed.status.is_success() {
                if events.len() == MAX_EVENTS {
                    events.pop_front();
                }
                events.push_back(AsyncEvent::from_dw0(completed.dw0));
                *owed_requests = owed_requests.saturating_add(1);
            }
        })?;
        Ok(found)
    }

    /// Sends an admin command and waits for its success; returns dword 0.
    ///
    /// # Errors
    /// [`Error::Command`] with the status, and as [`Device::admin_raw`].
    pub fn admin(&mut self, sqe: SubmissionQueueEntry, data: Option<Data<'_>>) -> Result<u32, Error> {
        let command = AdminOpcode(sqe.opcode);
        let (status, dw0) = self.admin_raw(sqe, data)?;
        if status.is_success() { Ok(dw0) } else { Err(Error::Command { command, status }) }
    }

    // ---- identify ---------------------------------------------------------------------------------------------------

    /// Identify with any CNS.
    ///
    /// # Errors
    /// [`Error`].
    pub fn identify_raw(&mut self, cns: Cns, nsid: u32, csi: Csi) -> Result<Box<[u8; IDENTIFY_BYTES]>, Error> {
        let command = IdentifyCmd { cns, cntid: 0, csi, nvmsetid: 0, uuid_index: 0, nsid };
        let buffer = self.allocate(IDENTIFY_BYTES)?;
        self.admin(command.encode(), Some(buffer.slice(0, IDENTIFY_BYTES)))?;
        let mut data = Box::new([0; IDENTIFY_BYTES]);
        copy(&buffer, &mut *data)?;
        Ok(data)
    }

    pub(crate) fn identify_controller(&mut self) -> Result<IdentifyController, Error> {
        let data = self.identify_raw(Cns::CONTROLLER, 0, Csi::NVM)?;
        IdentifyController::read_from_bytes(&data[..]).map_err(|_| Error::Implausible("Identify Controller"))
    }

    /// Identify Namespace.
    ///
    /// # Errors
    /// [`Error`].
    pub fn identify_namespace(&mut self, nsid: u32) -> Result<Box<IdentifyNamespace>, Error> {
        let data = self.identify_raw(Cns::NAMESPACE, nsid, Csi::NVM)?;
        let identify = IdentifyNamespace::read_from_bytes(&data[..]);
        identify.map(Box::new).map_err(|_| Error::Implausible("Identify Namespace"))
    }

    /// NSIDs of the active namespaces, the first 1024 of them.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Implausible`] for a list that does not ascend.
    pub fn active_namespaces(&mut self) -> Result<Vec<u32>, Error> {
        let mut list = Vec::new();
        let mut last = 0;
        loop {
            let data = self.identify_raw(Cns::ACTIVE_NAMESPACE_LIST, last, Csi::NVM)?;
            let (words, _) = data.as_chunks::<4>();
            let page = words.iter().map(|word| u32::from_le_bytes(*word)).take_while(|nsid| *nsid != 0);
            let mut count = 0;
            for nsid in page {
                if nsid <= last || nsid == NSID_BROADCAST {
                    return Err(Error::Implausible("the list of namespaces does not ascend"));
                }
                last = nsid;
                list.push(nsid);
                count += 1;
            }
            if count < words.len() || list.len() >= MAX_NAMESPACES {
                list.truncate(MAX_NAMESPACES);
                return Ok(list);
            }
        }
    }

    /// Looks at all active namespaces anew.
    ///
    /// # Errors
    /// [`Error`].
    pub fn rescan(&mut self) -> Result<(), Error> {
        let mut namespaces = Vec::new();
        for nsid in self.active_namespaces()? {
            match Namespace::new(nsid, &*self.identify_namespace(nsid)?) {
                Ok(namespace) => namespaces.push(namespace),
                Err(reason) => tracing::warn!(nsid, reason, "a namespace cannot be used"),
            }
        }
        self.namespaces = namespaces;
        Ok(())
    }

    // ---- features ---------------------------------------------------------------------------------------------------

    /// Get Features, for a feature whose value is a dword.
    ///
    /// # Errors
    /// [`Error`].
    pub fn get_feature(&mut self, fid: FeatureId, select: Select, nsid: u32, cdw11: u32) -> Result<u32, Error> {
        self.admin(GetFeatures { fid, select, cdw11, uuid_index: 0, nsid }.encode(), None)
    }

    /// Set Features, for a feature whose value is a dword; returns dword 0.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_feature(&mut self, fid: FeatureId, nsid: u32, cdw11: u32) -> Result<u32, Error> {
        let command = SetFeatures { fid, save: false, cdw11, cdw12: 0, cdw13: 0, cdw15: 0, uuid_index: 0, nsid };
        self.admin(command.encode(), None)
    }

    /// How many I/O queue pairs we get (feature Number of Queues).
    pub(crate) fn request_queues(&mut self) -> Result<u16, Error> {
        let wanted_z = self.options.io_queue_pairs.clamp(1, 0xfffe) - 1;
        let request = NumberOfQueues { nsq_z: wanted_z, ncq_z: wanted_z };
        let given = match self.set_feature(FeatureId::NUMBER_OF_QUEUES, 0, request.to_dword()) {
            Ok(dw0) => NumberOfQueues::from_dword(dw0),
            Err(Error::Command { status, .. }) => {
                tracing::warn!(%status, "the controller gives no I/O queues");
                return Ok(0);
            }
            Err(error) => return Err(error),
        };
        // It may give more than was asked for.
        let pairs = given.nsq_z.min(given.ncq_z).min(wanted_z) + 1;
        Ok(pairs.min(self.limits.last_qid))
    }

    // ---- logs -------------------------------------------------------------------------------------------------------

    /// Get Log Page: fills `out`, whose length is a multiple of 4, from byte `offset` of the log on, a page at a time. Reading
    /// a log lets the controller report the next event of its kind.
    ///
    /// # Errors
    /// [`Error`].
    pub fn get_log(&mut self, lid: LogId, nsid: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        if out.is_empty() || !out.len().is_multiple_of(4) {
            return Err(Error::Argument("a log is read in dwords"));
        }
        let page = self.shared.page;
        let buffer = self.allocate(page)?;
        let chunks = out.len().div_ceil(page);
        for (i, chunk) in out.chunks_mut(page).enumerate() {
            let numd_z = u32::try_from(chunk.len() / 4 - 1).unwrap_or(u32::MAX);
            let command = GetLogPage {
                lid,
                lsp: 0,
                // The event is cleared by the last of the commands.
                rae: i + 1 < chunks,
                numd_z,
                lsi: 0,
                offset: offset + (i * page) as u64,
                ot: false,
                csi: Csi::NVM,
                uuid_index: 0,
                nsid,
            };
            self.admin(command.encode(), Some(buffer.slice(0, chunk.len())))?;
            copy(&buffer, chunk)?;
        }
        Ok(())
    }

    /// The SMART / Health Information log of the controller.
    ///
    /// # Errors
    /// [`Error`].
    pub fn smart_log(&mut self) -> Result<Box<SmartLog>, Error> {
        let mut log = Box::new(SmartLog::new_zeroed());
        self.get_log(LogId::SMART, NSID_BROADCAST, 0, log.as_mut_bytes())?;
        Ok(log)
    }

    // ---- events and abort -------------------------------------------------------------------------------------------

    /// Gives the controller its first event requests.
    pub(crate) fn start_events(&mut self) -> Result<(), Error> {
        let limit = u16::from(self.identify.aerl_z) + 1;
        // Two entries stay for commands.
        let room = self.options.admin_entries - 3;
        let requests = u16::from(self.options.event_requests).min(limit).min(room);
        self.owed_requests = u8::try_from(requests).unwrap_or(u8::MAX);
        if requests > 0 {
            let wanted = self.identify.oaes.get() & async_event_config::NAMESPACE_ATTRIBUTE;
            match self.set_feature(FeatureId::ASYNC_EVENT_CONFIG, 0, wanted | async_event_config::CRITICAL_WARNING_MASK)
            {
                Ok(_) => {}
                Err(Error::Command { status, .. }) => tracing::debug!(%status, "the kinds of events stay as they are"),
                Err(error) => return Err(error),
            }
        }
        self.request_events()
    }

    fn request_events(&mut self) -> Result<(), Error> {
        let Self { admin, owed_requests, shared, .. } = self;
        let ring = admin.as_mut().ok_or(Error::NotEnabled)?;
        let sqe =
            SubmissionQueueEntry { opcode: AdminOpcode::ASYNC_EVENT_REQUEST.0, ..SubmissionQueueEntry::default() };
        while *owed_requests > 0 && ring.in_flight() + 2 <= ring.depth().capacity() {
            if ring.push(sqe, EVENT_TAG, None).is_none() {
                break;
            }
            *owed_requests -= 1;
        }
        let rung = ring.ring(&*shared.transport).map_err(Error::from);
        if rung.is_err() {
            self.give_up_admin();
        }
        rung
    }

    /// The oldest event that the controller has reported, if there is one; does not wait. Whoever gets one reads its log, or
    /// no other event of that kind follows.
    ///
    /// # Errors
    /// [`Error`].
    pub fn next_event(&mut self) -> Result<Option<AsyncEvent>, Error> {
        if let Err(error) = self.poll_admin(None) {
            self.give_up_admin();
            return Err(error);
        }
        self.request_events()?;
        Ok(self.events.pop_front())
    }

    /// Asks the controller to abort a command and says whether it did. The command's own completion comes on its queue in any
    /// case.
    ///
    /// # Errors
    /// [`Error`].
    pub fn abort(&mut self, command: CommandId) -> Result<bool, Error> {
        let CommandId { sqid, cid } = command;
        let dw0 = self.admin(AbortCmd { sqid, cid }.encode(), None)?;
        Ok(dw0 & AbortCmd::NOT_ABORTED == 0)
    }
}

fn copy(buffer: &Buffer, out: &mut [u8]) -> Result<(), Error> {
    buffer.read(0, out).map_err(|_| Error::Argument("more data than its buffer holds"))
}
