//! Get Features and Set Features (NVMe Base 2.1 §5.1.11, §5.1.25).

use nvme::{
    NSID_BROADCAST, Status, SubmissionQueueEntry,
    admin::{GetFeatures, SetFeatures},
    features::{
        FeatureId, InterruptCoalescing, InterruptVectorConfig, NumberOfQueues, PowerManagement, Select,
        TemperatureThreshold, async_event_config, capability,
    },
    logs::{AsyncEvent, AsyncEventType, LogId, async_smart},
};

use super::{INVALID_FIELD, Reply};
use crate::controller::Controller;

/// The temperature that the disk reports: 27 degrees Celsius.
pub(crate) const TEMPERATURE_KELVIN: u16 = 300;

/// Composite temperature and eight sensors, of which only the first exists.
const ALL_SENSORS: u8 = 0xf;
const OVER: u8 = 0;
const UNDER: u8 = 1;

/// Values that a host can set. A reset brings the defaults back; nothing is saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Features {
    arbitration: u32,
    over_threshold: u16,
    under_threshold: u16,
    /// By namespace.
    error_recovery: Vec<u32>,
    coalescing: u32,
    /// By vector: coalescing disabled.
    vector_config: Vec<bool>,
    write_atomicity: u32,
    pub(crate) async_events: u32,
}

impl Features {
    pub(crate) fn new(namespaces: usize, vectors: u16) -> Self {
        let mut vector_config = vec![false; vectors.into()];
        // The admin queue's vector is never coalesced.
        if let Some(first) = vector_config.first_mut() {
            *first = true;
        }
        Self {
            // No limit on the arbitration burst.
            arbitration: 7,
            over_threshold: identify_warning_temperature(),
            under_threshold: 0,
            error_recovery: vec![0; namespaces],
            coalescing: 0,
            vector_config,
            write_atomicity: 0,
            async_events: 0,
        }
    }

    /// The completions that an interrupt of a vector waits for, and how long, in units of 100 us; `None` where interrupts are not
    /// put off (NVMe Base 2.1 §5.1.25.2.2, §5.1.25.2.3).
    pub(crate) fn coalescing(&self, vector: u16) -> Option<(u16, u8)> {
        let InterruptCoalescing { threshold_z, time_100us } = InterruptCoalescing::from_dword(self.coalescing);
        let disabled = self.vector_config.get(usize::from(vector)).is_none_or(|cd| *cd);
        (!disabled && threshold_z > 0 && time_100us > 0).then_some((u16::from(threshold_z) + 1, time_100us))
    }

    /// Whether the temperature is past a threshold.
    pub(crate) fn temperature_alarm(&self) -> bool {
        TEMPERATURE_KELVIN >= self.over_threshold || TEMPERATURE_KELVIN <= self.under_threshold
    }
}

/// WCTEMP in kelvin: 70 degrees Celsius.
pub(crate) const fn identify_warning_temperature() -> u16 {
    343
}

/// What [`Select::SUPPORTED`] answers for a feature, or `None` for one that does not exist.
fn capabilities(c: &Controller, fid: FeatureId) -> Option<u32> {
    Some(match fid {
        FeatureId::ERROR_RECOVERY => capability::CHANGEABLE | capability::NAMESPACE_SPECIFIC,
        FeatureId::VOLATILE_WRITE_CACHE if !c.has_write_cache() => return None,
        FeatureId::ARBITRATION
        | FeatureId::POWER_MANAGEMENT
        | FeatureId::TEMPERATURE_THRESHOLD
        | FeatureId::VOLATILE_WRITE_CACHE
        | FeatureId::NUMBER_OF_QUEUES
        | FeatureId::INTERRUPT_COALESCING
        | FeatureId::INTERRUPT_VECTOR_CONFIG
        | FeatureId::WRITE_ATOMICITY
        | FeatureId::ASYNC_EVENT_CONFIG
        | FeatureId::IO_COMMAND_SET_PROFILE => capability::CHANGEABLE,
        _ => return None,
    })
}

/// The features that exist, with their capabilities.
pub(crate) fn supported(c: &Controller) -> impl Iterator<Item = (u8, u32)> {
    (0..=u8::MAX).filter_map(|fid| Some((fid, capabilities(c, FeatureId(fid))?)))
}

/// The index of a namespace for a namespace specific feature.
fn namespace(c: &Controller, nsid: u32) -> Result<usize, Status> {
    let index = usize::try_from(nsid).ok().and_then(|n| n.checked_sub(1));
    index.filter(|i| *i < c.engine.namespaces.len()).ok_or(Status::INVALID_NAMESPACE.with_dnr())
}

pub(crate) fn get(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    let command = GetFeatures::from(sqe);
    let Some(capabilities) = capabilities(c, command.fid) else { return Reply::Failed(INVALID_FIELD) };
    let defaults;
    let (features, write_cache) = match command.select {
        Select::CURRENT => (&c.features, c.engine.write_cache),
        // Nothing is saved, and then the saved values are the defaults.
        Select::DEFAULT | Select::SAVED => {
            defaults = Features::new(c.engine.namespaces.len(), c.interrupts.vectors());
            (&defaults, true)
        }
        Select::SUPPORTED => return Reply::Done(capabilities),
        _ => return Reply::Failed(INVALID_FIELD),
    };
    value(c, features, write_cache, &command).into()
}

