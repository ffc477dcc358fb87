//! Get Log Page (NVMe Base 2.1 §5.1.12).

use nvme::{
    Status,
    identify::Csi,
    logs::{ErrorLogEntry, FirmwareSlotLog, LogId, SmartLog, critical_warning, effects, supported_log},
    zerocopy::FromBytes,
};

use shadowbell_controller::DoorbellMode;

use crate::host::{Bells, Machine, Setup, commands, config, memory::Prps, ram, random::Random};

/// The pages that exist, with their sizes in bytes.
const PAGES: [(LogId, u64); 8] = [
    (LogId::SUPPORTED_LOG_PAGES, 1024),
    (LogId::ERROR, 64 * 64),
    (LogId::SMART, 512),
    (LogId::FIRMWARE_SLOT, 512),
    (LogId::CHANGED_NAMESPACES, 4096),
    (LogId::COMMAND_EFFECTS, 4096),
    (LogId::FEATURE_EFFECTS, 1024),
    (LogId::NVME_MI_EFFECTS, 4096),
];

fn machine() -> Machine {
    let mut m = Machine::boot(config(ram(512)), Setup::default());
    m.create_pair(1, 16, Bells::Register);
    m
}

fn log(m: &mut Machine, lid: LogId, bytes: u64) -> Vec<u8> {
    m.fetch(bytes, |prps| commands::get_log(lid, 0, bytes, prps))
}

fn dword(page: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(page[index * 4..][..4].try_into().unwrap())
}

#[test]
fn supported_log_pages_lists_exactly_what_there_is() {
    let mut m = machine();
    let list = log(&mut m, LogId::SUPPORTED_LOG_PAGES, 1024);
    for lid in 0..=255u8 {
        let (_, prps) = m.data(512);
        let status = m.status(0, commands::get_log(LogId(lid), 0, 512, prps));
        let known = PAGES.iter().any(|(known, _)| known.0 == lid);
        assert_eq!(dword(&list, lid.into()), if known { supported_log::SUPPORTED } else { 0 }, "{lid:#x}");
        let expected = if known { Status::SUCCESS } else { Status::INVALID_LOG_PAGE.with_dnr() };
        assert_eq!(status, expected, "{lid:#x}");
    }
}

/// CVE-2021-3947 and CVE-2023-4135 were wild offsets here.
#[test]
fn offsets_and_lengths_are_checked_and_what_is_past_the_end_is_zeros() {
    let mut m = machine();
    // Something to see in the error log.
    m.execute(1, commands::read(u64::MAX, 1, Prps::default()));
    let invalid = Status::INVALID_FIELD.with_dnr();
    for (lid, size) in PAGES {
        let whole = log(&mut m, lid, size);
        for (offset, bytes) in [(0, 4), (4, 8), (size - 4, 4), (size - 4, 64), (size, 4), (8, size), (0, 64 << 10)] {
            let (buffer, prps) = m.data(bytes);
            m.memory.write(buffer, &vec![0xee; usize::try_from(bytes).unwrap()]);
            m.ok(0, commands::get_log(lid, offset, bytes, prps));
            let mut expected = whole[usize::try_from(offset).unwrap()..].to_vec();
            expected.resize(usize::try_from(bytes).unwrap(), 0);
            assert!(m.memory.read(buffer, expected.len()) == expected, "{lid} {offset:#x}+{bytes:#x}");
        }
        let (_, prps) = m.data(4096);
        for offset in [1, 2, size + 4, size + 1, 1 << 32, u64::MAX - 3, u64::MAX] {
            assert_eq!(m.status(0, commands::get_log(lid, offset, 512, prps)), invalid, "{lid} {offset:#x}");
        }
        for bytes in [(1 << 20) + 4, 1 << 32, 1 << 34] {
            assert_eq!(m.status(0, commands::get_log(lid, 0, bytes, prps)), invalid, "{lid} {bytes:#x}");
        }
        // No page here has an index for its offset.
        let mut by_index = commands::get_log(lid, 0, 512, prps);
        by_index.cdw14 = (1 << 23).into();
        assert_eq!(m.status(0, by_index), invalid);
    }
}

#[test]
fn the_smart_log_counts_what_was_done() {
    let mut m = machine();
    for lba in 0..3 {
        m.write_blocks(1, lba, &[1; 512], 512);
    }
    m.read_blocks(1, 0, 8, 512);
    m.read_blocks(1, 0, 1024, 512);
    m.execute(1, commands::read(u64::MAX, 1, Prps::default()));
    let smart = SmartLog::read_from_bytes(&log(&mut m, LogId::SMART, 512)).unwrap();
    assert_eq!((smart.host_reads.get(), smart.host_writes.get()), (2, 3));
    // Thousands of 512 bytes, rounded up (NVMe Base 2.1 §5.1.12.1.3).
    assert_eq!((smart.data_units_read.get(), smart.data_units_written.get()), (2, 1));
    assert_eq!((smart.error_log_entries.get(), smart.media_errors.get()), (1, 0));
    assert_eq!((smart.critical_warning, smart.available_spare, smart.percentage_used), (0, 100, 0));
    assert!(smart.composite_temperature.get() > 273 && smart.power_cycles.get() == 1);
}

#[test]
fn the_smart_log_is_one_of_the_controller() {
    let mut m = machine();
    let (_, prps) = m.data(512);
    for (nsid, status) in [(0, Status::SUCCESS), (1, Status::INVALID_FIELD.with_dnr())] {
        let mut sqe = commands::get_log(LogId::SMART, 0, 512, prps);
        sqe.nsid = nsid.into();
        assert_eq!(m.status(0, sqe), status);
    }
}

