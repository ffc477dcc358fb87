//! Guests that mean harm: whatever they send, nothing panics, nothing outside of their memory is touched, and a reset brings
//! back a working controller.

use nvme::{SubmissionQueueEntry, identify::Cns, registers::offset};
use pci::PciFunction;

use crate::host::{Bells, Machine, Setup, Signal, commands, config, disk::GatedDisk, memory::Layout, random::Random};

fn machine(seed: u64) -> (Machine, GatedDisk) {
    let disk = GatedDisk::with(512, |c| c.volatile_cache = true);
    let mut c = config(disk.clone());
    c.io_queues = 8;
    c.queue_entries = 64;
    let layout = Layout::ALL[usize::try_from(seed % 3).unwrap()];
    let mut m = Machine::boot(c, Setup { layout, signal: Signal::Polled, ..Setup::default() });
    m.create_pair(1, 16, Bells::Register);
    (m, disk)
}

/// After anything: a device reset, and all works.
fn still_works(m: &mut Machine, disk: &GatedDisk) {
    disk.open_gate();
    m.function.reset();
    m.wake();
    m.settle();
    assert!(m.function.is_quiet());
    m.forget();
    m.set_up_pci();
    m.enable();
    let page = m.fetch(4096, |prps| commands::identify(Cns::CONTROLLER, 0, prps));
    assert_eq!(&page[4..12], b"TEST0001");
    for bells in [Bells::Register, Bells::Slot] {
        m.create_pair(1, 16, bells);
        m.write_blocks(1, 7, &[3; 4096], 512);
        assert_eq!(m.read_blocks(1, 7, 8, 512), [3; 4096]);
        m.delete_pair(1);
        m.use_shadow_doorbells();
    }
}

/// An address that is often nearly right.
fn address(random: &mut Random, m: &Machine, base: u64) -> u64 {
    let in_ram = base + random.below(m.memory.nowhere() - base);
    match random.below(8) {
        0 => random.next(),
        1 => u64::MAX - random.below(8192),
        2 => m.memory.nowhere() - random.below(8192),
        3 => in_ram,
        4 => in_ram & !3,
        _ => in_ram & !0xfff,
    }
}

fn dword(random: &mut Random) -> u32 {
    match random.below(6) {
        0 => 0,
        1 => u32::MAX,
        2 => 1 << random.below(32),
        3 => u32::try_from(random.below(16)).unwrap(),
        4 => u32::try_from(random.below(16)).unwrap() << 16 | u32::try_from(random.below(16)).unwrap(),
        _ => random.dword(),
    }
}

fn garbage(random: &mut Random, m: &Machine, base: u64) -> SubmissionQueueEntry {
    SubmissionQueueEntry {
        opcode: u8::try_from(random.below(256)).unwrap(),
        flags: if random.one_in(8) { u8::try_from(random.below(256)).unwrap() } else { 0 },
        cid: u16::try_from(random.below(5)).unwrap().into(),
        nsid: random.pick(&[0, 1, 1, 1, 2, 0xffff_ffff, 0xffff_fffe]).into(),
        mptr: random.next().into(),
        prp1: address(random, m, base).into(),
        prp2: address(random, m, base).into(),
        cdw10: dword(random).into(),
        cdw11: dword(random).into(),
        cdw12: dword(random).into(),
        cdw13: dword(random).into(),
        cdw14: dword(random).into(),
        cdw15: dword(random).into(),
        ..Default::default()
    }
}

/// A queue of the hostile host's own: it looks at no completion, and follows the phase only to make room.
struct RawQueue {
    qid: u16,
    sq: u64,
    cq: u64,
    entries: u32,
    tail: u32,
    head: u32,
}

impl RawQueue {
    fn submit(&mut self, m: &mut Machine, sqe: SubmissionQueueEntry) {
        m.memory.window(self.sq + u64::from(self.tail) * 64, 64).store_words(0, sqe.to_words()).unwrap();
        self.tail = (self.tail + 1) % self.entries;
        m.write_sq_doorbell(self.qid, self.tail);
        // Up to what was completed, if this is a ring that the device still knows.
        m.settle();
        self.head = (self.head + 1) % self.entries;
        m.write_cq_doorbell(self.qid, self.head);
    }
}

