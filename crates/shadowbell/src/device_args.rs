//! Which disks are served on which socket.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches, error::ErrorKind};

use crate::disk::DiskSpec;

/// One NVMe controller: its socket and its namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceArg {
    pub(crate) socket: PathBuf,
    pub(crate) disks: Vec<DiskSpec>,
}

/// All of them, as the order of the arguments says.
#[derive(Debug, Clone)]
pub(crate) struct DeviceArgs(pub(crate) Vec<DeviceArg>);

#[derive(Debug, Args)]
struct Flat {
    /// What stands behind a namespace: a raw image or block device (a path), `null:SIZE` (drops writes, for benchmarks;
    /// `null:SIZE,zeroes=on` reads as zeros), or `ram:SIZE`. Sizes take K, M, G, T (powers of 1024).
    #[arg(value_name = "DISK", required = true)]
    disks: Vec<DiskSpec>,

    /// The socket for the VMM; several of them are several controllers, each with the disks that follow its socket. Only its
    /// owner may connect; the file is removed at the end.
    #[arg(long, value_name = "PATH", required = true)]
    socket: Vec<PathBuf>,
}

impl Args for DeviceArgs {
    fn augment_args(command: Command) -> Command {
        Flat::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flat::augment_args_for_update(command)
    }
}

fn wrong(message: String) -> Error {
    Error::raw(ErrorKind::ArgumentConflict, message)
}

const ORDER: &str =
    "with several sockets, write each one before its disks: --socket a.sock DISK... --socket b.sock DISK...";

impl FromArgMatches for DeviceArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let Flat { disks, socket: sockets } = Flat::from_arg_matches(matches)?;
        if let [socket] = &sockets[..] {
            return Ok(Self(vec![DeviceArg { socket: socket.clone(), disks }]));
        }
        for (i, socket) in sockets.iter().enumerate() {
            if sockets[..i].contains(socket) {
                return Err(wrong(format!("--socket {} was given twice; each device needs its own", socket.display())));
            }
        }
        let indices = |id| matches.indices_of(id).into_iter().flatten();
        let starts: Vec<usize> = indices("socket").collect();
        let mut devices: Vec<_> = sockets.into_iter().map(|socket| DeviceArg { socket, disks: Vec::new() }).collect();
        for (disk, at) in disks.into_iter().zip(indices("disks")) {
            let device = starts.partition_point(|start| *start < at).checked_sub(1);
            match device.and_then(|device| devices.get_mut(device)) {
                Some(device) => device.disks.push(disk),
                None => return Err(wrong(format!("disk {disk} comes before the first socket; {ORDER}"))),
            }
        }
        match devices.iter().find(|device| device.disks.is_empty()) {
            Some(device) => Err(wrong(format!("no disk follows --socket {}; {ORDER}", device.socket.display()))),
            None => Ok(Self(devices)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    /// `socket=disk,disk` for each device.
    fn parse(line: &str) -> Result<Vec<String>, String> {
        let words = ["shadowbell", "serve"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Serve(args) = cli.command else { return Err("not serve".to_owned()) };
        let device = |device: &DeviceArg| {
            let disks: Vec<_> = device.disks.iter().map(ToString::to_string).collect();
            format!("{}={}", device.socket.display(), disks.join(","))
        };
        Ok(args.devices.0.iter().map(device).collect())
    }

    #[test]
    fn with_one_socket_the_order_does_not_matter() {
        for line in ["--socket s a b", "a b --socket s", "a --socket=s b", "--read-only a --queues 4 --socket s -- b"] {
            assert_eq!(parse(line).unwrap(), ["s=a,b"], "{line}");
        }
    }

    #[test]
    fn with_several_sockets_each_has_the_disks_that_follow_it() {
        assert_eq!(parse("--socket s a b --socket t c").unwrap(), ["s=a,b", "t=c"]);
        assert_eq!(parse("--socket s a --queues 3 b --socket=t --poll never c -- d").unwrap(), ["s=a,b", "t=c,d"]);
        for (line, expected) in [
            ("a --socket s b --socket t c", "disk a comes before the first socket"),
            ("--socket s --socket t c", "no disk follows --socket s"),
            ("--socket s c --socket t", "no disk follows --socket t"),
            ("--socket s c --socket s d", "given twice"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