#[test]
fn a_temperature_past_its_threshold_is_a_critical_warning() {
    let mut m = machine();
    m.ok(0, commands::set_feature(nvme::features::FeatureId::TEMPERATURE_THRESHOLD, 280));
    assert_eq!(log(&mut m, LogId::SMART, 512)[0], critical_warning::TEMPERATURE);
}

#[test]
fn the_error_log_has_the_newest_first_and_64_at_most() {
    let mut m = machine();
    let first = m.submit(1, commands::read(0x1234_5678_9abc, 1, Prps::default()));
    m.wait(1, first);
    let second = m.submit(0, commands::delete_sq(77));
    m.wait(0, second);
    let page = log(&mut m, LogId::ERROR, 192);
    let entry = |i: usize| ErrorLogEntry::read_from_bytes(&page[i * 64..][..64]).unwrap();
    assert_eq!((entry(0).error_count.get(), entry(0).sqid.get(), entry(0).cid.get()), (2, 0, second));
    assert_eq!((entry(1).error_count.get(), entry(1).sqid.get(), entry(1).cid.get()), (1, 1, first));
    assert_eq!((entry(1).nsid.get(), entry(1).lba.get()), (1, 0x1234_5678_9abc));
    assert_eq!(entry(1).status_phase.get() >> 1, Status::LBA_OUT_OF_RANGE.with_dnr().0);
    assert_eq!(entry(2).error_count.get(), 0, "an entry of count 0 is none");
    for _ in 0..100 {
        m.execute(1, commands::read(u64::MAX, 1, Prps::default()));
    }
    let page = log(&mut m, LogId::ERROR, 64 * 64);
    for i in 0..64 {
        assert_eq!(u64::from_le_bytes(page[i * 64..][..8].try_into().unwrap()), 102 - i as u64);
    }
}

#[test]
fn the_firmware_log_names_the_revision_of_identify() {
    let mut m = machine();
    let page = FirmwareSlotLog::read_from_bytes(&log(&mut m, LogId::FIRMWARE_SLOT, 512)).unwrap();
    let id = m.fetch(4096, |prps| commands::identify(nvme::identify::Cns::CONTROLLER, 0, prps));
    assert_eq!((page.afi, &page.frs[0][..]), (1, &id[64..72]));
}

#[test]
fn commands_in_the_effects_log_are_those_that_are_carried_out() {
    for mode in [DoorbellMode::Shadow, DoorbellMode::Mapped, DoorbellMode::Register] {
        let mut c = config(ram(512));
        c.doorbells = mode;
        let mut m = Machine::boot(c, Setup::default());
        m.create_pair(1, 16, Bells::Register);
        let page = log(&mut m, LogId::COMMAND_EFFECTS, 4096);
        let supported = |index: usize| dword(&page, index) & effects::SUPPORTED != 0;
        assert_eq!(supported(0x7c), mode == DoorbellMode::Shadow);
        let change = effects::BLOCK_CONTENT_CHANGE;
        assert!(dword(&page, 256 + 1) & change != 0 && dword(&page, 256 + 2) & change == 0);
        let unknown = Status::INVALID_OPCODE.with_dnr();
        for opcode in 0..=255u8 {
            // Event requests wait.
            if opcode != 0x0c {
                let sqe = nvme::SubmissionQueueEntry { opcode, nsid: 77.into(), ..Default::default() };
                assert_eq!(m.status(0, sqe) != unknown, supported(opcode.into()), "admin {opcode:#x}");
                assert_eq!(m.status(1, sqe) != unknown, supported(256 + usize::from(opcode)), "I/O {opcode:#x}");
            }
        }
        // Of another command set, there are no I/O commands.
        let page = m.fetch(4096, |prps| {
            let mut sqe = commands::get_log(LogId::COMMAND_EFFECTS, 0, 4096, prps);
            sqe.cdw14 = (u32::from(Csi::ZONED.0) << 24).into();
            sqe
        });
        assert!(page[1024..].iter().all(|b| *b == 0));
    }
}

/// LPA bit 5 promises this page.
#[test]
fn the_feature_effects_log_lists_exactly_the_features_that_answer() {
    let mut m = machine();
    let page = log(&mut m, LogId::FEATURE_EFFECTS, 1024);
    for fid in 0..=255u8 {
        let mut sqe = commands::get_feature(nvme::features::FeatureId(fid), nvme::features::Select::CURRENT, 0);
        sqe.nsid = 1.into();
        let answers = m.status(0, sqe).is_success();
        assert_eq!(dword(&page, fid.into()) & effects::SUPPORTED != 0, answers, "{fid:#x}");
    }
    assert_eq!(dword(&page, 5), effects::SUPPORTED | effects::SCOPE_NAMESPACE);
}

#[test]
fn random_requests_never_write_outside_of_their_buffer() {
    let mut m = machine();
    let mut random = Random::new(5);
    let buffer = m.buffer(4 << 20);
    for _ in 0..2000 {
        let bytes = 4 * (1 + random.below(2048));
        let at = buffer + (1 << 20) + 4 * random.below(2048);
        let prps = m.memory.prps(4096, at, bytes);
        let lid = LogId(random.pick(&[0, 1, 2, 3, 4, 5, 0x12, 0x13, 6]));
        let offset = if random.one_in(4) { random.next() } else { random.below(8192) };
        m.memory.write(at - 4, &[0xcc; 4]);
        m.memory.write(at + bytes, &[0xcc; 4]);
        m.execute(0, commands::get_log(lid, offset, bytes, prps));
        assert_eq!((m.memory.read(at - 4, 4), m.memory.read(at + bytes, 4)), (vec![0xcc; 4], vec![0xcc; 4]));
        if m.memory.nowhere() - m.memory.alloc(0, 8) < (1 << 20) {
            break;
        }
    }
}
