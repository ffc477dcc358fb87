//! `shadowbell serve`.

use std::{collections::HashMap, os::fd::OwnedFd, path::Path, sync::Arc, time::Instant};

use block::BlockDevice;
use controller::{Config, DoorbellCommand, DoorbellMode, NvmeFunction, PciId};
use pci::{PciFunction, Wait};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use vfio_user::{Control, Device, Server, ServerOptions, Worker};

use crate::{
    cli::{Identity, ServeArgs},
    crew::{Crew, Job, Line},
    device_args::DeviceArg,
    disk::DiskSpec,
    output::{DeviceReport, Failure, human, say, table, write_json},
    signals::Signals,
    worker_arg,
};

/// The devices of one worker, with their places in the whole.
type Reports = Vec<(usize, DeviceReport)>;

/// Serves until a signal says stop.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let places = worker_arg::places(args.workers.as_ref(), args.devices.0.len())?;
    let configs = configs(args)?;
    raise_descriptor_limit();

    let signals = Signals::new().map_err(|error| Failure::runtime(format!("cannot listen to signals: {error}")))?;
    let mut servers = Vec::new();
    for device in &args.devices.0 {
        let server = Server::bind(&device.socket, ServerOptions::default());
        servers.push(server.map_err(|error| Failure::runtime(format!("socket {error}")))?);
    }
    let greeting = greeting(&args.devices.0, &configs);
    let mut workers: Vec<_> = places.iter().map(|_| (Worker::new(args.poll.into()), Vec::new())).collect();
    let mut reports = Vec::new();
    for (index, (server, config)) in servers.into_iter().zip(configs).enumerate() {
        let serial: Arc<str> = config.serial.as_str().into();
        let function = NvmeFunction::new(config).map_err(|error| Failure::runtime(error.to_string()))?;
        reports.push(report(server.path(), &serial, &function));
        let (worker, names) = &mut workers[index % places.len()];
        worker.add(server, function);
        names.push((index, serial));
    }
    if let Some(path) = &args.stats_file {
        // A path that cannot be written is better known now than after a day of work.
        write_json(path, &reports)?;
    }
    say(&greeting);

    let jobs = places.into_iter().zip(workers).map(|(cpu, (mut worker, names))| {
        let job: Job<Reports> = Box::new(move |line| serve(&mut worker, &names, line));
        (cpu, job)
    });
    Crew::start(jobs.collect())?.watch(&signals, &mut |all| {
        let mut all: Vec<_> = all.into_iter().flatten().collect();
        all.sort_by_key(|(index, _)| *index);
        for (_, report) in &all {
            say(&table(report));
        }
        args.stats_file.as_deref().map_or(Ok(()), |path| write_json(path, all.into_iter().map(|(_, report)| report)))
    })
}

/// What a worker's thread does. `names` are its devices' places in the whole, and their serial numbers.
fn serve(
    worker: &mut Worker<NvmeFunction>,
    names: &[(usize, Arc<str>)],
    line: &Line<Reports>,
) -> (Reports, Result<(), Failure>) {
    let reports = |devices: &[Device<NvmeFunction>]| -> Reports {
        let named = names.iter().zip(devices);
        named.map(|((index, serial), device)| (*index, report(device.path(), serial, device.function()))).collect()
    };
    let served = worker.run(&[line.fd()], &mut |devices, _| {
        let (report, stop) = line.orders();
        if report {
            line.report(reports(devices));
        }
        if stop { Control::Stop } else { Control::Continue }
    });
    for device in worker.devices_mut() {
        flush(device.function_mut());
    }
    (reports(worker.devices()), served.map_err(|error| Failure::runtime(error.to_string())))
}

fn report(socket: &Path, serial: &str, function: &NvmeFunction) -> DeviceReport {
    DeviceReport { socket: socket.display().to_string(), serial: serial.to_owned(), report: function.report() }
}

/// What each device is to be, with its disks open.
fn configs(args: &ServeArgs) -> Result<Vec<Config>, Failure> {
    if args.serial.is_some() && args.devices.0.len() > 1 {
        let what =
            "--serial is for one device; with several sockets, leave it away: each has one derived from its disks";
        return Err(Failure::usage(what.to_owned()));
    }
    let mut configs = Vec::new();
    let mut same = HashMap::new();
    for device in &args.devices.0 {
        let disks = device.disks.iter().map(DiskSpec::identity).collect::<Vec<_>>().join("\0");
        let before = same.entry(disks.clone()).or_insert(0u32);
        let mut config = Config::new(&args.serial.clone().unwrap_or_else(|| serial(&disks, *before)), Vec::new());
        *before += 1;
        config.model.clone_from(&args.model);
        let (pci_id, doorbell_command) = match args.identity {
            Identity::Shadowbell => (PciId::SHADOWBELL, DoorbellCommand::Standard),
            Identity::Google => (PciId::GOOGLE, DoorbellCommand::Vendor),
        };
        config.pci_id = args.pci_id.unwrap_or(pci_id);
        config.doorbell_command = doorbell_command;
        config.io_queues = args.queues;
        config.queue_entries = args.queue_depth;
        config.doorbells = args.doorbells.mode();
        config.check().map_err(|error| Failure::usage(error.to_string()))?;
        configs.push(config);
    }
    for (device, config) in args.devices.0.iter().zip(&mut configs) {
        for disk in &device.disks {
            config.namespaces.push(disk.open(args)?);
        }
        config.check().map_err(|error| Failure::usage(error.to_string()))?;
    }
    Ok(configs)
}

