//! The threads of the workers, and the one that watches over them.

use std::{
    any::Any,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
};

use crate::{output::Failure, signals::Signals, worker_arg};

/// What a worker's thread does: it serves until its line says stop, and gives its last report.
pub(crate) type Job<R> = Box<dyn FnOnce(&Line<R>) -> (R, Result<(), Failure>) + Send>;

/// An eventfd that makes someone look.
#[derive(Debug)]
struct Bell(OwnedFd);

impl Bell {
    fn new() -> Result<Self, Failure> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        fd.map(Self).map_err(|errno| Failure::runtime(format!("cannot create an eventfd: {errno}")))
    }

    fn ring(&self) {
        // A full counter rings as well.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// What is asked of a worker.
#[derive(Debug)]
struct Orders {
    bell: Bell,
    report: AtomicBool,
    stop: AtomicBool,
}

enum News<R> {
    Report(R),
    /// The thread is at its end. Without a report after a panic.
    End(Option<R>, Result<(), Failure>),
}

/// A worker's line to the thread that watches.
pub(crate) struct Line<R> {
    worker: usize,
    orders: Arc<Orders>,
    news: Sender<(usize, News<R>)>,
    bell: Arc<Bell>,
}

impl<R> Line<R> {
    /// Readable when there is an order.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.orders.bell.0.as_fd()
    }

    /// Takes the orders: whether to report, and whether to stop.
    pub(crate) fn orders(&self) -> (bool, bool) {
        self.orders.bell.silence();
        (self.orders.report.swap(false, Ordering::AcqRel), self.orders.stop.load(Ordering::Acquire))
    }

    /// Answers the order to report.
    pub(crate) fn report(&self, report: R) {
        self.tell(News::Report(report));
    }

    fn tell(&self, news: News<R>) {
        // Whoever watches lives longer.
        let _ = self.news.send((self.worker, news));
        self.bell.ring();
    }
}

struct Member<R> {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
    /// A report was ordered and has not come.
    owes: bool,
    latest: Option<R>,
}

/// Threads that run workers.
pub(crate) struct Crew<R> {
    members: Vec<Member<R>>,
    news: Receiver<(usize, News<R>)>,
    bell: Arc<Bell>,
}

