//! Identify (NVMe Base 2.1 §5.1.13): every CNS on offer, what is refused, and data that spans pages.

use std::sync::Arc;

use nvme::{
    NSID_BROADCAST, Status,
    identify::{
        Cns, Csi, IdentifyController, IdentifyNamespace, IdentifyNamespaceIndependent, nsattr, nstat, oacs, oncs, vwc,
    },
    zerocopy::FromBytes,
};
use shadowbell_controller::{Config, DoorbellMode};

use crate::host::{Machine, Setup, commands, config, disk::GatedDisk, memory::Prps, ram};

fn identify(m: &mut Machine, cns: Cns, nsid: u32) -> Vec<u8> {
    m.fetch(4096, |prps| commands::identify(cns, nsid, prps))
}

fn refused(m: &mut Machine, cns: Cns, nsid: u32) -> Status {
    let (_, prps) = m.data(4096);
    m.status(0, commands::identify(cns, nsid, prps))
}

fn three() -> Machine {
    let mut c = Config::new("SER", vec![Arc::new(ram(512)), Arc::new(ram(4096))]);
    c.namespaces.push(Arc::new(GatedDisk::with(512, |c| {
        c.read_only = true;
        c.volatile_cache = true;
        c.discard_zeroes = false;
    })));
    c.model = "A model".into();
    Machine::boot(c, Setup::default())
}

#[test]
fn the_controller_describes_itself() {
    let mut m = three();
    let id = IdentifyController::read_from_bytes(&identify(&mut m, Cns::CONTROLLER, 0)).unwrap();
    assert_eq!((&id.sn, &id.mn[..9]), (b"SER                 ", &b"A model  "[..]));
    assert_eq!((id.vid.get(), id.ssvid.get()), (m.config_u16(0), m.config_u16(0x2c)));
    assert_eq!(id.ver.get(), 0x0002_0000);
    assert_eq!((id.sqes, id.cqes), (0x66, 0x44), "entries of 64 and 16 bytes");
    assert_eq!(id.nn.get(), 3);
    assert!(id.mdts == 0 || 4096u64 << id.mdts >= 512 << 10, "at least 512 KiB");
    assert_eq!((id.aerl_z, id.acl_z, id.cntrltype), (3, 3, IdentifyController::CNTRLTYPE_IO));
    assert_eq!(id.oacs.get(), oacs::DOORBELL_BUFFER_CONFIG);
    assert_eq!(id.oncs.get(), oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES | oncs::FEATURE_SAVE_SELECT);
    assert_eq!(id.vwc, vwc::PRESENT | vwc::FLUSH_BROADCAST_SUPPORTED);
    assert_eq!(id.tnvmcap.get(), 3 * (4 << 20));
    // macOS wants power state 0.
    assert!(id.npss_z == 0 && id.psd[0].mp.get() > 0);
    assert!(id.wctemp.get() > 300 && id.cctemp.get() > id.wctemp.get());
    assert!(id.subnqn.starts_with(b"nqn.2014-08.org.nvmexpress:uuid:"));
}

#[test]
fn what_is_not_on_offer_is_in_no_list() {
    let mut c = config(ram(512));
    c.doorbells = DoorbellMode::Register;
    let mut m = Machine::boot(c, Setup::default());
    let id = IdentifyController::read_from_bytes(&identify(&mut m, Cns::CONTROLLER, 0)).unwrap();
    assert_eq!((id.oacs.get(), id.vwc & vwc::PRESENT), (0, 0));
}

#[test]
fn namespaces_describe_themselves() {
    let mut m = three();
    for (nsid, lbads, blocks) in [(1, 9, 8192), (2, 12, 1024), (3, 9, 8192)] {
        let raw = identify(&mut m, Cns::NAMESPACE, nsid);
        let id = IdentifyNamespace::read_from_bytes(&raw).unwrap();
        assert_eq!((id.nsze.get(), id.ncap.get(), id.nuse.get()), (blocks, blocks, blocks));
        assert_eq!((id.nlbaf_z, id.flbas, id.lbaf[0].lbads, id.lbaf[0].ms.get()), (0, 0, lbads, 0));
        assert_eq!(id.nvmcap.get(), 4 << 20);
        let protected = id.nsattr & nsattr::WRITE_PROTECTED != 0;
        assert_eq!(protected, nsid == 3);
        assert_eq!(id.dlfeat & 7, u8::from(nsid != 3), "deallocated blocks read as zeros");
        let raw = identify(&mut m, Cns::INDEPENDENT_NAMESPACE, nsid);
        let independent = IdentifyNamespaceIndependent::read_from_bytes(&raw).unwrap();
        assert_eq!((independent.nsattr, independent.nstat), (id.nsattr, nstat::READY));
        // The same NGUID as in the descriptors, whose list ends in zeros.
        let list = identify(&mut m, Cns::NAMESPACE_DESCRIPTORS, nsid);
        assert_eq!((&list[..4], &list[4..20]), (&[2, 16, 0, 0][..], &id.nguid[..]));
        assert_eq!((&list[20..24], &list[40..46]), (&[3, 16, 0, 0][..], &[4, 1, 0, 0, Csi::NVM.0, 0][..]));
        assert!(id.nguid != [0; 16] && list[45..].iter().all(|b| *b == 0));
    }
}

#[test]
fn identifiers_follow_from_the_serial_number_and_the_nsid() {
    let nguid = |serial: &str, nsid| {
        let mut m = Machine::boot(Config::new(serial, vec![Arc::new(ram(512)), Arc::new(ram(512))]), Setup::default());
        identify(&mut m, Cns::NAMESPACE, nsid)[104..120].to_vec()
    };
    assert_eq!(nguid("A", 1), nguid("A", 1));
    assert_ne!(nguid("A", 1), nguid("A", 2));
    assert_ne!(nguid("A", 1), nguid("B", 1));
}

