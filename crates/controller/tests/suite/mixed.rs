//! Random interleavings of everything that a host can do to a healthy controller: no command is lost, doubled or invented,
//! no wake-up and no interrupt is lost.

use nvme::registers::offset;

use crate::host::{Bells, Machine, Setup, Signal, commands, config, disk::GatedDisk, memory::Layout, random::Random};

const BELLS: [Bells; 3] = [Bells::Register, Bells::Slot, Bells::Both];
const QUEUES: u16 = 4;

struct Story {
    m: Machine,
    disk: GatedDisk,
    random: Random,
    log: Vec<String>,
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let disk = GatedDisk::new(512);
        disk.limit(1 + random.index(12));
        let setup = Setup {
            layout: random.pick(&Layout::ALL),
            signal: random.pick(&[Signal::Msix, Signal::Intx, Signal::Polled]),
            admin_depth: random.pick(&[2, 3, 16]),
            mps: random.pick(&[0, 1]),
            ..Setup::default()
        };
        let m = Machine::boot(config(disk.clone()), setup);
        Self { m, disk, random, log: vec![format!("seed {seed}, {setup:?}")] }
    }

    fn queue(&mut self) -> Option<u16> {
        let ids: Vec<u16> = self.m.sqs.keys().copied().filter(|qid| *qid != 0).collect();
        (!ids.is_empty()).then(|| self.random.pick(&ids))
    }

    fn finish_io(&mut self) {
        self.disk.open_gate();
        let ids: Vec<u16> = self.m.sqs.keys().copied().collect();
        for qid in ids {
            self.m.ring(qid);
            self.m.drain(qid);
        }
    }

    fn step(&mut self) {
        let what = self.random.below(100);
        match what {
            0..30 => {
                if let Some(qid) = self.queue() {
                    for _ in 0..1 + self.random.below(5) {
                        if self.m.sqs[&qid].room() > 0 {
                            self.m.push(qid, commands::write_zeroes(self.random.below(8192), 1));
                        }
                    }
                    if !self.random.one_in(6) {
                        self.m.ring(qid);
                    }
                }
            }
            30..55 => {
                for _ in 0..1 + self.random.below(4) {
                    self.m.turn();
                }
            }
            55..70 => self.m.serve_interrupts(),
            70..78 => self.disk.release_randomly(&mut self.random),
            78..81 => self.disk.close_gate(),
            81..83 => self.disk.open_gate(),
            83..87 => {
                self.m.use_shadow_doorbells();
                self.log.push("7Ch".into());
            }
            87..92 => self.create(),
            92..94 => self.delete(),
            94..97 => self.move_memory(),
            97 => self.reset(),
            _ => self.m.settle_and_serve(),
        }
        self.m.completed.retain(|c| c.sqid.get() == 0);
    }

    fn create(&mut self) {
        let qid = u16::try_from(1 + self.random.below(QUEUES.into())).unwrap();
        if self.m.sqs.contains_key(&qid) {
            return;
        }
        let (sq, cq) = (self.random.pick(&BELLS), self.random.pick(&BELLS));
        let (sq_depth, cq_depth) = (self.random.pick(&[2, 3, 5, 16, 33]), self.random.pick(&[2, 3, 4, 16]));
        // Sometimes two SQs share a CQ.
        let cqid = if self.random.one_in(3) { 1 } else { qid };
        self.log.push(format!("create {qid} on {cqid}: {sq:?} {sq_depth}, {cq:?} {cq_depth}"));
        if !self.m.cqs.contains_key(&cqid) {
            self.m.create_cq(cqid, cq_depth, cq);
        }
        self.m.create_sq(qid, sq_depth, cqid, sq);
    }

    fn delete(&mut self) {
        let Some(qid) = self.queue() else { return };
        self.log.push(format!("delete {qid}"));
        self.finish_io();
        let cqid = self.m.sqs[&qid].cqid;
        self.m.ok(0, commands::delete_sq(qid));
        self.m.sqs.remove(&qid);
        if self.m.sqs.values().all(|sq| sq.cqid != cqid) {
            self.m.ok(0, commands::delete_cq(cqid));
            self.m.cqs.remove(&cqid);
        }
    }

    /// Takes all memory away for some turns, as firmware does when it moves a BAR over it.
    fn move_memory(&mut self) {
        self.m.memory.hide();
        self.m.update_memory();
        for _ in 0..self.random.below(6) {
            if self.random.one_in(2) {
                self.disk.release_randomly(&mut self.random);
            }
            self.m.turn();
        }
        if self.random.one_in(2) {
            self.log.push("memory comes back".into());
            self.m.memory.show();
        } else {
            self.log.push("memory moves".into());
            self.m.memory.show_elsewhere();
            self.m.attach_all();
        }
        self.m.update_memory();
    }

    fn reset(&mut self) {
        self.log.push("reset".into());
        let cc = self.m.cc().with_en(false);
        self.m.write32(offset::CC, cc.0);
        for _ in 0..self.random.below(5) {
            self.m.turn();
        }
        self.disk.open_gate();
        let mut turns = 0;
        while self.m.csts().rdy() {
            assert!(self.m.turn(), "RDY never clears");
            turns += 1;
            assert!(turns < 10_000);
        }
        self.m.forget();
        self.m.enable();
    }
}

/// Tells the story of a run that failed.
#[allow(clippy::print_stderr, reason = "what a failed test has to say")]
impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log.join("\n"));
        }
    }
}

#[test]
fn no_command_is_lost_doubled_or_invented() {
    for seed in 0..70 {
        let mut story = Story::new(seed);
        for _ in 0..250 {
            story.step();
        }
        story.log.push("the end".into());
        story.finish_io();
        for qid in 1..=QUEUES {
            if story.m.sqs.contains_key(&qid) {
                story.m.ok(qid, commands::write_zeroes(0, 1));
            }
        }
    }
}
