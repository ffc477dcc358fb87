//! The whole way, in one process: sound disks verify, and a planted fault of each kind is found and named.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "helpers of tests")]

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use block::{BlockDevice, BlockQueue, Capabilities, Completion, Operation, Request, Submitted};
use controller::{Config, NvmeFunction};
use driver::{InProcess, Transport};
use shadowbell_bench::{
    Bench, BenchError, CompletionMode, DeviceCounters, DoorbellKind, FaultKind, Point, Row, Rw, Target, Workload,
};

const BLOCK: usize = 512;
const SIZE: usize = 1 << 20;
/// The block that things happen to.
const LBA: usize = 200;

/// What the disk does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// Later writes of the block are dropped.
    DropsWrites,
    /// Only the first half of the block is written, but for the first time.
    TearsWrites,
    /// Reads of the block give the one after it.
    ReadsElsewhere,
    /// Reads that hold the block transfer nothing.
    ReadsNothing,
    /// A bit of the block flips.
    FlipsBit,
}

#[derive(Debug)]
struct Disk {
    wrong: Wrong,
    bytes: Mutex<Vec<u8>>,
    written: AtomicBool,
}

#[derive(Debug, Clone)]
struct Faulty(Arc<Disk>);

impl BlockDevice for Faulty {
    fn name(&self) -> String {
        format!("faulty ({:?})", self.0.wrong)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            size: SIZE as u64,
            block_size: BLOCK as u32,
            read_only: false,
            volatile_cache: false,
            discard: false,
            discard_zeroes: false,
            discard_granularity: BLOCK as u32,
            preferred_write: BLOCK as u32,
        }
    }

    fn open_queue(&self, _: usize) -> std::io::Result<Box<dyn BlockQueue>> {
        Ok(Box::new(self.clone()))
    }
}

impl Disk {
    fn carry_out(&self, request: &Request) {
        let (at, len) = (request.offset as usize, request.len as usize);
        let mut bytes = self.bytes.lock().unwrap();
        let mut part = vec![0; len];
        // The block inside the request.
        let inside = (at..at + len).contains(&(LBA * BLOCK)).then(|| LBA * BLOCK - at);
        match request.operation {
            Operation::Write { .. } => {
                request.segments.read(0, &mut part).unwrap();
                if let Some(block) = inside
                    && self.written.swap(true, Ordering::Relaxed)
                {
                    let old = &bytes[LBA * BLOCK..][..BLOCK];
                    match self.wrong {
                        Wrong::DropsWrites => part[block..][..BLOCK].copy_from_slice(old),
                        Wrong::TearsWrites => part[block + BLOCK / 2..][..BLOCK / 2].copy_from_slice(&old[BLOCK / 2..]),
                        Wrong::FlipsBit => part[block + 300] ^= 1,
                        Wrong::Nothing | Wrong::ReadsElsewhere | Wrong::ReadsNothing => {}
                    }
                }
                bytes[at..at + len].copy_from_slice(&part);
            }
            Operation::Read => {
                part.copy_from_slice(&bytes[at..at + len]);
                if let Some(block) = inside {
                    match self.wrong {
                        Wrong::ReadsElsewhere => {
                            part[block..][..BLOCK].copy_from_slice(&bytes[(LBA + 1) * BLOCK..][..BLOCK]);
                        }
                        Wrong::ReadsNothing => return,
                        _ => {}
                    }
                }
                request.segments.write(0, &part).unwrap();
            }
            _ => {}
        }
    }
}

impl BlockQueue for Faulty {
    fn submit(&mut self, request: &mut Request) -> Submitted {
        self.0.carry_out(request);
        Submitted::Done(Ok(()))
    }

    fn kick(&mut self) {}

