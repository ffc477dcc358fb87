//! Asynchronous events, and Abort (NVMe Base 2.1 §5.1.1, §5.1.2).

use std::collections::VecDeque;

use nvme::{
    Status, SubmissionQueueEntry,
    admin::AbortCmd,
    features::async_event_config,
    logs::{AsyncEvent, AsyncEventType, LogId, async_notice, critical_warning},
};

use super::Reply;
use crate::controller::Controller;

/// Asynchronous Event Requests that may wait at a time.
pub(crate) const AER_LIMIT: u8 = 4;

/// Events, and the requests that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Command ids of the requests.
    parked: VecDeque<u16>,
    /// Events that were not reported yet, each at most once.
    pending: Vec<AsyncEvent>,
    /// By event type: the log page that must be read before the next event of this type is reported.
    unread: [Option<LogId>; 8],
}

impl Events {
    /// Notes an event. It waits for a request, for its type to be enabled, and for the log page of the one before.
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        if !self.pending.contains(&event) {
            self.pending.push(event);
        }
    }

    /// The host has read a log page without asking to retain the event.
    pub(crate) fn log_read(&mut self, log: LogId) {
        for unread in &mut self.unread {
            if *unread == Some(log) {
                *unread = None;
            }
        }
    }

    /// The next event that may be reported now, if there is one and a request waits.
    fn next(&mut self, config: u32) -> Option<(u16, AsyncEvent)> {
        let cid = *self.parked.front()?;
        let at = self.pending.iter().position(|e| is_enabled(*e, config) && self.unread[slot(*e)].is_none())?;
        let event = self.pending.remove(at);
        self.parked.pop_front();
        self.unread[slot(event)] = Some(event.log);
        Some((cid, event))
    }

    /// Whether [`Events::next`] would find something.
    pub(crate) fn is_ready(&self, config: u32) -> bool {
        !self.parked.is_empty()
            && self.pending.iter().any(|e| is_enabled(*e, config) && self.unread[slot(*e)].is_none())
    }
}

fn slot(event: AsyncEvent) -> usize {
    usize::from(event.kind.0 & 7)
}

/// Whether the host wants to hear of it (feature 0Bh). Errors cannot be turned off.
fn is_enabled(event: AsyncEvent, config: u32) -> bool {
    match event.kind {
        // The temperature is the only warning there is.
        AsyncEventType::SMART => config & u32::from(critical_warning::TEMPERATURE) != 0,
        AsyncEventType::NOTICE if event.info == async_notice::NAMESPACE_ATTRIBUTE_CHANGED => {
            config & async_event_config::NAMESPACE_ATTRIBUTE != 0
        }
        AsyncEventType::NOTICE => false,
        _ => true,
    }
}

impl Controller {
    /// Reports what can be reported, and says whether that was anything.
    pub(crate) fn deliver_events(&mut self) -> bool {
        let mut worked = false;
        while self.events.is_ready(self.features.async_events) {
            // A parked request holds no place in the CQ: with a queue of two entries it would hold the only one.
            let Some(Ok(Some(permit))) = self.engine.cq(0).map(|cq| cq.producer.reserve()) else { break };
            let Some((cid, event)) = self.events.next(self.features.async_events) else {
                if let Some(cq) = self.engine.cq(0) {
                    cq.producer.give_back(permit);
                }
                break;
            };
            self.complete_parked(cid, permit, Status::SUCCESS, event.to_dw0());
            worked = true;
        }
        worked
    }

    fn complete_parked(&mut self, cid: u16, permit: doorbell::Permit, status: Status, dw0: u32) {
        if let Some(sq) = self.engine.sq(0) {
            sq.outstanding += 1;
        }
        self.engine.complete(0, cid, permit, status, dw0);
    }
}

/// NVMe Base 2.1 §5.1.2.
pub(crate) fn request(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    if c.events.parked.len() >= usize::from(AER_LIMIT) {
        return Reply::Failed(Status::AER_LIMIT_EXCEEDED.with_dnr());
    }
    c.events.parked.push_back(sqe.cid.get());
    Reply::Parked
}

/// NVMe Base 2.1 §5.1.1. An event request can be aborted; anything else is with a backend already, or done.
pub(crate) fn abort(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    let AbortCmd { sqid, cid } = sqe.into();
    if c.engine.sq(sqid).is_none() {
        return Reply::Failed(super::INVALID_FIELD);
    }
    let parked = (sqid == 0).then(|| c.events.parked.iter().position(|p| *p == cid)).flatten();
    if let Some(at) = parked
        && let Some(Ok(Some(permit))) = c.engine.cq(0).map(|cq| cq.producer.reserve())
    {
        c.events.parked.remove(at);
        c.complete_parked(cid, permit, Status::ABORTED_BY_REQUEST, 0);
        return Reply::Done(0);
    }
    Reply::Done(AbortCmd::NOT_ABORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTICE: AsyncEvent = AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED;
    const BAD_VALUE: AsyncEvent = AsyncEvent::INVALID_DOORBELL_VALUE;
    const BAD_REGISTER: AsyncEvent = AsyncEvent::INVALID_DOORBELL_REGISTER;

    #[test]
    fn an_event_held_back_by_the_mask_is_sent_once_it_is_enabled() {
        let mut events = Events::default();
        events.parked.push_back(7);
        events.raise(NOTICE);
        events.raise(NOTICE);
        assert_eq!(events.next(0), None);
        assert_eq!(events.next(async_event_config::NAMESPACE_ATTRIBUTE), Some((7, NOTICE)));
        assert!(events.pending.is_empty());
    }

    #[test]
    fn a_type_is_silent_until_its_log_page_was_read() {
        let mut events = Events::default();
        events.parked.extend([1, 2, 3]);
        events.raise(BAD_VALUE);
        events.raise(BAD_REGISTER);
        assert_eq!(events.next(0), Some((1, BAD_VALUE)));
        assert_eq!(events.next(0), None);
        events.log_read(LogId::SMART);
        assert_eq!(events.next(0), None);
        events.log_read(LogId::ERROR);
        assert_eq!(events.next(0), Some((2, BAD_REGISTER)));
    }
}