fn value(c: &Controller, features: &Features, write_cache: bool, command: &GetFeatures) -> Result<u32, Status> {
    Ok(match command.fid {
        FeatureId::ARBITRATION => features.arbitration,
        FeatureId::TEMPERATURE_THRESHOLD => {
            let wanted = TemperatureThreshold::from_dword(command.cdw11);
            let tmpth = match (wanted.tmpsel, wanted.thsel) {
                (0, OVER) => features.over_threshold,
                (0, UNDER) => features.under_threshold,
                _ => return Err(INVALID_FIELD),
            };
            TemperatureThreshold { tmpth, ..wanted }.to_dword()
        }
        FeatureId::ERROR_RECOVERY => features.error_recovery[namespace(c, command.nsid)?],
        FeatureId::VOLATILE_WRITE_CACHE => write_cache.into(),
        FeatureId::NUMBER_OF_QUEUES => queues(c),
        FeatureId::INTERRUPT_COALESCING => features.coalescing,
        FeatureId::INTERRUPT_VECTOR_CONFIG => {
            let InterruptVectorConfig { iv, .. } = InterruptVectorConfig::from_dword(command.cdw11);
            let cd = *features.vector_config.get(usize::from(iv)).ok_or(INVALID_FIELD)?;
            InterruptVectorConfig { iv, cd }.to_dword()
        }
        FeatureId::WRITE_ATOMICITY => features.write_atomicity,
        FeatureId::ASYNC_EVENT_CONFIG => features.async_events,
        // Power state 0 and I/O command set combination 0 are the only ones.
        _ => 0,
    })
}

/// Dword 0 of Number of Queues: what there is, whatever was asked for.
fn queues(c: &Controller) -> u32 {
    let n_z = c.config.io_queues - 1;
    NumberOfQueues { nsq_z: n_z, ncq_z: n_z }.to_dword()
}

pub(crate) fn set(c: &mut Controller, sqe: &SubmissionQueueEntry) -> Reply {
    let command = SetFeatures::from(sqe);
    if capabilities(c, command.fid).is_none() {
        return Reply::Failed(INVALID_FIELD);
    }
    if command.save {
        return Reply::Failed(Status::FEATURE_NOT_SAVEABLE.with_dnr());
    }
    if command.fid != FeatureId::ERROR_RECOVERY && command.nsid != 0 && command.nsid != NSID_BROADCAST {
        let status = namespace(c, command.nsid).err();
        return Reply::Failed(status.unwrap_or(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr()));
    }
    let cached = c.engine.write_cache;
    match change(c, &command) {
        // What is in the cache when it is turned off must reach stable storage first.
        Ok(_) if cached && !c.engine.write_cache => Reply::Flush,
        result => result.into(),
    }
}

fn change(c: &mut Controller, command: &SetFeatures) -> Result<u32, Status> {
    let value = command.cdw11;
    match command.fid {
        FeatureId::ARBITRATION => c.features.arbitration = value & 0xffff_ff07,
        // Power state 0 is the only one.
        FeatureId::POWER_MANAGEMENT if PowerManagement::from_dword(value).ps == 0 => {}
        FeatureId::POWER_MANAGEMENT => return Err(INVALID_FIELD),
        FeatureId::TEMPERATURE_THRESHOLD => {
            let wanted = TemperatureThreshold::from_dword(value);
            if wanted.tmpsel != 0 && wanted.tmpsel != ALL_SENSORS {
                return Err(INVALID_FIELD);
            }
            match wanted.thsel {
                OVER => c.features.over_threshold = wanted.tmpth,
                UNDER => c.features.under_threshold = wanted.tmpth,
                _ => return Err(INVALID_FIELD),
            }
            check_temperature(c);
        }
        FeatureId::ERROR_RECOVERY if command.nsid == NSID_BROADCAST => c.features.error_recovery.fill(value & 0xffff),
        FeatureId::ERROR_RECOVERY => {
            let index = namespace(c, command.nsid)?;
            c.features.error_recovery[index] = value & 0xffff;
        }
        FeatureId::VOLATILE_WRITE_CACHE => c.engine.write_cache = value & 1 != 0,
        FeatureId::NUMBER_OF_QUEUES => {
            let wanted = NumberOfQueues::from_dword(value);
            if wanted.nsq_z == 0xffff || wanted.ncq_z == 0xffff {
                return Err(INVALID_FIELD);
            }
            if c.engine.has_io_queues() {
                return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
            }
            return Ok(queues(c));
        }
        FeatureId::INTERRUPT_COALESCING => c.features.coalescing = value & 0xffff,
        FeatureId::INTERRUPT_VECTOR_CONFIG => {
            let InterruptVectorConfig { iv, cd } = InterruptVectorConfig::from_dword(value);
            *c.features.vector_config.get_mut(usize::from(iv)).ok_or(INVALID_FIELD)? = cd;
        }
        FeatureId::WRITE_ATOMICITY => c.features.write_atomicity = value & 1,
        FeatureId::ASYNC_EVENT_CONFIG => {
            c.features.async_events =
                value & (async_event_config::CRITICAL_WARNING_MASK | async_event_config::NAMESPACE_ATTRIBUTE);
            check_temperature(c);
        }
        // I/O Command Set Profile: combination 0 is the only one.
        _ if value & 0x1ff != 0 => return Err(INVALID_FIELD),
        _ => {}
    }
    Ok(0)
}

fn check_temperature(c: &mut Controller) {
    let warned = c.features.async_events & u32::from(nvme::logs::critical_warning::TEMPERATURE) != 0;
    if c.features.temperature_alarm() && warned {
        c.events.raise(AsyncEvent {
            kind: AsyncEventType::SMART,
            info: async_smart::TEMPERATURE_THRESHOLD,
            log: LogId::SMART,
        });
    }
}
