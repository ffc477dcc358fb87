//! Identify (NVMe Base 2.1 §5.1.13).

use nvme::{
    NSID_BROADCAST, Status, SubmissionQueueEntry,
    admin::IdentifyCmd,
    identify::{
        Cns, Csi, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, IdentifyNamespaceIndependent,
        IdentifyNvmController, IdentifyNvmNamespace, LbaFormat, NamespaceDescriptor, Nidt, PowerStateDescriptor, ascii,
        dlfeat, entry_sizes, frmw, lpa, nsattr, nsfeat, nstat, oaes, vwc,
    },
    registers::Version,
};
use zerocopy::{
    FromZeros, IntoBytes,
    little_endian::{U16, U32, U64, U128},
};

use super::{INVALID_FIELD, Reply, events::AER_LIMIT, features, logs::ERROR_LOG_ENTRIES};
use crate::{
    controller::Controller,
    io::MDTS,
    namespace::{self, Namespace},
};

/// The crate's version, as far as it fits.
pub(crate) fn firmware_revision() -> [u8; 8] {
    ascii(env!("CARGO_PKG_VERSION"))
}

pub(crate) fn identify(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    let command = IdentifyCmd::from(sqe);
    c.identify_data(&command).and_then(|data| c.send(sqe, &data)).map(|()| 0).into()
}

type Page = [u8; IDENTIFY_BYTES];

impl Controller {
    fn identify_data(&self, command: &IdentifyCmd) -> Result<Page, Status> {
        let for_nvm = |page| if command.csi == Csi::NVM { Ok(page) } else { Err(INVALID_FIELD) };
        match command.cns {
            Cns::NAMESPACE => self.by_namespace(command.nsid, |n| page(&self.namespace(n))),
            Cns::CONTROLLER => Ok(page(&self.controller())),
            Cns::ACTIVE_NAMESPACE_LIST => self.active_namespaces(command.nsid),
            Cns::NAMESPACE_DESCRIPTORS => match self.find(command.nsid)? {
                Some(namespace) => Ok(descriptors(namespace)),
                None => Err(INVALID_FIELD),
            },
            Cns::COMMAND_SET_NAMESPACE => {
                let found = self.by_namespace(command.nsid, |_| page(&IdentifyNvmNamespace::new_zeroed()))?;
                for_nvm(found)
            }
            Cns::COMMAND_SET_CONTROLLER => for_nvm(page(&nvm_controller())),
            Cns::COMMAND_SET_ACTIVE_NAMESPACE_LIST => {
                let list = self.active_namespaces(command.nsid)?;
                for_nvm(list)
            }
            Cns::INDEPENDENT_NAMESPACE => self.by_namespace(command.nsid, |n| page(&independent(n))),
            // This controller's command set combinations: the NVM command set alone.
            Cns::IO_COMMAND_SETS => {
                let mut page = [0; IDENTIFY_BYTES];
                page[0] = 1 << Csi::NVM.0;
                Ok(page)
            }
            _ => Err(INVALID_FIELD),
        }
    }

    /// The namespace of an NSID: `None` for one that is valid but not in use.
    fn find(&self, nsid: u32) -> Result<Option<&Namespace>, Status> {
        if nsid == 0 || nsid > self.nn() {
            return Err(Status::INVALID_NAMESPACE.with_dnr());
        }
        Ok(usize::try_from(nsid - 1).ok().and_then(|i| self.engine.namespaces.get(i)))
    }

    /// A page about one namespace; zeros for one that is not in use.
    fn by_namespace(&self, nsid: u32, data: impl Fn(&Namespace) -> Page) -> Result<Page, Status> {
        Ok(self.find(nsid)?.map_or([0; IDENTIFY_BYTES], data))
    }

    /// Highest NSID; fixed for the controller's life.
    fn nn(&self) -> u32 {
        u32::try_from(self.engine.namespaces.len()).unwrap_or(u32::MAX).max(1)
    }

    fn active_namespaces(&self, after: u32) -> Result<Page, Status> {
        if after >= NSID_BROADCAST - 1 {
            return Err(Status::INVALID_NAMESPACE.with_dnr());
        }
        let mut page = [0; IDENTIFY_BYTES];
        let count = u32::try_from(self.engine.namespaces.len()).unwrap_or(u32::MAX);
        for (entry, nsid) in page.as_chunks_mut::<4>().0.iter_mut().zip(after + 1..=count) {
            *entry = nsid.to_le_bytes();
        }
        Ok(page)
    }

