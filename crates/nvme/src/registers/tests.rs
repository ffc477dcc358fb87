use super::*;

#[test]
fn property_offsets_are_those_of_the_specification() {
    // NVMe Base 2.1 §3.1.4, the table of properties.
    assert_eq!(
        [offset::CAP, offset::VS, offset::INTMS, offset::INTMC, offset::CC, offset::CSTS, offset::NSSR],
        [0x00, 0x08, 0x0c, 0x10, 0x14, 0x1c, 0x20]
    );
    assert_eq!([offset::AQA, offset::ASQ, offset::ACQ], [0x24, 0x28, 0x30]);
    assert_eq!(
        [offset::CMBLOC, offset::CMBSZ, offset::BPINFO, offset::BPRSEL, offset::BPMBL],
        [0x38, 0x3c, 0x40, 0x44, 0x48]
    );
    assert_eq!([offset::CMBMSC, offset::CMBSTS, offset::CMBEBS, offset::CMBSWTP], [0x50, 0x58, 0x5c, 0x60]);
    assert_eq!([offset::NSSD, offset::CRTO, offset::PMRCAP, offset::DOORBELLS], [0x64, 0x68, 0xe00, 0x1000]);
}

#[test]
fn nssr_reset_is_nvme_in_ascii() {
    // NVMe Base 2.1 §3.1.4.7.
    assert_eq!(NSSR_RESET.to_be_bytes(), *b"NVMe");
}

/// The register in which only the given field is not zero.
fn cap_of(set: impl FnOnce(&mut CapFields)) -> u64 {
    let mut fields = CapFields::default();
    set(&mut fields);
    fields.encode().0
}

#[test]
fn each_field_of_cap_is_at_its_bits() {
    // NVMe Base 2.1 §3.1.4.1. A value of all ones shows both ends of a field.
    assert_eq!(cap_of(|f| f.mqes_z = 0xffff), 0x0000_0000_0000_ffff);
    assert_eq!(cap_of(|f| f.cqr = true), 0x0000_0000_0001_0000);
    assert_eq!(cap_of(|f| f.ams = 0xff), 0x0000_0000_0006_0000);
    assert_eq!(cap_of(|f| f.to_500ms = 0xff), 0x0000_0000_ff00_0000);
    assert_eq!(cap_of(|f| f.dstrd = 0xff), 0x0000_000f_0000_0000);
    assert_eq!(cap_of(|f| f.nssrs = true), 0x0000_0010_0000_0000);
    assert_eq!(cap_of(|f| f.css = 0xff), 0x0000_1fe0_0000_0000);
    assert_eq!(cap_of(|f| f.bps = true), 0x0000_2000_0000_0000);
    assert_eq!(cap_of(|f| f.cps = 0xff), 0x0000_c000_0000_0000);
    assert_eq!(cap_of(|f| f.mpsmin = 0xff), 0x000f_0000_0000_0000);
    assert_eq!(cap_of(|f| f.mpsmax = 0xff), 0x00f0_0000_0000_0000);
    assert_eq!(cap_of(|f| f.pmrs = true), 0x0100_0000_0000_0000);
    assert_eq!(cap_of(|f| f.cmbs = true), 0x0200_0000_0000_0000);
    assert_eq!(cap_of(|f| f.nsss = true), 0x0400_0000_0000_0000);
    assert_eq!(cap_of(|f| f.crms = 0xff), 0x1800_0000_0000_0000);
}

#[test]
fn the_command_sets_of_cap_are_at_bits_37_43_and_44() {
    assert_eq!(cap_of(|f| f.css = cap_css::NVM), 1 << 37);
    assert_eq!(cap_of(|f| f.css = cap_css::IO_COMMAND_SETS), 1 << 43);
    assert_eq!(cap_of(|f| f.css = cap_css::ADMIN_ONLY), 1 << 44);
}

#[test]
fn cap_of_a_known_device_decodes() {
    // QEMU's nvme device with a CMB: 2048 entries, CQR, 7.5 s, NVM and multiple and admin-only sets, 4 KiB to
    // 64 KiB pages.
    let fields = Cap(0x0240_1820_0f01_07ff).fields();
    assert_eq!(
        fields,
        CapFields {
            mqes_z: 2047,
            cqr: true,
            to_500ms: 15,
            css: cap_css::NVM | cap_css::IO_COMMAND_SETS | cap_css::ADMIN_ONLY,
            mpsmax: 4,
            cmbs: true,
            ..CapFields::default()
        }
    );
    assert_eq!(fields.encode(), Cap(0x0240_1820_0f01_07ff));
}

#[test]
fn cap_fields_survive_a_round_trip() {
    // Reserved bits 23:19 and 63:61 have no field.
    let defined = !(0x1f << 19) & !(0x7 << 61);
    for word in [0, defined, 0x5555_5555_5555_5555 & defined, 0xaaaa_aaaa_aaaa_aaaa & defined] {
        assert_eq!(Cap(word).fields().encode(), Cap(word));
    }
    for bit in 0..64 {
        assert_eq!(Cap(1 << bit).fields().encode().0, (1 << bit) & defined);
    }
}

