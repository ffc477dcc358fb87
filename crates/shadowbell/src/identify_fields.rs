//! The fields of Identify, under the names that nvme-cli gives them.

use driver::nvme::identify::{IdentifyController, IdentifyNamespace};
use serde_json::Value;

/// A field for people and for programs.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
    pub(crate) text: String,
}

impl Field {
    /// A number; past 64 bits it is a string in JSON.
    fn number(name: &'static str, value: u128) -> Self {
        let text = value.to_string();
        let value = u64::try_from(value).map_or_else(|_| Value::from(text.clone()), Value::from);
        Self { name, value, text }
    }

    /// Bits.
    fn hex(name: &'static str, value: u128) -> Self {
        Self { text: format!("{value:#x}"), ..Self::number(name, value) }
    }

    /// ASCII, padded with spaces or ended by a zero. What is not printable does not reach a terminal.
    fn text(name: &'static str, bytes: &[u8]) -> Self {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let plain = |byte: &u8| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '?' };
        let text: String = bytes[..end].iter().map(plain).collect();
        let text = text.trim_end().to_owned();
        Self { name, value: text.clone().into(), text }
    }

    /// An identifier, big endian.
    fn id(name: &'static str, bytes: &[u8]) -> Self {
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { name, value: text.clone().into(), text }
    }

    /// An OUI, little endian.
    fn ieee([low, middle, high]: [u8; 3]) -> Self {
        let value = u32::from_le_bytes([low, middle, high, 0]);
        Self { text: format!("{value:06x}"), ..Self::number("ieee", value.into()) }
    }
}

/// Identify Controller.
pub(crate) fn controller(identify: &IdentifyController) -> Vec<Field> {
    vec![
        Field::hex("vid", identify.vid.get().into()),
        Field::hex("ssvid", identify.ssvid.get().into()),
        Field::text("sn", &identify.sn),
        Field::text("mn", &identify.mn),
        Field::text("fr", &identify.fr),
        Field::number("rab", identify.rab.into()),
        Field::ieee(identify.ieee),
        Field::hex("cmic", identify.cmic.into()),
        Field::number("mdts", identify.mdts.into()),
        Field::hex("cntlid", identify.cntlid.get().into()),
        Field::hex("ver", identify.ver.get().into()),
        Field::number("rtd3r", identify.rtd3r.get().into()),
        Field::number("rtd3e", identify.rtd3e.get().into()),
        Field::hex("oaes", identify.oaes.get().into()),
        Field::hex("ctratt", identify.ctratt.get().into()),
        Field::hex("rrls", identify.rrls.get().into()),
        Field::hex("cntrltype", identify.cntrltype.into()),
        Field::id("fguid", &identify.fguid),
        Field::number("crdt1", identify.crdt1.get().into()),
        Field::number("crdt2", identify.crdt2.get().into()),
        Field::number("crdt3", identify.crdt3.get().into()),
        Field::hex("nvmsr", identify.nvmsr.into()),
        Field::hex("vwci", identify.vwci.into()),
        Field::hex("mec", identify.mec.into()),
        Field::hex("oacs", identify.oacs.get().into()),
        Field::number("acl", identify.acl_z.into()),
        Field::number("aerl", identify.aerl_z.into()),
        Field::hex("frmw", identify.frmw.into()),
        Field::hex("lpa", identify.lpa.into()),
        Field::number("elpe", identify.elpe_z.into()),
        Field::number("npss", identify.npss_z.into()),
        Field::hex("avscc", identify.avscc.into()),
        Field::hex("apsta", identify.apsta.into()),
        Field::number("wctemp", identify.wctemp.get().into()),
        Field::number("cctemp", identify.cctemp.get().into()),
        Field::number("mtfa", identify.mtfa.get().into()),
        Field::number("hmpre", identify.hmpre.get().into()),
        Field::number("hmmin", identify.hmmin.get().into()),
        Field::number("tnvmcap", identify.tnvmcap.get()),
        Field::number("unvmcap", identify.unvmcap.get()),
        Field::hex("rpmbs", identify.rpmbs.get().into()),
        Field::number("edstt", identify.edstt.get().into()),
        Field::number("dsto", identify.dsto.into()),
        Field::number("fwug", identify.fwug.into()),
        Field::number("kas", identify.kas.get().into()),
        Field::hex("hctma", identify.hctma.get().into()),
        Field::number("mntmt", identify.mntmt.get().into()),
        Field::number("mxtmt", identify.mxtmt.get().into()),
        Field::hex("sanicap", identify.sanicap.get().into()),
        Field::number("hmminds", identify.hmminds.get().into()),
        Field::number("hmmaxd", identify.hmmaxd.get().into()),
        Field::number("nsetidmax", identify.nsetidmax.get().into()),
        Field::number("endgidmax", identify.endgidmax.get().into()),
        Field::number("anatt", identify.anatt.into()),
        Field::hex("anacap", identify.anacap.into()),
        Field::number("anagrpmax", identify.anagrpmax.get().into()),
        Field::number("nanagrpid", identify.nanagrpid.get().into()),
        Field::number("pels", identify.pels.get().into()),
        Field::number("domain_id", identify.domain_id.get().into()),
        Field::number("megcap", identify.megcap.get()),
        Field::hex("sqes", identify.sqes.into()),
        Field::hex("cqes", identify.cqes.into()),
        Field::number("maxcmd", identify.maxcmd.get().into()),
        Field::number("nn", identify.nn.get().into()),
        Field::hex("oncs", identify.oncs.get().into()),
        Field::hex("fuses", identify.fuses.get().into()),
        Field::hex("fna", identify.fna.into()),
        Field::hex("vwc", identify.vwc.into()),
        Field::number("awun", identify.awun_z.get().into()),
        Field::number("awupf", identify.awupf_z.get().into()),
        Field::hex("icsvscc", identify.icsvscc.into()),
        Field::hex("nwpc", identify.nwpc.into()),
        Field::number("acwu", identify.acwu_z.get().into()),
        Field::hex("ocfs", identify.ocfs.get().into()),
        Field::hex("sgls", identify.sgls.get().into()),
        Field::number("mnan", identify.mnan.get().into()),
        Field::number("maxdna", identify.maxdna.get()),
        Field::number("maxcna", identify.maxcna.get().into()),
        Field::number("oaqd", identify.oaqd.get().into()),
        Field::text("subnqn", &identify.subnqn),
    ]
}

