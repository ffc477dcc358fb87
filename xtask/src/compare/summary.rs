//! Medians over the rounds, and ratios to QEMU's best.

use bench::Machine;
use serde::Serialize;

use super::device::Device;
use super::measure::{Measurement, Point};

/// A comparison and its circumstances.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The command line.
    pub(crate) command: String,
    pub(crate) shadowbell: String,
    pub(crate) qemu: String,
    /// How QEMU ran the guest.
    pub(crate) accel: String,
    pub(crate) guest: String,
    pub(crate) machine: Machine,
    pub(crate) backing: String,
    /// The fio job file.
    pub(crate) job: String,
    pub(crate) rounds: u32,
    pub(crate) seconds: u32,
    pub(crate) devices: Vec<About>,
    /// Medians: all devices at the first point, then at the next.
    pub(crate) rows: Vec<Row>,
    /// Everything that was measured, in the order of time.
    pub(crate) measurements: Vec<Measurement>,
    /// What the reader should know.
    pub(crate) notes: Vec<String>,
}

/// What a device's name means.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
}

/// A device at a point: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) device: &'static str,
    #[serde(flatten)]
    pub(crate) point: Point,
    /// I/Os of the round that had the fewest.
    pub(crate) fewest_ios: u64,
    pub(crate) iops: f64,
    /// Smallest and largest over the rounds.
    pub(crate) iops_range: (f64, f64),
    pub(crate) cpu_us_per_io: f64,
    pub(crate) register_writes_per_io: Option<f64>,
    pub(crate) cq_writes_per_io: Option<f64>,
    pub(crate) interrupts_per_io: f64,
    pub(crate) latency_us: Option<f64>,
    /// Of ours: IOPS by those of the faster of the references.
    pub(crate) iops_ratio: Option<f64>,
    /// Of ours: CPU time per I/O by that of the cheaper of the references.
    pub(crate) cpu_ratio: Option<f64>,
}

/// The middle value; the mean of the two in the middle; `None` of nothing.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get(values.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// Fewer I/Os in a round say nothing.
const ENOUGH_IOS: u64 = 500;

/// A warning about rows with too few I/Os.
pub(crate) fn too_few(rows: &[Row]) -> Option<String> {
    let few = rows.iter().filter(|row| row.fewest_ios < ENOUGH_IOS).count();
    (few > 0).then(|| {
        format!(
            "In {few} of {} rows a round had fewer than {ENOUGH_IOS} I/Os, which is too few: the machine was busy, or \
             more --seconds are needed.",
            rows.len()
        )
    })
}

/// One row for each device at each point, from `timed`; register writes that only `counted` knows come from there.
pub(crate) fn rows(devices: &[Device], points: &[Point], timed: &[Measurement], counted: &[Measurement]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &point in points {
        let start = rows.len();
        rows.extend(devices.iter().filter_map(|device| row(device, point, timed, counted)));
        add_ratios(devices, &mut rows[start..]);
    }
    rows
}

fn row(device: &Device, point: Point, timed: &[Measurement], counted: &[Measurement]) -> Option<Row> {
    let of = |all: &'_ [Measurement], value: &dyn Fn(&Measurement) -> Option<f64>| -> Vec<f64> {
        all.iter().filter(|m| m.device == device.name && m.point == point).filter_map(value).collect()
    };
    let rate = of(timed, &|m| Some(m.iops));
    let either = |value: &dyn Fn(&Measurement) -> Option<f64>| median(of(timed, value)).or(median(of(counted, value)));
    let range = rate.iter().fold((f64::INFINITY, 0.0), |(low, high), &n| (n.min(low), n.max(high)));
    let ios = timed.iter().filter(|m| m.device == device.name && m.point == point).map(|m| m.ios);
    Some(Row {
        device: device.name,
        point,
        fewest_ios: ios.min()?,
        iops: median(rate)?,
        iops_range: range,
        cpu_us_per_io: median(of(timed, &|m| Some(m.cpu_us_per_io)))?,
        register_writes_per_io: either(&|m| m.register_writes_per_io),
        cq_writes_per_io: either(&|m| m.cq_writes_per_io),
        interrupts_per_io: median(of(timed, &|m| Some(m.interrupts_per_io)))?,
        latency_us: median(of(timed, &|m| m.latency_us)),
        iops_ratio: None,
        cpu_ratio: None,
    })
}

