//! The fio job file of a comparison, and what fio says of a run.

use std::path::Path;

use crate::fault::{Context, Result, ensure};
use crate::qemu::word;

/// The job file unless the user names another.
const DEFAULT: &str = include_str!("../../guest/compare.fio");

/// What the rig gives every job; what the job file says comes after it.
const COMMON: &str = "\
[global]
filename=${DISK}
ioengine=libaio
direct=1
thread
group_reporting
iodepth=${DEPTH}
numjobs=${JOBS}
cpus_allowed=${CPUS}
cpus_allowed_policy=split
exec_prerun=/tmp/mark before
exec_postrun=/tmp/mark after
";

/// Options that the comparison itself sets.
const OURS: [&str; 7] =
    ["filename", "directory", "iodepth", "numjobs", "group_reporting", "exec_prerun", "exec_postrun"];

/// A fio job file.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// As the user wrote it.
    pub(crate) text: String,
    /// Every I/O is one command: fio's count must be the server's.
    pub(crate) counts_are_exact: bool,
}

impl Default for Job {
    fn default() -> Self {
        Self { text: DEFAULT.to_owned(), counts_are_exact: true }
    }
}

impl Job {
    /// The job file at `path`, or the default one.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path).context(path.display())?;
        check(&text).context(path.display())?;
        // Large blocks are split, writes may bring flushes.
        Ok(Self { text, counts_are_exact: false })
    }

    /// The file for the guest.
    pub(crate) fn for_guest(&self) -> String {
        format!("{COMMON}{}", self.text)
    }
}

/// A job file fits when it has one job section and leaves to the comparison what it varies.
fn check(text: &str) -> Result<()> {
    let mut jobs = 0;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            jobs += u32::from(!name.trim_end_matches(']').trim().eq_ignore_ascii_case("global"));
        } else if let Some(option) = line.split(['=', ' ']).next().filter(|option| OURS.contains(option)) {
            return Err(crate::fault::Fault::new(format!("leave {option} away: the comparison sets it")));
        }
    }
    ensure!(jobs == 1, "a job file for a comparison has one job section, this one {jobs}");
    Ok(())
}

/// What fio and the guest's kernel say of one run, over reads, writes and trims.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RunResult {
    pub(crate) ios: u64,
    pub(crate) iops: f64,
    /// Mean latency; `None` when fio measured none.
    pub(crate) latency_us: Option<f64>,
    /// Interrupts of all vectors of the device.
    pub(crate) interrupts: u64,
    /// Calls of the kernel function that was probed.
    pub(crate) hits: u64,
}

impl RunResult {
    /// From the guest's `@result` line.
    pub(crate) fn parse(line: &str) -> Result<Self> {
        let text = |key: &str| word(line, key).context(format!("{key} in {line:?}"));
        let count = |key: &str| text(key)?.parse::<u64>().context(key);
        let number = |key: &str| -> Result<f64> {
            let value = text(key)?.parse::<f64>().context(key)?;
            ensure!(value.is_finite() && value >= 0.0, "{key} in {line:?}");
            Ok(value)
        };
        let error = text("error")?;
        ensure!(error == "0", "fio ended with error {error}");
        let (mut ios, mut iops, mut weighted) = (0_u64, 0.0, 0.0);
        for side in ["read", "write", "trim"] {
            let rate = number(&format!("{side}_iops"))?;
            ios = ios.saturating_add(count(&format!("{side}_ios"))?);
            iops += rate;
            weighted += rate * number(&format!("{side}_lat"))?;
        }
        ensure!(ios > 0 && iops > 0.0, "fio did no I/O: {line:?}");
        let latency_us = Some(weighted / iops / 1000.0).filter(|latency| *latency > 0.0);
        Ok(Self { ios, iops, latency_us, interrupts: count("interrupts")?, hits: count("hits")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_job_file_keeps_the_rules_for_the_users_own() {
        check(DEFAULT).unwrap();
        assert!(Job::default().for_guest().contains("exec_postrun=/tmp/mark after\n; What"));
    }

    #[test]
    fn a_job_file_with_two_jobs_or_an_option_of_the_comparison_is_refused() {
        let two = check("[global]\nbs=4k\n[a]\nrw=read\n[b]\n").unwrap_err().to_string();
        assert!(two.contains("one job section, this one 2"), "{two}");
        let depth = check("[a]\n iodepth=4\n").unwrap_err().to_string();
        assert!(depth.contains("leave iodepth away"), "{depth}");
        assert!(check("[GLOBAL]\n").is_err());
        check("; filename=x\n[a]\niodepth_batch=4\nrw=randrw\n").unwrap();
    }

    #[test]
    fn a_result_is_the_sum_of_its_sides_and_latency_is_weighted() {
        let line = "@result error=0 trim_ios=0 trim_iops=0 trim_lat=0 write_ios=100 write_iops=100.0 write_lat=40000.0 \
                    read_ios=300 read_iops=300.0 read_lat=20000.0 interrupts=50 hits=7";
        let result = RunResult::parse(line).unwrap();
        assert_eq!((result.ios, result.interrupts, result.hits), (400, 50, 7));
        assert!((result.iops - 400.0).abs() < 1e-9);
        assert!((result.latency_us.unwrap() - 25.0).abs() < 1e-9);
    }

    #[test]
    fn a_failed_or_odd_result_is_a_fault() {
        let line = |error: &str, read: &str| {
            format!(
                "@result error={error} trim_ios=0 trim_iops=0 trim_lat=0 write_ios=0 write_iops=0 write_lat=0 \
                 read_ios={read} read_iops=5 read_lat=0 interrupts=0 hits=0"
            )
        };
        assert_eq!(RunResult::parse(&line("0", "5")).unwrap().latency_us, None);
        assert!(RunResult::parse(&line("5", "5")).is_err());
        assert!(RunResult::parse(&line("0", "0")).is_err());
        assert!(RunResult::parse(&line("0", "x")).is_err());
        assert!(RunResult::parse("@result error=0").is_err());
    }
}