#[test]
fn lists_of_namespaces_start_above_the_nsid_that_was_given() {
    let mut m = three();
    for cns in [Cns::ACTIVE_NAMESPACE_LIST, Cns::COMMAND_SET_ACTIVE_NAMESPACE_LIST] {
        for (after, expected) in [(0, vec![1, 2, 3]), (1, vec![2, 3]), (3, vec![]), (0xffff_fffd, vec![])] {
            let list: Vec<u32> = identify(&mut m, cns, after)
                .as_chunks::<4>()
                .0
                .iter()
                .map(|raw| u32::from_le_bytes(*raw))
                .take_while(|nsid| *nsid != 0)
                .collect();
            assert_eq!(list, expected, "{cns} after {after:#x}");
        }
        for after in [0xffff_fffe, NSID_BROADCAST] {
            assert_eq!(refused(&mut m, cns, after), Status::INVALID_NAMESPACE.with_dnr());
        }
    }
}

#[test]
fn nsids_outside_of_nn_are_refused() {
    let mut m = three();
    for cns in [Cns::NAMESPACE, Cns::NAMESPACE_DESCRIPTORS, Cns::COMMAND_SET_NAMESPACE, Cns::INDEPENDENT_NAMESPACE] {
        for nsid in [0, 4, 0x8000_0000, NSID_BROADCAST] {
            assert_eq!(refused(&mut m, cns, nsid), Status::INVALID_NAMESPACE.with_dnr(), "{cns}, {nsid:#x}");
        }
    }
}

/// With no namespace, NN still is 1: NSID 1 is valid and inactive, and answers with zeros.
#[test]
fn an_inactive_namespace_is_zeros() {
    let mut c = config(ram(512));
    c.namespaces.clear();
    let mut m = Machine::boot(c, Setup::default());
    assert!(identify(&mut m, Cns::NAMESPACE, 1).iter().all(|b| *b == 0));
    assert!(identify(&mut m, Cns::ACTIVE_NAMESPACE_LIST, 0).iter().all(|b| *b == 0));
    assert_eq!(refused(&mut m, Cns::NAMESPACE_DESCRIPTORS, 1), Status::INVALID_FIELD.with_dnr());
}

#[test]
fn the_nvm_command_set_is_the_only_one() {
    let mut m = three();
    assert!(identify(&mut m, Cns::COMMAND_SET_CONTROLLER, 0).iter().all(|b| *b == 0), "no limits of its own");
    assert!(identify(&mut m, Cns::COMMAND_SET_NAMESPACE, 1).iter().all(|b| *b == 0));
    assert_eq!(identify(&mut m, Cns::IO_COMMAND_SETS, 0)[..9], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
    for cns in [Cns::COMMAND_SET_CONTROLLER, Cns::COMMAND_SET_NAMESPACE, Cns::COMMAND_SET_ACTIVE_NAMESPACE_LIST] {
        let (_, prps) = m.data(4096);
        let mut sqe = commands::identify(cns, 1, prps);
        sqe.cdw11 = (u32::from(Csi::ZONED.0) << 24).into();
        assert_eq!(m.status(0, sqe), Status::INVALID_FIELD.with_dnr(), "{cns}");
    }
}

#[test]
fn every_cns_is_answered_or_refused() {
    let mut m = three();
    let known = [0x00, 0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x08, 0x1c];
    let (_, prps) = m.data(4096);
    for cns in 0..=255 {
        let status = m.status(0, commands::identify(Cns(cns), 1, prps));
        let expected = if known.contains(&cns) { Status::SUCCESS } else { Status::INVALID_FIELD.with_dnr() };
        assert_eq!(status, expected, "CNS {cns:#x}");
    }
}

/// PRP1 may have any dword offset, and then the page spans two.
#[test]
fn data_may_span_two_pages() {
    let mut m = three();
    let whole = identify(&mut m, Cns::CONTROLLER, 0);
    for offset in [4, 0x104, 0xffc] {
        // The second page does not follow the first.
        let (first, _gap, second) = (m.buffer(4096), m.buffer(4096), m.buffer(4096));
        m.ok(0, commands::identify(Cns::CONTROLLER, 0, Prps { prp1: first + offset, prp2: second }));
        let here = usize::try_from(4096 - offset).unwrap();
        let mut got = m.memory.read(first + offset, here);
        got.extend(m.memory.read(second, 4096 - here));
        assert!(got == whole, "offset {offset:#x}");
    }
}

#[test]
fn bad_pointers_fail_and_change_nothing() {
    let mut m = three();
    let (nowhere, page) = (m.memory.nowhere(), m.buffer(4096));
    for (prp1, prp2, status) in [
        (nowhere, 0, Status::DATA_TRANSFER_ERROR),
        (nowhere - 8, nowhere, Status::DATA_TRANSFER_ERROR),
        (page + 8, nowhere, Status::DATA_TRANSFER_ERROR),
        (u64::MAX - 3, 0, Status::DATA_TRANSFER_ERROR),
        (page + 1, 0, Status::INVALID_PRP_OFFSET),
        (page + 8, page + 8, Status::INVALID_PRP_OFFSET),
    ] {
        let sqe = commands::identify(Cns::CONTROLLER, 0, Prps { prp1, prp2 });
        assert_eq!(m.status(0, sqe), status.with_dnr(), "{prp1:#x}, {prp2:#x}");
    }
    assert!(m.memory.read(page, 4096).iter().all(|b| *b == 0));
}
