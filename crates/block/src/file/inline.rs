//! The engine for files in memory (tmpfs): calls that do not wait for anything are made at once.
//!
//! io_uring cannot try such files without blocking, so it would send each request to another thread.

use std::{os::fd::BorrowedFd, sync::Arc};

use super::{Shared, slot::Slot, threads};
use crate::{BlockQueue, Completion, Request, Submitted};

pub(super) struct InlineQueue {
    shared: Arc<Shared>,
    slot: Slot,
}

impl InlineQueue {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, slot: Slot::default() }
    }
}

impl BlockQueue for InlineQueue {
    fn submit(&mut self, request: &mut Request) -> Submitted {
        if let Some(result) = self.shared.answer(request) {
            return Submitted::Done(result);
        }
        if let Some(result) = self.shared.mapped.as_ref().and_then(|mapped| mapped.carry_out(request)) {
            return Submitted::Done(result);
        }
        self.slot.start(&self.shared, request.take());
        let result = threads::run(&self.shared, &mut self.slot, || false);
        let Completion { request: back, result } = self.slot.take(result);
        *request = back;
        Submitted::Done(result)
    }

    fn kick(&mut self) {}

    fn poll(&mut self, _done: &mut dyn FnMut(Completion)) -> usize {
        0
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn cancel(&mut self) {}
}