    fn poll(&mut self, _: &mut dyn FnMut(Completion)) -> usize {
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

struct Local(Arc<InProcess<NvmeFunction>>);

impl Target for Local {
    fn counters(&mut self) -> Result<Option<DeviceCounters>, BenchError> {
        let totals = self.0.with(|function| function.report().totals.counters).unwrap();
        Ok(Some(DeviceCounters {
            commands: totals.commands,
            register_writes: totals.sq_doorbell_writes + totals.cq_doorbell_writes,
            interrupts: totals.interrupts,
            wakeups: totals.wakeups,
        }))
    }

    fn check(&mut self) -> Result<(), BenchError> {
        Ok(())
    }
}

fn bench(disk: Arc<dyn BlockDevice>) -> Bench<Local> {
    let function = NvmeFunction::new(Config::new("test", vec![disk])).unwrap();
    let transport = Arc::new(InProcess::spawn(function).unwrap());
    let dynamic: Arc<dyn Transport> = transport.clone();
    Bench::new(dynamic, Local(transport))
}

fn faulty(wrong: Wrong) -> Bench<Local> {
    let disk = Disk { wrong, bytes: Mutex::new(vec![0; SIZE]), written: AtomicBool::new(false) };
    bench(Arc::new(Faulty(Arc::new(disk))))
}

fn workload(rw: Rw) -> Workload {
    Workload {
        rw,
        verify: true,
        runtime: Duration::from_millis(150),
        ramp: Duration::from_millis(10),
        ..Workload::default()
    }
}

fn measure(bench: &mut Bench<Local>, workload: &Workload, point: Point) -> Result<Option<Row>, BenchError> {
    bench.measure(workload, point, &AtomicBool::new(false), &mut |_| {})
}

const POINT: Point = Point { iodepth: 8, numjobs: 2, doorbells: DoorbellKind::Shadow };

#[test]
fn a_sound_disk_verifies_by_every_mix_and_both_kinds_of_doorbells() {
    let mut bench = faulty(Wrong::Nothing);
    for rw in [Rw::RandRw, Rw::Write, Rw::Read, Rw::Rw, Rw::RandWrite, Rw::RandRead] {
        for doorbells in [DoorbellKind::Register, DoorbellKind::Shadow] {
            let row = measure(&mut bench, &workload(rw), Point { doorbells, ..POINT }).unwrap().unwrap();
            let verified = row.verify.unwrap();
            let blocks = (SIZE / BLOCK) as u64;
            assert_eq!((verified.faults, row.errors), (0, 0), "{rw}, {doorbells}: {:?}", verified.first);
            assert!(verified.written >= blocks && verified.checked >= blocks, "{rw}: {verified:?}");
            assert_eq!(row.device.unwrap().commands, row.driver.commands, "both sides count the same");
        }
    }
}

/// Runs on a disk that does this wrong; gives the faults of the block it does it to.
fn found(wrong: Wrong) -> Vec<FaultKind> {
    let row = measure(&mut faulty(wrong), &workload(Rw::RandWrite), POINT).unwrap().unwrap();
    let verified = row.verify.unwrap();
    assert!(verified.faults > 0, "{wrong:?} was not found");
    let here: Vec<_> = verified.first.iter().filter(|f| f.lba == LBA as u64).map(|fault| fault.kind).collect();
    assert!(!here.is_empty(), "{wrong:?}: {:?}", verified.first);
    if wrong != Wrong::ReadsNothing {
        assert_eq!(verified.first.len(), here.len(), "no other block is accused: {:?}", verified.first);
    }
    here
}

#[test]
fn a_dropped_write_is_stale() {
    assert!(found(Wrong::DropsWrites).iter().all(|kind| matches!(kind, FaultKind::Stale { found_version: 1, .. })));
}

#[test]
fn half_a_write_is_torn_where_it_ends() {
    for kind in found(Wrong::TearsWrites) {
        let FaultKind::Torn { at, before, after } = kind else { panic!("{kind:?}") };
        assert_eq!(at, BLOCK / 2);
        assert!(before > after, "{before} {after}");
    }
}

#[test]
fn the_block_of_another_lba_is_misplaced() {
    let there = LBA as u64 + 1;
    assert!(
        found(Wrong::ReadsElsewhere)
            .iter()
            .all(|kind| matches!(kind, FaultKind::Misplaced { found_lba, .. } if *found_lba == there))
    );
}

#[test]
fn a_read_that_transfers_nothing_and_a_flipped_bit_are_found() {
    assert!(found(Wrong::ReadsNothing).contains(&FaultKind::Missing));
    assert!(found(Wrong::FlipsBit).iter().all(|kind| matches!(kind, FaultKind::Corrupt { at: 300, .. })));
}

#[test]
fn shadow_doorbells_spare_register_writes_and_interrupts_are_counted() {
    let disk = Arc::new(block::NullDevice::new(1 << 30, 512, false).unwrap());
    let mut bench = bench(disk);
    let plain = Workload { verify: false, completion: CompletionMode::Interrupt, ..workload(Rw::RandRead) };
    let mut row = |doorbells| measure(&mut bench, &plain, Point { doorbells, ..POINT }).unwrap().unwrap();
    let (register, shadow) = (row(DoorbellKind::Register), row(DoorbellKind::Shadow));
    for row in [&register, &shadow] {
        assert!(row.iops > 0.0 && row.latency_us.p50 > 0.0 && row.latency_us.p50 <= row.latency_us.p99_9, "{row:?}");
        assert!(row.interrupts_per_io > 0.0, "{row:?}");
        assert_eq!(row.device.unwrap().commands, row.driver.commands);
    }
    // A doorbell for each command, and one for each batch of completions.
    assert!(register.register_writes_per_io > 1.0, "{register:?}");
    assert!(shadow.register_writes_per_io < register.register_writes_per_io, "{shadow:?}");
}

#[test]
fn what_the_device_cannot_do_is_refused_with_the_option_to_change() {
    let mut bench = faulty(Wrong::Nothing);
    let base = workload(Rw::RandRead);
    for (workload, point, word) in [
        (Workload { block_bytes: 1000, ..base.clone() }, POINT, "--bs"),
        (Workload { block_bytes: 64 << 20, ..base.clone() }, POINT, "--bs"),
        (Workload { size: Some(1 << 40), ..base.clone() }, POINT, "--size"),
        (Workload { size: Some(512), ..base.clone() }, POINT, "too few"),
        (base.clone(), Point { numjobs: 65, ..POINT }, "--numjobs"),
        (base.clone(), Point { iodepth: 5000, ..POINT }, "--iodepth"),
    ] {
        let error = measure(&mut bench, &workload, point).unwrap_err();
        assert!(matches!(error, BenchError::Workload(_)) && error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_stop_before_anything_was_measured_gives_no_row() {
    let mut bench = faulty(Wrong::Nothing);
    let long = Workload {
        verify: false,
        runtime: Duration::from_secs(3600),
        ramp: Duration::from_secs(3600),
        ..workload(Rw::Read)
    };
    let row = bench.measure(&long, POINT, &AtomicBool::new(true), &mut |_| {}).unwrap();
    assert_eq!(row, None);
}
