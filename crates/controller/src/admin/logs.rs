//! Get Log Page (NVMe Base 2.1 §5.1.12).

use std::{collections::VecDeque, time::Duration};

use nvme::{
    NSID_BROADCAST, Status, SubmissionQueueEntry,
    admin::GetLogPage,
    features::capability,
    identify::Csi,
    logs::{
        CommandEffectsLog, ErrorLogEntry, FirmwareSlotLog, LogId, SmartLog, SupportedLogPages, critical_warning,
        effects, supported_log,
    },
};
use zerocopy::{
    FromZeros, IntoBytes,
    little_endian::{U16, U32, U64, U128},
};

use super::{INVALID_FIELD, Reply, features, identify};
use crate::{controller::Controller, engine::Failure};

/// Entries of the error log.
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;

/// The log pages that the controller has.
const PAGES: [LogId; 8] = [
    LogId::SUPPORTED_LOG_PAGES,
    LogId::ERROR,
    LogId::SMART,
    LogId::FIRMWARE_SLOT,
    LogId::CHANGED_NAMESPACES,
    LogId::COMMAND_EFFECTS,
    LogId::FEATURE_EFFECTS,
    LogId::NVME_MI_EFFECTS,
];

/// The last errors, newest first, and how many there ever were.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    entries: VecDeque<ErrorLogEntry>,
    count: u64,
    /// Those of them that say that data was lost or could not be read.
    media: u64,
}

impl ErrorLog {
    pub(crate) fn record(&mut self, failure: Failure) {
        self.count += 1;
        if matches!(failure.status.code(), Status::UNRECOVERED_READ_ERROR | Status::WRITE_FAULT) {
            self.media += 1;
        }
        self.entries.truncate(ERROR_LOG_ENTRIES - 1);
        self.entries.push_front(ErrorLogEntry {
            error_count: U64::new(self.count),
            sqid: U16::new(failure.sqid),
            cid: U16::new(failure.cid),
            status_phase: U16::new(failure.status.to_status_phase(false)),
            parameter_error_location: U16::new(ErrorLogEntry::NO_PARAMETER),
            lba: U64::new(failure.lba),
            nsid: U32::new(failure.nsid),
            ..ErrorLogEntry::default()
        });
    }

    fn page(&self) -> Vec<u8> {
        let mut page = vec![0; ERROR_LOG_ENTRIES * size_of::<ErrorLogEntry>()];
        for (to, entry) in page.as_chunks_mut::<64>().0.iter_mut().zip(&self.entries) {
            to.copy_from_slice(entry.as_bytes());
        }
        page
    }
}

pub(crate) fn get_log_page(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    let command = GetLogPage::from(sqe);
    let mut get = || {
        let page = c.log_page(&command)?;
        // Offsets are in bytes (no log here has an index) and dword aligned; what lies past the end of the page reads as
        // zeros, but the start must be on it.
        let start = usize::try_from(command.offset).ok().filter(|at| at.is_multiple_of(4) && *at <= page.len());
        let (Some(start), false) = (start, command.ot) else { return Err(INVALID_FIELD) };
        let length = usize::try_from(command.length()).map_err(|_| INVALID_FIELD)?;
        if length > crate::io::MAX_TRANSFER {
            return Err(INVALID_FIELD);
        }
        let mut data = vec![0; length];
        let n = length.min(page.len() - start);
        data[..n].copy_from_slice(&page[start..start + n]);
        c.send(sqe, &data)?;
        if !command.rae {
            c.events.log_read(command.lid);
        }
        Ok(0)
    };
    get().into()
}

impl Controller {
    fn log_page(&self, command: &GetLogPage) -> Result<Vec<u8>, Status> {
        if !PAGES.contains(&command.lid) {
            return Err(Status::INVALID_LOG_PAGE.with_dnr());
        }
        // All pages are about the whole controller.
        if command.nsid != 0 && command.nsid != NSID_BROADCAST && command.lid == LogId::SMART {
            return Err(INVALID_FIELD);
        }
        Ok(match command.lid {
            LogId::SUPPORTED_LOG_PAGES => {
                let mut page = SupportedLogPages::new_zeroed();
                for lid in PAGES {
                    page.lids[usize::from(lid.0)] = U32::new(supported_log::SUPPORTED);
                }
                page.as_bytes().to_vec()
            }
            LogId::ERROR => self.errors.page(),
            LogId::SMART => self.smart().as_bytes().to_vec(),
            LogId::FIRMWARE_SLOT => {
                let mut page = FirmwareSlotLog::new_zeroed();
                page.afi = 1;
                page.frs[0] = identify::firmware_revision();
                page.as_bytes().to_vec()
            }
            // Namespaces do not come and go yet, so nothing has changed.
            LogId::CHANGED_NAMESPACES => vec![0; 4096],
            // A dword for each feature (NVMe Base 2.1 §5.1.12.1): supported, and what it is about, as for commands.
            LogId::FEATURE_EFFECTS => {
                let mut page = vec![0; 1024];
                for (fid, abilities) in features::supported(self) {
                    let of_namespace = abilities & capability::NAMESPACE_SPECIFIC != 0;
                    let scope = if of_namespace { effects::SCOPE_NAMESPACE } else { effects::SCOPE_CONTROLLER };
                    page.as_chunks_mut::<4>().0[usize::from(fid)] = (effects::SUPPORTED | scope).to_le_bytes();
                }
                page
            }
            // No management interface, so none of its commands.
            LogId::NVME_MI_EFFECTS => vec![0; 4096],
            _ => {
                let mut page = CommandEffectsLog::new_zeroed();
                for (opcode, effects) in self.offer.admin_effects() {
                    page.acs[usize::from(opcode)] = U32::new(effects);
                }
                if command.csi == Csi::NVM {
                    for (opcode, effects) in self.offer.nvm_effects() {
                        page.iocs[usize::from(opcode)] = U32::new(effects);
                    }
                }
                page.as_bytes().to_vec()
            }
        })
    }

    fn smart(&self) -> SmartLog {
        let totals = self.report().totals.counters;
        let units = |bytes: u64| U128::new(u128::from(bytes).div_ceil(512 * 1000));
        let (reads, writes) = self.engine.io_commands();
        let minutes = |time: Duration| u128::from(time.as_secs() / 60);
        SmartLog {
            critical_warning: if self.features.temperature_alarm() { critical_warning::TEMPERATURE } else { 0 },
            composite_temperature: U16::new(super::features::TEMPERATURE_KELVIN),
            available_spare: 100,
            available_spare_threshold: 10,
            data_units_read: units(totals.read_bytes),
            data_units_written: units(totals.write_bytes),
            host_reads: U128::new(reads.into()),
            host_writes: U128::new(writes.into()),
            busy_minutes: U128::new(minutes(self.busy_time())),
            power_cycles: U128::new(1),
            power_on_hours: U128::new(minutes(self.started.elapsed()) / 60),
            unsafe_shutdowns: U128::new(self.unsafe_shutdowns.into()),
            media_errors: U128::new(self.errors.media.into()),
            error_log_entries: U128::new(self.errors.count.into()),
            ..SmartLog::new_zeroed()
        }
    }
}
