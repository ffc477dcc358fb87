//! `--workers`: how many threads serve the devices, and where they run.

use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::output::Failure;

/// More are of no use to anyone.
const MOST: usize = 1024;

/// The value of `--workers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkersArg {
    /// So many threads, which run where the system likes.
    Count(usize),
    /// A thread on each of these CPUs.
    Cpus(Vec<usize>),
}

impl FromStr for WorkersArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |what: &str| format!("{what}: write a number of threads (4), or CPUs (0,2-3; a single one is cpu:3)");
        let list = match text.strip_prefix("cpu:") {
            Some(list) => list,
            None if text.contains([',', '-']) => text,
            None => {
                return match number(text) {
                    Some(count @ 1..=MOST) => Ok(Self::Count(count)),
                    Some(_) => Err(wrong(&format!("{text} is not 1 to {MOST}"))),
                    None => Err(wrong(&format!("`{text}` is no number"))),
                };
            }
        };
        let mut cpus = Vec::new();
        for part in list.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Some(first), Some(last)) = (number(first), number(last)) else {
                return Err(wrong(&format!("`{part}` is no CPU")));
            };
            if first > last || last >= CpuSet::MAX_CPU {
                return Err(wrong(&format!("`{part}` are no CPUs below {}", CpuSet::MAX_CPU)));
            }
            for cpu in first..=last {
                if cpus.contains(&cpu) {
                    return Err(wrong(&format!("CPU {cpu} is there twice")));
                }
                cpus.push(cpu);
            }
        }
        Ok(Self::Cpus(cpus))
    }
}

fn number(text: &str) -> Option<usize> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Where each worker of `devices` devices runs: `None` is anywhere.
pub(crate) fn places(arg: Option<&WorkersArg>, devices: usize) -> Result<Vec<Option<usize>>, Failure> {
    let places = match arg {
        None => {
            let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            vec![None; cpus]
        }
        Some(WorkersArg::Count(count)) => vec![None; *count],
        Some(WorkersArg::Cpus(cpus)) => {
            let usable = sched_getaffinity(None)
                .map_err(|errno| Failure::runtime(format!("cannot ask which CPUs there are: {errno}")))?;
            if let Some(cpu) = cpus.iter().find(|cpu| !usable.is_set(**cpu)) {
                let usable: Vec<_> =
                    (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu)).map(|cpu| cpu.to_string()).collect();
                let usable = usable.join(",");
                return Err(Failure::usage(format!(
                    "--workers: this process cannot run on CPU {cpu}, only on {usable}"
                )));
            }
            cpus.iter().copied().map(Some).collect()
        }
    };
    // One without a device has nothing to do.
    Ok(places.into_iter().take(devices).collect())
}

/// Moves this thread to one CPU.
pub(crate) fn pin(cpu: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
        .map_err(|errno| Failure::runtime(format!("cannot run a worker on CPU {cpu}: {errno}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_a_number_or_cpus() {
        let parse = |text: &str| text.parse::<WorkersArg>();
        assert_eq!(parse("4"), Ok(WorkersArg::Count(4)));
        assert_eq!(parse("cpu:3"), Ok(WorkersArg::Cpus(vec![3])));
        assert_eq!(parse("0,2-4"), Ok(WorkersArg::Cpus(vec![0, 2, 3, 4])));
        assert_eq!(parse("cpu:5,1"), Ok(WorkersArg::Cpus(vec![5, 1])));
        for bad in ["", "0", "1025", "+1", "-1", "1-", "3-2", "1,1", "1-3,2", "cpu:", "cpu:x", "0,1024", "a,b", "1.5"] {
            assert!(parse(bad).unwrap_err().contains("cpu:3"), "{bad}");
        }
    }

    #[test]
    fn there_are_no_more_workers_than_devices() {
        assert_eq!(places(Some(&WorkersArg::Count(5)), 2).unwrap(), [None; 2]);
        assert_eq!(places(Some(&WorkersArg::Count(2)), 5).unwrap(), [None; 2]);
        assert_eq!(places(None, 1).unwrap(), [None]);
        assert!(places(Some(&WorkersArg::Cpus(vec![1023])), 1).is_err());
    }
}