/// Every opcode with random dwords, on the admin queue.
#[test]
fn random_admin_commands() {
    for seed in 0..24 {
        let (mut m, disk) = machine(seed);
        let mut random = Random::new(seed);
        let base = m.sqs[&0].base;
        let mut raw = RawQueue {
            qid: 0,
            sq: base,
            cq: m.cqs[&0].base,
            entries: 32,
            tail: m.sqs[&0].tail.into(),
            head: m.cqs[&0].head.into(),
        };
        assert_ne!(raw.sq, raw.cq);
        for opcode in 0..=255 {
            let sqe = SubmissionQueueEntry { opcode, ..garbage(&mut random, &m, base) };
            raw.submit(&mut m, sqe);
        }
        for _ in 0..300 {
            // Mostly those that the controller knows.
            let opcode = random.pick(&[0, 1, 2, 4, 5, 6, 8, 9, 0xa, 0xc, 0x7c, 0x7c]);
            let sqe = SubmissionQueueEntry { opcode, ..garbage(&mut random, &m, base) };
            raw.submit(&mut m, sqe);
        }
        still_works(&mut m, &disk);
    }
}

#[test]
fn random_io_commands() {
    for seed in 0..24 {
        let (mut m, disk) = machine(seed);
        let mut random = Random::new(seed + 100);
        let base = m.sqs[&0].base;
        let mut raw = RawQueue { qid: 1, sq: m.sqs[&1].base, cq: m.cqs[&1].base, entries: 16, tail: 0, head: 0 };
        assert_ne!(raw.sq, raw.cq);
        for n in 0..500u64 {
            let opcode = if n < 256 { u8::try_from(n).unwrap() } else { random.pick(&[0, 1, 2, 8, 9]) };
            let sqe = SubmissionQueueEntry { opcode, ..garbage(&mut random, &m, base) };
            raw.submit(&mut m, sqe);
        }
        still_works(&mut m, &disk);
    }
}

/// Register reads and writes of 1, 2, 4, 8 and odd widths at every offset (CVE-2018-16847 was the last byte of a region).
#[test]
fn register_accesses_of_every_width_and_offset() {
    let (mut m, disk) = machine(0);
    let bars = m.function.bars();
    for (slot, bar) in bars.iter().enumerate().filter_map(|(slot, bar)| bar.map(|bar| (slot, bar))) {
        for width in [1usize, 2, 3, 4, 8, 16, 64] {
            for at in (0..0x200).chain(0xff0..0x1020).chain(0x1200..0x1220).chain(bar.size - 0x80..bar.size) {
                if at + width as u64 <= bar.size {
                    let mut data = [0xa5; 64];
                    m.function.bar_read(slot, at, &mut data[..width]);
                }
            }
        }
    }
    // Parts of a register are what they are in the whole; unaligned writes are no writes.
    let cap = m.read64(offset::CAP).to_le_bytes();
    for at in 0..8 {
        let mut byte = [0];
        m.function.bar_read(0, at, &mut byte);
        assert_eq!(byte[0], cap[usize::try_from(at).unwrap()]);
    }
    for (at, data) in [(0x14, &[0][..]), (0x14, &[0, 0]), (0x15, &[0; 4]), (0x12, &[0; 4]), (0x24, &[0; 3])] {
        m.function.bar_write(0, at, data);
    }
    assert!(m.csts().rdy());
    // The whole BAR in one write: CC.EN is cleared among others.
    m.function.bar_write(0, 0, &[0; 0x4000]);
    m.function.bar_write(0, 0, &[0xff; 0x4000]);
    m.function.bar_write(4, 0, &[0xff; 0x8000]);
    m.wake();
    m.settle();
    still_works(&mut m, &disk);
}