/// A serial number that stays the same for the same disks. `before` devices before this one have the same.
fn serial(disks: &str, before: u32) -> String {
    // No disk's name is empty.
    let copy = if before == 0 { String::new() } else { format!("\0\0{before}") };
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in disks.bytes().chain(copy.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("SB{hash:016X}")
}

/// A device takes a dozen descriptors and an eventfd for each of its guest's CPUs; the usual limit of 1024 is soon reached.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%errno, "the limit of open files stays as it is");
    }
}

/// Brings everything to stable storage.
fn flush(function: &mut NvmeFunction) {
    function.flush();
    loop {
        if function.poll() > 0 {
            continue;
        }
        if function.is_quiet() {
            return;
        }
        if let Wait::Until(until) = function.prepare_wait() {
            let timeout = until.map(|time| time.saturating_duration_since(Instant::now()));
            let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
            let mut fds: Vec<OwnedFd> = Vec::new();
            function.wait_fds(&mut |fd| fds.extend(fd.try_clone_to_owned()));
            let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            // EINTR and the like: look again.
            let _ = poll(&mut polled, timeout.as_ref());
        }
    }
}

fn greeting(devices: &[DeviceArg], configs: &[Config]) -> String {
    let (mut text, mut qemu, mut cloud_hypervisor) = (String::new(), String::new(), String::new());
    for (DeviceArg { socket, .. }, config) in devices.iter().zip(configs) {
        let absolute = std::path::absolute(socket).unwrap_or_else(|_| socket.clone());
        let socket = absolute.display().to_string();
        text.push_str(&format!(
            "shadowbell: listening on {socket} (serial {}, {} I/O queues of up to {} entries, {})\n",
            config.serial,
            config.io_queues,
            config.queue_entries,
            match config.doorbells {
                DoorbellMode::Shadow => "shadow doorbells offered",
                DoorbellMode::Mapped => "mapped doorbells offered",
                DoorbellMode::Register => "doorbells by register",
            },
        ));
        for (nsid, disk) in (1..).zip(&config.namespaces) {
            text.push_str(&format!("  namespace {nsid}: {}\n", describe(disk.as_ref())));
        }
        let device = serde_json::json!({"driver": "vfio-user-pci", "socket": {"type": "unix", "path": socket}});
        qemu.push_str(&format!(" \\\n  -device {}", quoted(&device.to_string())));
        cloud_hypervisor.push_str(&format!(" socket={}", quoted(&socket)));
    }
    text.push_str(&format!(
        "QEMU 10.1 or newer (guest memory must be shared; put your own size for 4G{}):\n  \
         -object memory-backend-memfd,id=ram0,size=4G,share=on -machine memory-backend=ram0 -m 4G{qemu}\n\
         Cloud Hypervisor:\n  \
         --memory size=4G,shared=on --user-device{cloud_hypervisor}\n",
        if devices.len() > 1 { "; each device may go to a guest of its own" } else { "" },
    ));
    text
}

fn describe(disk: &dyn BlockDevice) -> String {
    let c = disk.capabilities();
    format!(
        "{}, {}, {}-byte blocks{}{}",
        disk.name(),
        human(c.size),
        c.block_size,
        if c.read_only { ", read-only" } else { "" },
        if c.volatile_cache { ", write cache" } else { "" },
    )
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_stay_and_differ() {
        let serials =
            [serial("a", 0), serial("a", 1), serial("a", 2), serial("b", 0), serial("a\0b", 0), serial("a\x001", 0)];
        for (i, one) in serials.iter().enumerate() {
            assert_eq!(one.len(), 18);
            assert!(!serials[..i].contains(one));
        }
        assert_eq!(serial("ram:1073741824", 0), "SB9C50EBC452ED39C8");
    }

    #[test]
    fn words_for_a_shell_are_quoted_when_they_must_be() {
        assert_eq!(quoted("/run/a.sock"), "/run/a.sock");
        assert_eq!(quoted("/run/my disk"), "'/run/my disk'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
