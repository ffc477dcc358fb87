//! `shadowbell serve`.

use std::{os::fd::OwnedFd, path::Path, time::Instant};

use block::BlockDevice;
use controller::{Config, DoorbellCommand, DoorbellMode, NvmeFunction, PciId, PollMode};
use pci::{PciFunction, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vfio_user::{Control, Server, ServerOptions};

use crate::{
    cli::{Identity, Poll, ServeArgs},
    disk::DiskSpec,
    output::{Failure, human, say, table, write_json},
    signals::Signals,
};

/// Serves until a signal says stop.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let mut config = Config::new(&serial(args), Vec::new());
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
    config.poll = match args.poll {
        Poll::Auto => PollMode::Auto,
        Poll::Always => PollMode::Always,
        Poll::Never => PollMode::Never,
    };
    config.check().map_err(|error| Failure::usage(error.to_string()))?;
    for disk in &args.disks {
        config.namespaces.push(disk.open(args)?);
    }
    config.check().map_err(|error| Failure::usage(error.to_string()))?;

    let signals = Signals::new().map_err(|error| Failure::runtime(format!("cannot listen to signals: {error}")))?;
    let mut server = Server::bind(&args.socket, ServerOptions::default())
        .map_err(|error| Failure::runtime(format!("socket {error}")))?;
    let greeting = greeting(&args.socket, &config);
    let mut function = NvmeFunction::new(config).map_err(|error| Failure::runtime(error.to_string()))?;
    if let Some(path) = &args.stats_file {
        // A path that cannot be written is better known now than after a day of work.
        write_json(path, &function.report())?;
    }
    say(&greeting);

    let served = server.run(&mut function, &[signals.stop.fd(), signals.report.fd()], &mut |function, _| {
        if signals.report.take()
            && let Err(failure) = report(args, function)
        {
            failure.report();
        }
        if signals.stop.take() {
            tracing::info!("stopping: waits for I/O in flight and flushes; a second signal ends at once");
            signals.end_at_the_next();
            return Control::Stop;
        }
        Control::Continue
    });
    flush(&mut function);
    report(args, &function)?;
    served.map_err(|error| Failure::runtime(format!("socket {}: {error}", args.socket.display())))
}

/// Prints the statistics and writes them to the file, if one is wanted.
fn report(args: &ServeArgs, function: &NvmeFunction) -> Result<(), Failure> {
    let report = function.report();
    say(&table(&report));
    args.stats_file.as_deref().map_or(Ok(()), |path| write_json(path, &report))
}

/// Brings everything to stable storage.
fn flush(function: &mut NvmeFunction) {
    function.flush();
    loop {
        if function.poll() {
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

/// The serial number that was given, or one that stays the same for the same disks.
fn serial(args: &ServeArgs) -> String {
    args.serial.clone().unwrap_or_else(|| {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for byte in args.disks.iter().map(DiskSpec::identity).collect::<Vec<_>>().join("\0").bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        format!("SB{hash:016X}")
    })
}

fn greeting(socket: &Path, config: &Config) -> String {
    let absolute = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let socket = absolute.display().to_string();
    let mut text = format!(
        "shadowbell: listening on {socket} (serial {}, {} I/O queues of up to {} entries, {})\n",
        config.serial,
        config.io_queues,
        config.queue_entries,
        match config.doorbells {
            DoorbellMode::Shadow => "shadow doorbells offered",
            DoorbellMode::Mapped => "mapped doorbells offered",
            DoorbellMode::Register => "doorbells by register",
        },
    );
    for (nsid, disk) in (1..).zip(&config.namespaces) {
        text.push_str(&format!("  namespace {nsid}: {}\n", describe(disk.as_ref())));
    }
    let device = serde_json::json!({"driver": "vfio-user-pci", "socket": {"type": "unix", "path": socket}});
    text.push_str(&format!(
        "QEMU 10.1 or newer (guest memory must be shared; put your own size for 4G):\n  \
         -object memory-backend-memfd,id=ram0,size=4G,share=on -machine memory-backend=ram0 -m 4G \\\n  \
         -device {}\n\
         Cloud Hypervisor:\n  \
         --memory size=4G,shared=on --user-device socket={}\n",
        quoted(&device.to_string()),
        quoted(&socket),
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
    fn words_for_a_shell_are_quoted_when_they_must_be() {
        assert_eq!(quoted("/run/a.sock"), "/run/a.sock");
        assert_eq!(quoted("/run/my disk"), "'/run/my disk'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