#[test]
fn random_registers_and_doorbells() {
    for seed in 0..60 {
        let (mut m, disk) = machine(seed);
        let mut random = Random::new(seed + 7);
        let base = m.sqs[&0].base;
        for _ in 0..400 {
            match random.below(10) {
                0..4 => {
                    let at = 0x1000 + 4 * random.below(40);
                    m.write32(at, dword(&mut random));
                }
                4 => m.write32(4 * random.below(0x1000), dword(&mut random)),
                5 => {
                    let at = random.pick(&[offset::AQA, offset::ASQ, offset::ASQ + 4, offset::ACQ, offset::ACQ + 4]);
                    m.write32(at, dword(&mut random));
                }
                6 => {
                    let at = random.pick(&[offset::ASQ, offset::ACQ]);
                    let value = address(&mut random, &m, base);
                    m.write64(at, value);
                }
                7 => {
                    let cc = m.cc().0;
                    let other = dword(&mut random);
                    let value = random.pick(&[0, cc, cc ^ 1 << 14, cc ^ 1 << 7, other]);
                    m.write32(offset::CC, value);
                }
                8 => {
                    let at = u16::try_from(random.below(4096)).unwrap();
                    let len = random.index(9);
                    let bytes = random.bytes(len);
                    m.config_write(at, &bytes);
                }
                _ => {
                    let bar = random.pick(&[0, 4]);
                    let len = random.index(17);
                    let bytes = random.bytes(len);
                    m.function.bar_write(bar, random.below(0x4000 - 32), &bytes);
                }
            }
            if random.one_in(3) {
                m.turn();
            }
        }
        m.settle();
        still_works(&mut m, &disk);
    }
}

/// Both rings and EventIdx in the same page, slots in another ring: the device overwrites its own commands.
#[test]
fn everything_in_one_page() {
    for seed in 0..20 {
        let (mut m, disk) = machine(seed);
        let mut random = Random::new(seed);
        let page = m.buffer(4096);
        m.memory.write(page, &random.bytes(4096));
        m.ok(0, commands::create_cq(2, 64, page, None));
        m.ok(0, commands::create_sq(2, 64, page, 2));
        let shadow = if seed % 2 == 0 { m.buffer(4096) } else { m.sqs[&1].base };
        m.ok(0, commands::doorbell_buffer_config(shadow, page));
        for _ in 0..200 {
            m.memory.write(page + 4 * random.below(1000), &random.bytes(16));
            m.write_sq_doorbell(2, dword(&mut random));
            m.write_cq_doorbell(2, dword(&mut random));
            for _ in 0..5 {
                m.turn();
            }
        }
        still_works(&mut m, &disk);
    }
}

/// The host changes slots behind the device's back, all the time.
#[test]
fn slots_of_noise() {
    for seed in 0..20 {
        let (mut m, disk) = machine(seed);
        let mut random = Random::new(seed);
        let (shadow, event) = (m.buffer(4096), m.buffer(4096));
        m.ok(0, commands::doorbell_buffer_config(shadow, event));
        for _ in 0..500 {
            let slot = 4 * random.below(6);
            let value = if random.one_in(4) { random.dword() } else { u32::try_from(random.below(20)).unwrap() };
            m.memory.write(shadow + slot, &value.to_le_bytes());
            m.memory.write(event + slot, &random.bytes(4));
            m.wake();
            for _ in 0..4 {
                m.turn();
            }
        }
        // It does sleep when the noise ends.
        m.settle();
        still_works(&mut m, &disk);
    }
}

#[test]
fn a_disk_that_stalls_under_a_hostile_guest() {
    for seed in 0..12 {
        let (mut m, disk) = machine(seed);
        let mut random = Random::new(seed + 50);
        let base = m.sqs[&0].base;
        disk.close_gate();
        disk.limit(3);
        for _ in 0..300 {
            let at = m.sqs[&1].base + 64 * random.below(16);
            let opcode = random.pick(&[0, 1, 2, 8, 9]);
            let sqe = SubmissionQueueEntry { opcode, ..garbage(&mut random, &m, base) };
            m.memory.window(at, 64).store_words(0, sqe.to_words()).unwrap();
            m.write_sq_doorbell(1, u32::try_from(random.below(16)).unwrap());
            m.write_cq_doorbell(1, u32::try_from(random.below(16)).unwrap());
            m.turn();
            if random.one_in(8) {
                disk.release_randomly(&mut random);
            }
        }
        disk.limit(usize::MAX);
        still_works(&mut m, &disk);
    }
}