#[test]
fn version_2_0_is_00020000h() {
    // NVMe Base 2.1 §3.1.4.2.
    assert_eq!(Version::NVME_2_0.0, 0x0002_0000);
    assert_eq!(Version::new(1, 4, 0).0, 0x0001_0400);
    let version = Version(0x0001_0201);
    assert_eq!((version.major(), version.minor(), version.tertiary()), (1, 2, 1));
}

#[test]
fn linux_enables_the_controller_with_00460001h() {
    // NVMe Base 2.1 §3.1.4.5: 64-byte SQEs (6), 16-byte CQEs (4), NVM set, 4 KiB pages, round robin.
    let cc = Cc::default().with_iosqes(6).with_iocqes(4).with_en(true);
    assert_eq!(cc.0, 0x0046_0001);
    assert!(cc.en());
    assert_eq!((cc.css(), cc.mps(), cc.ams(), cc.iosqes(), cc.iocqes(), cc.crime()), (0, 0, 0, 6, 4, false));
    assert_eq!(cc.shn(), ShutdownNotification::NONE);
}

#[test]
fn each_field_of_cc_is_at_its_bits() {
    let cc = Cc::default();
    assert_eq!(cc.with_en(true).0, 0x0000_0001);
    assert_eq!(cc.with_css(0xff).0, 0x0000_0070);
    assert_eq!(cc.with_mps(0xff).0, 0x0000_0780);
    assert_eq!(cc.with_ams(0xff).0, 0x0000_3800);
    assert_eq!(cc.with_shn(ShutdownNotification(0xff)).0, 0x0000_c000);
    assert_eq!(cc.with_iosqes(0xff).0, 0x000f_0000);
    assert_eq!(cc.with_iocqes(0xff).0, 0x00f0_0000);
    assert_eq!(cc.with_crime(true).0, 0x0100_0000);
    assert_eq!(cc.with_shn(ShutdownNotification::NORMAL).0, 0x0000_4000);
    assert_eq!(cc.with_shn(ShutdownNotification::ABRUPT).0, 0x0000_8000);
    assert_eq!(cc.with_css(CommandSetSelected::ALL_SUPPORTED.0).0, 0x0000_0060);
}

#[test]
fn cc_getters_read_what_only_their_bits_say() {
    let cc = Cc(0x0046_4d60 | 0x0100_0000);
    assert_eq!((cc.en(), cc.css(), cc.mps(), cc.ams()), (false, 6, 10, 1));
    assert_eq!((cc.shn(), cc.iosqes(), cc.iocqes(), cc.crime()), (ShutdownNotification::NORMAL, 6, 4, true));
}

#[test]
fn each_field_of_csts_is_at_its_bits() {
    // NVMe Base 2.1 §3.1.4.6.
    let csts = Csts::default();
    assert_eq!(csts.with_rdy(true).0, 0x01);
    assert_eq!(csts.with_cfs(true).0, 0x02);
    assert_eq!(csts.with_shst(ShutdownStatus::OCCURRING).0, 0x04);
    assert_eq!(csts.with_shst(ShutdownStatus::COMPLETE).0, 0x08);
    assert_eq!(csts.with_nssro(true).0, 0x10);
    assert_eq!(csts.with_pp(true).0, 0x20);
    assert_eq!(csts.with_st(true).0, 0x40);
    let full = Csts(0x79);
    assert!(full.rdy() && !full.cfs() && full.nssro() && full.pp() && full.st());
    assert_eq!(full.shst(), ShutdownStatus::COMPLETE);
    assert_eq!(full.with_rdy(false).with_shst(ShutdownStatus::NORMAL_OPERATION), Csts(0x70));
}

#[test]
fn aqa_has_two_fields_of_12_bits() {
    // NVMe Base 2.1 §3.1.4.8; Linux writes 001f001fh for 32 entries.
    assert_eq!(Aqa::new(31, 31), Aqa(0x001f_001f));
    assert_eq!(Aqa::new(0xffff, 0), Aqa(0x0000_0fff));
    assert_eq!(Aqa::new(0, 0xffff), Aqa(0x0fff_0000));
    assert_eq!((Aqa(0xf123_f456).asqs_z(), Aqa(0xf123_f456).acqs_z()), (0x456, 0x123));
}

#[test]
fn crto_has_the_wait_with_media_in_its_lower_half() {
    // NVMe Base 2.1 §3.1.4.21.
    assert_eq!(Crto::new(0x1234, 0x5678), Crto(0x5678_1234));
    assert_eq!((Crto(0x5678_1234).crwmt_500ms(), Crto(0x5678_1234).crimt_500ms()), (0x1234, 0x5678));
}

#[test]
fn an_unknown_value_of_an_open_enum_can_be_held() {
    let reserved = Cc(0xc000).shn();
    assert_eq!(reserved, ShutdownNotification(3));
    assert_eq!(reserved.name(), None);
    assert_eq!(format!("{reserved}"), "unknown (03h)");
    assert_eq!(format!("{}", ShutdownNotification::ABRUPT), "abrupt");
}

#[test]
fn versions_are_shown_as_the_specification_writes_them() {
    assert_eq!(format!("{}", Version::NVME_2_0), "2.0");
    assert_eq!(format!("{}", Version(0x0001_0201)), "1.2.1");
}