impl<R: Send + 'static> Crew<R> {
    /// Starts a thread for each job, on the CPU that it is given.
    pub(crate) fn start(jobs: Vec<(Option<usize>, Job<R>)>) -> Result<Self, Failure> {
        let bell = Arc::new(Bell::new()?);
        let (sender, news) = channel();
        let mut crew = Self { members: Vec::new(), news, bell: bell.clone() };
        for (worker, (cpu, job)) in jobs.into_iter().enumerate() {
            let (report, stop) = (AtomicBool::new(false), AtomicBool::new(false));
            let orders = Arc::new(Orders { bell: Bell::new()?, report, stop });
            let line = Line { worker, orders: orders.clone(), news: sender.clone(), bell: bell.clone() };
            let thread = std::thread::Builder::new().name(format!("worker-{worker}")).spawn(move || {
                let work = || match cpu.map_or(Ok(()), worker_arg::pin) {
                    Ok(()) => {
                        let (report, result) = job(&line);
                        (Some(report), result)
                    }
                    Err(failure) => (None, Err(failure)),
                };
                let (report, result) = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
                    let what = words(panic.as_ref());
                    (None, Err(Failure::runtime(format!("worker-{worker} panicked, and its disks are gone: {what}"))))
                });
                line.tell(News::End(report, result));
            });
            let thread = thread.map_err(|error: io::Error| Failure::runtime(format!("cannot start a thread: {error}")));
            match thread {
                Ok(thread) => crew.members.push(Member { orders, thread: Some(thread), owes: false, latest: None }),
                Err(failure) => {
                    crew.stop();
                    return Err(failure);
                }
            }
        }
        Ok(crew)
    }

    fn stop(&self) {
        for member in &self.members {
            member.orders.stop.store(true, Ordering::Release);
            member.orders.bell.ring();
        }
    }

    /// Follows the signals until every worker has ended. `report` gets the newest report of each worker whenever a signal
    /// asked for it, and at the end. One worker that fails stops all of them: half of the disks would be worse than none.
    pub(crate) fn watch(
        mut self,
        signals: &Signals,
        report: &mut dyn FnMut(Vec<&R>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut result = Ok(());
        let mut wanted = false;
        loop {
            while let Ok((worker, news)) = self.news.try_recv() {
                let Some(member) = self.members.get_mut(worker) else { continue };
                member.owes = false;
                match news {
                    News::Report(report) => member.latest = Some(report),
                    News::End(report, end) => {
                        member.latest = report.or(member.latest.take());
                        if let Some(thread) = member.thread.take() {
                            // Its last word was the end.
                            let _ = thread.join();
                        }
                        if let Err(failure) = end {
                            tracing::error!("{failure}; the other workers stop");
                            self.stop();
                            result = result.and(Err(failure));
                        }
                    }
                }
            }
            let ended = self.members.iter().all(|member| member.thread.is_none());
            if ended || (wanted && self.members.iter().all(|member| !member.owes)) {
                wanted = false;
                let reported = report(self.members.iter().filter_map(|member| member.latest.as_ref()).collect());
                if ended {
                    return result.and(reported);
                }
                if let Err(failure) = reported {
                    failure.report();
                }
            }
            let mut fds = [signals.stop.fd(), signals.report.fd(), self.bell.0.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Failure::runtime(format!("cannot wait for signals: {errno}"))),
            }
            self.bell.silence();
            if signals.report.take() {
                wanted = true;
                for member in self.members.iter_mut().filter(|member| member.thread.is_some()) {
                    member.owes = true;
                    member.orders.report.store(true, Ordering::Release);
                    member.orders.bell.ring();
                }
            }
            if signals.stop.take() {
                tracing::info!("stopping: waits for I/O in flight and flushes; a second signal ends at once");
                signals.end_at_the_next();
                self.stop();
            }
        }
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job that waits for its orders, as a worker does.
    fn obeys(value: u32) -> (Option<usize>, Job<u32>) {
        let job = move |line: &Line<u32>| {
            loop {
                let _ = poll(&mut [PollFd::from_borrowed_fd(line.fd(), PollFlags::IN)], None);
                let (report, stop) = line.orders();
                if report {
                    line.report(value);
                }
                if stop {
                    return (value, Ok(()));
                }
            }
        };
        (None, Box::new(job))
    }

    #[test]
    fn a_worker_that_panics_or_fails_stops_the_others_and_is_named() {
        let panics: Job<u32> = Box::new(|_| panic!("on purpose, for a test"));
        let fails: Job<u32> = Box::new(|_| (7, Err(Failure::runtime("no more events".to_owned()))));
        for (job, expected, last) in [
            (panics, "worker-1 panicked, and its disks are gone: on purpose", vec![1, 2]),
            (fails, "no more", vec![1, 7, 2]),
        ] {
            let signals = Signals::new().unwrap();
            let crew = Crew::start(vec![obeys(1), (None, job), obeys(2)]).unwrap();
            let mut reports = Vec::new();
            let result = crew.watch(&signals, &mut |all| {
                reports.push(all.into_iter().copied().collect::<Vec<_>>());
                Ok(())
            });
            let failure = result.unwrap_err().to_string();
            assert!(failure.contains(expected), "{failure}");
            assert_eq!(reports, [last]);
        }
    }

    #[test]
    fn a_worker_on_a_cpu_that_is_not_there_is_a_failure() {
        let (_, job) = obeys(1);
        let crew = Crew::start(vec![obeys(0), (Some(1023), job)]).unwrap();
        let failure = crew.watch(&Signals::new().unwrap(), &mut |_| Ok(())).unwrap_err().to_string();
        assert!(failure.contains("CPU 1023"), "{failure}");
    }
}