/// Identify Namespace.
pub(crate) fn namespace(identify: &IdentifyNamespace) -> Vec<Field> {
    vec![
        Field::number("nsze", identify.nsze.get().into()),
        Field::number("ncap", identify.ncap.get().into()),
        Field::number("nuse", identify.nuse.get().into()),
        Field::hex("nsfeat", identify.nsfeat.into()),
        Field::number("nlbaf", identify.nlbaf_z.into()),
        Field::hex("flbas", identify.flbas.into()),
        Field::hex("mc", identify.mc.into()),
        Field::hex("dpc", identify.dpc.into()),
        Field::hex("dps", identify.dps.into()),
        Field::hex("nmic", identify.nmic.into()),
        Field::hex("rescap", identify.rescap.into()),
        Field::hex("fpi", identify.fpi.into()),
        Field::hex("dlfeat", identify.dlfeat.into()),
        Field::number("nawun", identify.nawun_z.get().into()),
        Field::number("nawupf", identify.nawupf_z.get().into()),
        Field::number("nacwu", identify.nacwu_z.get().into()),
        Field::number("nabsn", identify.nabsn_z.get().into()),
        Field::number("nabo", identify.nabo.get().into()),
        Field::number("nabspf", identify.nabspf_z.get().into()),
        Field::number("noiob", identify.noiob.get().into()),
        Field::number("nvmcap", identify.nvmcap.get()),
        Field::number("npwg", identify.npwg_z.get().into()),
        Field::number("npwa", identify.npwa_z.get().into()),
        Field::number("npdg", identify.npdg_z.get().into()),
        Field::number("npda", identify.npda_z.get().into()),
        Field::number("nows", identify.nows_z.get().into()),
        Field::number("mssrl", identify.mssrl.get().into()),
        Field::number("mcl", identify.mcl.get().into()),
        Field::number("msrc", identify.msrc_z.into()),
        Field::number("nulbaf", identify.nulbaf.into()),
        Field::number("anagrpid", identify.anagrpid.get().into()),
        Field::hex("nsattr", identify.nsattr.into()),
        Field::number("nvmsetid", identify.nvmsetid.get().into()),
        Field::number("endgid", identify.endgid.get().into()),
        Field::id("nguid", &identify.nguid),
        Field::id("eui64", &identify.eui64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_could_drive_a_terminal_does_not() {
        assert_eq!(Field::text("mn", b"a\x1b[2Jb   ").text, "a?[2Jb");
        assert_eq!(Field::text("subnqn", b"nqn\0rest").text, "nqn");
        assert_eq!(Field::hex("vid", 0x1234).text, "0x1234");
        assert_eq!(Field::number("tnvmcap", 1 << 70).value, Value::from("1180591620717411303424"));
    }
}
