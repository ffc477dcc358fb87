//! Many disks in one process: one is busy, the others rest and cost next to nothing.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use driver::{Device, Options, QueueOptions, QueuePair, VfioUser};
use rustix::process::{Pid, Signal, kill_process};
use vfio_user::ClientOptions;

const LIMIT: Duration = Duration::from_secs(60);
const DISKS: usize = 64;

struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process takes.
#[derive(Debug)]
struct Size {
    /// Memory of its own, in KiB: that of guests is shared.
    memory: u64,
    descriptors: usize,
    threads: usize,
}

impl Size {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        Self {
            memory: memory.trim().trim_end_matches(" kB").parse().unwrap(),
            descriptors: count("fd"),
            threads: count("task"),
        }
    }
}

fn open(socket: &Path) -> (Device, QueuePair) {
    let transport = VfioUser::connect(socket, ClientOptions::default().timeout(LIMIT)).unwrap();
    let mut device = Device::open(Arc::new(transport), Options::default()).unwrap();
    let queue = device.create_queue_pair(QueueOptions::default()).unwrap();
    (device, queue)
}

/// Reads until so many are done, a few in flight.
fn read((device, queue): &mut (Device, QueuePair), count: usize) {
    let disk = device.namespaces()[0];
    let buffer = device.allocate(4096).unwrap();
    let (mut sent, mut done) = (0, 0);
    let start = Instant::now();
    while done < count {
        while sent < count && queue.in_flight() < 8 {
            queue.read(&disk, 0, &buffer, 0).unwrap();
            sent += 1;
        }
        queue.ring().unwrap();
        let found = queue.poll(&mut |completion| assert_eq!(completion.ok(), Ok(()))).unwrap();
        done += found;
        if found == 0 {
            assert!(start.elapsed() < LIMIT, "{done} of {count}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn sixty_four_disks_in_one_process_work_and_the_idle_ones_cost_little() {
    let dir = tempfile::tempdir().unwrap();
    let (stats, sockets): (_, Vec<_>) =
        (dir.path().join("stats.json"), (0..DISKS).map(|i| dir.path().join(format!("{i}.sock"))).collect());
    let mut command = Command::new(env!("CARGO_BIN_EXE_shadowbell"));
    command.args(["serve", "--workers", "1", "--stats-file"]).arg(&stats).env("RUST_LOG", "warn");
    for socket in &sockets {
        command.arg("--socket").arg(socket).arg("null:1G");
    }
    let mut serving = Serving(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let mut greeting = BufReader::new(serving.0.stdout.take().unwrap());
    let mut line = String::new();
    greeting.read_line(&mut line).unwrap();
    assert!(line.contains("listening"), "{line}");
    // Nobody may be kept waiting by a full pipe.
    std::thread::spawn(move || std::io::copy(&mut greeting, &mut std::io::sink()));
    let pid = serving.0.id();

    let mut busy = open(&sockets[0]);
    read(&mut busy, 1000);
    let one = Size::of(pid);
    let mut idle: Vec<_> = sockets[1..].iter().map(|socket| open(socket)).collect();
    for disk in &mut idle {
        read(disk, 16);
    }
    let all = Size::of(pid);
    // An upper bound: the program itself is in it, and the busy disk.
    let each = all.memory / DISKS as u64;
    println!("with one client: {one:?}; with {DISKS}: {all:?}; at most {each} KiB for each disk");
    assert!(each < 1024, "{each} KiB");
    assert_eq!(all.threads, one.threads);
    let descriptors = all.descriptors - one.descriptors;
    assert!(descriptors <= 16 * DISKS, "{descriptors}");

    // The others sleep through all of this, and work afterwards.
    read(&mut busy, 50_000);
    fs::remove_file(&stats).unwrap();
    kill_process(Pid::from_child(&serving.0), Signal::USR1).unwrap();
    let start = Instant::now();
    while !stats.exists() {
        assert!(start.elapsed() < LIMIT, "statistics");
        std::thread::yield_now();
    }
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    let commands: Vec<_> = json["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["totals"]["commands"].as_u64().unwrap())
        .collect();
    assert_eq!(commands[0], 51_000);
    assert_eq!(commands[1..], [16; DISKS - 1]);
    for disk in &mut idle {
        read(disk, 16);
    }
    drop((busy, idle));
    kill_process(Pid::from_child(&serving.0), Signal::TERM).unwrap();
    assert_eq!(serving.0.wait().unwrap().code(), Some(0));
}