/// Sets our devices' ratios among the rows of one point.
fn add_ratios(devices: &[Device], rows: &mut [Row]) {
    let is = |row: &Row, what: fn(&Device) -> bool| devices.iter().any(|d| d.name == row.device && what(d));
    let references: Vec<&Row> = rows.iter().filter(|row| is(row, Device::is_reference)).collect();
    let fastest = references.iter().map(|row| row.iops).reduce(f64::max).filter(|iops| *iops > 0.0);
    let cheapest = references.iter().map(|row| row.cpu_us_per_io).reduce(f64::min).filter(|cpu| *cpu > 0.0);
    for row in rows.iter_mut().filter(|row| is(row, Device::is_ours)) {
        row.iops_ratio = fastest.map(|fastest| row.iops / fastest);
        row.cpu_ratio = cheapest.map(|cheapest| row.cpu_us_per_io / cheapest);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::compare::device;

    pub(in crate::compare) fn measurement(device: &'static str, depth: u32, iops: f64, cpu: f64) -> Measurement {
        Measurement {
            device,
            round: 1,
            point: Point { jobs: 1, depth },
            ios: 1000,
            iops,
            cpu_us_per_io: cpu,
            interrupts_per_io: 1.0,
            latency_us: Some(1e6 / iops),
            register_writes_per_io: None,
            cq_writes_per_io: None,
        }
    }

    #[test]
    fn a_median_is_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0]), Some(5.0));
        assert_eq!(median([100.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 100.0, 2.0]), Some(3.0));
    }

    #[test]
    fn ours_is_set_against_the_better_reference_of_the_same_point() {
        let names = ["nvme", "nvme-registers", "virtio-blk", "shadowbell"].map(str::to_owned);
        let devices = device::select(&names).unwrap();
        let mut timed = vec![
            measurement("nvme", 1, 100.0, 50.0),
            measurement("virtio-blk", 1, 200.0, 80.0),
            // Faster and cheaper than both, but no reference.
            measurement("nvme-registers", 1, 900.0, 1.0),
            measurement("nvme", 4, 5000.0, 2.0),
        ];
        for iops in [300.0, 500.0, 100.0] {
            timed.push(measurement("shadowbell", 1, iops, 25.0));
        }
        let points = [Point { jobs: 1, depth: 1 }, Point { jobs: 1, depth: 4 }];
        let rows = rows(&devices, &points, &timed, &[]);
        let names: Vec<_> = rows.iter().map(|row| (row.device, row.point.depth)).collect();
        assert_eq!(
            names,
            [("nvme", 1), ("nvme-registers", 1), ("virtio-blk", 1), ("shadowbell", 1), ("nvme", 4)],
            "the order of the tables, without what was not measured"
        );
        assert_eq!((rows[3].iops, rows[3].iops_range), (300.0, (100.0, 500.0)));
        assert_eq!((rows[3].iops_ratio, rows[3].cpu_ratio), (Some(1.5), Some(0.5)));
        assert!(rows.iter().all(|row| row.device == "shadowbell" || row.iops_ratio.is_none()));
    }

    #[test]
    fn rows_with_a_round_of_few_ios_are_told() {
        let few = Measurement { ios: 499, ..measurement("shadowbell", 1, 5.0, 5.0) };
        let timed = [measurement("shadowbell", 1, 5.0, 5.0), few, measurement("shadowbell", 2, 5.0, 5.0)];
        let points = [1, 2].map(|depth| Point { jobs: 1, depth });
        let warning = too_few(&rows(&[device::SHADOWBELL], &points, &timed, &[])).unwrap();
        assert!(warning.starts_with("In 1 of 2 rows"), "{warning}");
        assert_eq!(too_few(&rows(&[device::SHADOWBELL], &points, &timed[2..], &[])), None);
    }

    #[test]
    fn without_a_reference_there_is_no_ratio() {
        let rows =
            rows(&[device::SHADOWBELL], &[Point { jobs: 1, depth: 1 }], &[measurement("shadowbell", 1, 5.0, 5.0)], &[]);
        assert_eq!((rows[0].iops_ratio, rows[0].cpu_ratio), (None, None));
    }

    #[test]
    fn a_counting_run_gives_register_writes_only_where_the_timed_one_has_none() {
        let names = ["nvme", "shadowbell"].map(str::to_owned);
        let devices = device::select(&names).unwrap();
        let ours = Measurement { register_writes_per_io: Some(0.5), ..measurement("shadowbell", 1, 10.0, 1.0) };
        let timed = [measurement("nvme", 1, 10.0, 1.0), ours];
        let counted = ["nvme", "shadowbell"].map(|device| Measurement {
            register_writes_per_io: Some(2.0),
            iops: 1.0,
            ..measurement(device, 1, 1.0, 9.0)
        });
        let rows = rows(&devices, &[Point { jobs: 1, depth: 1 }], &timed, &counted);
        assert_eq!((rows[0].register_writes_per_io, rows[1].register_writes_per_io), (Some(2.0), Some(0.5)));
        assert_eq!((rows[0].iops, rows[0].cpu_us_per_io), (10.0, 1.0), "speed comes from the timed run alone");
    }
}