    fn controller(&self) -> IdentifyController {
        let mut subnqn = [0; 256];
        let name = format!("nqn.2014-08.org.nvmexpress:uuid:{}", namespace::subsystem_uuid(&self.config.serial));
        for (to, from) in subnqn.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        let mut id = IdentifyController::new_zeroed();
        id.vid = U16::new(self.config.pci_id.vendor);
        id.ssvid = U16::new(self.config.pci_id.vendor);
        id.sn = ascii(&self.config.serial);
        id.mn = ascii(&self.config.model);
        id.fr = firmware_revision();
        id.rab = 6;
        id.mdts = MDTS;
        id.ver = U32::new(Version::NVME_2_0.0);
        id.oaes = U32::new(oaes::NAMESPACE_ATTRIBUTE);
        id.cntrltype = IdentifyController::CNTRLTYPE_IO;
        id.oacs = U16::new(self.offer.oacs());
        id.acl_z = 3;
        id.aerl_z = AER_LIMIT - 1;
        id.frmw = frmw::slots(1) | frmw::SLOT_1_READ_ONLY;
        id.lpa = lpa::COMMAND_EFFECTS | lpa::EXTENDED_DATA | lpa::SUPPORTED_LOG_PAGES;
        id.elpe_z = u8::try_from(ERROR_LOG_ENTRIES - 1).unwrap_or(u8::MAX);
        id.wctemp = U16::new(features::identify_warning_temperature());
        id.cctemp = U16::new(373);
        id.tnvmcap = U128::new(self.engine.namespaces.iter().map(|n| u128::from(n.capabilities.size)).sum());
        id.sqes = entry_sizes(6, 6);
        id.cqes = entry_sizes(4, 4);
        id.nn = U32::new(self.nn());
        id.oncs = U16::new(self.offer.oncs());
        id.vwc = vwc::FLUSH_BROADCAST_SUPPORTED | if self.has_write_cache() { vwc::PRESENT } else { 0 };
        id.subnqn = subnqn;
        // 25 W at most, in hundredths of a watt; no time to enter or to leave.
        id.psd[0] = PowerStateDescriptor { mp: U16::new(2500), ..PowerStateDescriptor::default() };
        id
    }

    fn namespace(&self, namespace: &Namespace) -> IdentifyNamespace {
        let capabilities = &namespace.capabilities;
        let blocks_z =
            |bytes: u32| U16::new(u16::try_from((bytes >> namespace.lba_shift).max(1) - 1).unwrap_or(u16::MAX));
        let mut id = IdentifyNamespace::new_zeroed();
        id.nsze = U64::new(namespace.blocks);
        id.ncap = id.nsze;
        id.nuse = id.nsze;
        id.nsfeat = nsfeat::OPTIMAL_PERFORMANCE;
        id.npwg_z = blocks_z(capabilities.preferred_write);
        id.npwa_z = id.npwg_z;
        id.npdg_z = blocks_z(capabilities.discard_granularity);
        id.npda_z = id.npdg_z;
        id.dlfeat = dlfeat::WRITE_ZEROES_DEALLOCATE
            | if capabilities.discard_zeroes { dlfeat::READS_ZEROS } else { dlfeat::READS_NOT_REPORTED };
        id.nvmcap = U128::new(capabilities.size.into());
        id.nsattr = if capabilities.read_only { nsattr::WRITE_PROTECTED } else { 0 };
        id.nguid = namespace.nguid;
        id.lbaf[0] = LbaFormat::new(namespace.lba_shift);
        id
    }
}

fn page(data: &(impl IntoBytes + zerocopy::Immutable)) -> Page {
    let mut page = [0; IDENTIFY_BYTES];
    for (to, from) in page.iter_mut().zip(data.as_bytes()) {
        *to = *from;
    }
    page
}

/// Size limits of the NVM command set: none of its own.
fn nvm_controller() -> IdentifyNvmController {
    IdentifyNvmController::new_zeroed()
}

fn independent(namespace: &Namespace) -> IdentifyNamespaceIndependent {
    let mut id = IdentifyNamespaceIndependent::new_zeroed();
    id.nsattr = if namespace.capabilities.read_only { nsattr::WRITE_PROTECTED } else { 0 };
    id.nstat = nstat::READY;
    id
}

fn descriptors(namespace: &Namespace) -> Page {
    let mut page = [0; IDENTIFY_BYTES];
    let mut at = 0;
    for (kind, id) in
        [(Nidt::NGUID, &namespace.nguid[..]), (Nidt::UUID, &namespace.uuid[..]), (Nidt::CSI, &[Csi::NVM.0][..])]
    {
        let header = NamespaceDescriptor::new(kind, kind.length().unwrap_or(0));
        let end = at + size_of::<NamespaceDescriptor>();
        page[at..end].copy_from_slice(header.as_bytes());
        page[end..end + id.len()].copy_from_slice(id);
        at = end + id.len();
    }
    page
}
