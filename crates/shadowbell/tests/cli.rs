//! The program as its user meets it: arguments, exit status, signals.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(60);

fn shadowbell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shadowbell"));
    command.args(args).env("RUST_LOG", "warn").stdin(Stdio::null());
    command
}

fn fails(args: &[&str]) -> (i32, String) {
    let Output { status, stderr, .. } = shadowbell(args).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

/// A server that has said that it listens.
struct Serving {
    child: Child,
    greeting: Vec<String>,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let mut child = shadowbell(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = Vec::new();
        while greeting.last().is_none_or(|line: &String| !line.contains("--user-device")) {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended: {greeting:?}");
            greeting.push(line);
        }
        Self { child, greeting, stdout }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn end(mut self) -> (i32, String) {
        self.signal(Signal::TERM);
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code().unwrap(), rest)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn wrong_arguments_end_with_status_2_and_say_what_to_do() {
    for (args, expected) in [
        (&["serve", "null:64G"][..], "--socket"),
        (&["serve", "--socket", "/tmp/x"], "<DISK>"),
        (&["serve", "null:", "--socket", "/tmp/x"], "64G"),
        (&["serve", "ram:0", "--socket", "/tmp/x"], "0 bytes"),
        (&["serve", "null:1000", "--socket", "/tmp/x"], "multiple of the block size 512"),
        (&["serve", "null:1G,zeros=on", "--socket", "/tmp/x"], "zeroes=on|off"),
        (&["serve", "null:1G", "--block-size", "1024", "--socket", "/tmp/x"], "512 or 4096"),
        (&["serve", "null:1G", "--queues", "512", "--socket", "/tmp/x"], "1..=511"),
        (&["serve", "null:1G", "--queue-depth", "1", "--socket", "/tmp/x"], "2..=4096"),
        (&["serve", "null:1G", "--serial", "far too long a serial number", "--socket", "/tmp/x"], "1 to 20"),
        (&["serve", "null:1G", "--model", "", "--socket", "/tmp/x"], "1 to 40"),
        (&["serve", "null:1G", "--pci-id", "nvme", "--socket", "/tmp/x"], "1234:dbdb"),
        (&["serve", "null:1G", "--write-cache", "maybe", "--socket", "/tmp/x"], "on, off"),
        (&["serve", "null:1G", "--read-only", "--create", "1G", "--socket", "/tmp/x"], "cannot be used with"),
        (&["serve", "ram:1M", "--socket", "/tmp/x", "--socket", "/tmp/y", "ram:1M"], "disk ram:1048576 comes before"),
        (&["serve", "--socket", "/tmp/x", "--socket", "/tmp/y", "ram:1M"], "no disk follows --socket /tmp/x"),
        (&["serve", "--socket", "/tmp/x", "ram:1M", "--socket", "/tmp/x", "ram:1M"], "given twice"),
        (
            &["serve", "--socket", "/tmp/x", "ram:1M", "--socket", "/tmp/y", "ram:1M", "--serial", "S"],
            "--serial is for one",
        ),
        (&["serve", "null:1G", "--socket", "/tmp/x", "--workers", "0"], "cpu:3"),
        (&["serve", "null:1G", "--socket", "/tmp/x", "--workers", "1-"], "cpu:3"),
        (&["serve", "null:1G", "--socket", "/tmp/x", "--workers", "cpu:1023"], "cannot run on CPU 1023"),
        (&["rattle"], "unrecognized subcommand"),
    ] {
        let (code, stderr) = fails(args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}

#[test]
fn what_cannot_be_opened_ends_with_status_1_and_names_the_object() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("odd.img"), [0; 700]).unwrap();
    fs::write(at("plain"), b"not a socket").unwrap();
    let (socket, missing, odd, plain) = (at("s.sock"), at("missing.img"), at("odd.img"), at("plain"));
    for (args, expected) in [
        (["serve", text(&missing), "--socket", text(&socket)], "missing.img"),
        (["serve", text(&odd), "--socket", text(&socket)], "multiple of the block size"),
        (["serve", text(dir.path()), "--socket", text(&socket)], "directory"),
        (["serve", "null:1G", "--socket", text(&plain)], "no socket"),
        (["serve", "null:1G", "--socket", "/nonexistent/dir/s.sock"], "/nonexistent/dir/s.sock"),
    ] {
        let (code, stderr) = fails(&args);
        assert_eq!(code, 1, "{args:?}: {stderr}");
        assert!(stderr.starts_with("shadowbell: ") && stderr.contains(expected), "{args:?}: {stderr}");
    }
    assert_eq!(fs::read(&plain).unwrap(), b"not a socket");
}

#[test]
fn a_busy_socket_is_left_alone_and_a_stale_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let mut first = Serving::start(&["serve", "null:1G", "--socket", text(&socket)]);
    let (code, stderr) = fails(&["serve", "null:1G", "--socket", text(&socket)]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("listening there already"), "{stderr}");
    assert!(UnixStream::connect(&socket).is_ok(), "the first one is still there");
    // Killed: its file stays behind.
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(socket.exists());
    let second = Serving::start(&["serve", "null:1G", "--socket", text(&socket)]);
    assert_eq!(second.end().0, 0);
    assert!(!socket.exists(), "the socket goes with its server");
}

#[test]
fn an_image_that_is_being_written_cannot_be_served_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (image, one, two) = (dir.path().join("a.img"), dir.path().join("1.sock"), dir.path().join("2.sock"));
    let first = Serving::start(&["serve", text(&image), "--create", "8M", "--socket", text(&one)]);
    let (code, stderr) = fails(&["serve", text(&image), "--socket", text(&two)]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("a.img") && stderr.contains("in use"), "{stderr}");
    assert!(!two.exists());
    assert_eq!(first.end().0, 0);
    assert_eq!(fs::metadata(&image).unwrap().len(), 8 << 20);
}

#[test]
fn the_greeting_holds_the_arguments_for_the_vmm() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("my disk.sock");
    let serving = Serving::start(&["serve", "null:64G", "ram:1M", "--socket", text(&socket), "--serial", "S1"]);
    let greeting = serving.greeting.concat();
    assert!(serving.greeting[0].contains("listening"), "{greeting}");
    assert!(greeting.contains("namespace 1: ") && greeting.contains("64 GiB"), "{greeting}");
    assert!(greeting.contains("namespace 2: ") && greeting.contains("1 MiB"), "{greeting}");
    assert!(greeting.contains("share=on") && greeting.contains("\"driver\":\"vfio-user-pci\""), "{greeting}");
    assert!(greeting.contains(text(&socket)), "{greeting}");
    assert_eq!(serving.end().0, 0);
}

#[test]
fn the_greeting_says_which_doorbells_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    for (args, said) in [
        (&[][..], "shadow doorbells offered"),
        (&["--doorbells", "auto"], "shadow doorbells offered"),
        (&["--doorbells", "shadow"], "shadow doorbells offered"),
        (&["--doorbells", "mapped"], "mapped doorbells offered"),
        (&["--doorbells", "register"], "doorbells by register"),
    ] {
        let serving = Serving::start(&[&["serve", "null:1G", "--socket", text(&socket)], args].concat());
        assert!(serving.greeting[0].contains(said), "{}", serving.greeting[0]);
        assert_eq!(serving.end().0, 0);
    }
}

#[test]
fn signals_print_statistics_and_end_the_server_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, stats) = (dir.path().join("s.sock"), dir.path().join("stats.json"));
    let mut serving = Serving::start(&["serve", "null:1G", "--socket", text(&socket), "--stats-file", text(&stats)]);
    let before = fs::read(&stats).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&before).unwrap();
    let device = &json["devices"][0];
    assert_eq!((&device["device"]["shadow_doorbells"], &device["totals"]["commands"]), (&false.into(), &0.into()));
    assert_eq!(device["socket"], text(&socket));
    fs::remove_file(&stats).unwrap();
    serving.signal(Signal::USR1);
    assert!(serving.line().starts_with("statistics of "));
    let start = Instant::now();
    while !stats.exists() {
        assert!(start.elapsed() < LIMIT, "the statistics file is written at SIGUSR1");
        std::thread::yield_now();
    }
    let (code, rest) = serving.end();
    assert_eq!(code, 0);
    assert!(rest.contains("statistics of "), "{rest}");
    assert!(!socket.exists());
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["stats.json"], "no temporary file stays");
}

#[test]
fn several_devices_are_greeted_counted_and_ended_together() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (a, b, c, stats) = (at("a.sock"), at("b.sock"), at("c.sock"), at("stats.json"));
    let args = ["serve", "--stats-file", text(&stats), "--workers", "2"];
    let devices =
        ["--socket", text(&a), "ram:1M", "null:1G", "--socket", text(&b), "ram:2M", "--socket", text(&c), "ram:2M"];
    let serving = Serving::start(&[&args[..], &devices[..]].concat());
    let greeting = serving.greeting.concat();
    assert_eq!(greeting.matches("listening on ").count(), 3, "{greeting}");
    assert_eq!(
        (greeting.matches("namespace 1: ").count(), greeting.matches("namespace 2: ").count()),
        (3, 1),
        "{greeting}"
    );
    assert_eq!(greeting.matches("vfio-user-pci").count(), 3, "{greeting}");
    for socket in [&a, &b, &c] {
        UnixStream::connect(socket).unwrap();
    }

    fs::remove_file(&stats).unwrap();
    serving.signal(Signal::USR1);
    let start = Instant::now();
    while !stats.exists() {
        assert!(start.elapsed() < LIMIT, "the statistics file is written at SIGUSR1");
        std::thread::yield_now();
    }
    let threads = format!("/proc/{}/task", serving.child.id());
    let names =
        fs::read_dir(threads).unwrap().map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    let mut workers: Vec<_> = names.filter(|name| name.starts_with("worker-")).collect();
    workers.sort();
    assert_eq!(workers, ["worker-0\n", "worker-1\n"]);
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    let of =
        |name: &str| json["devices"].as_array().unwrap().iter().map(|d| d[name].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("socket"), [text(&a), text(&b), text(&c)]);
    let serials = of("serial");
    assert!(serials[1] != serials[2], "equal disks, different serial numbers: {serials:?}");
    assert!(serials.iter().all(|serial| greeting.contains(serial)));

    let (code, rest) = serving.end();
    assert_eq!(code, 0);
    for socket in [&a, &b, &c] {
        assert!(rest.contains(&format!("statistics of {}: ", text(socket))), "{rest}");
        assert!(!socket.exists());
    }
}

#[test]
fn a_statistics_file_that_cannot_be_written_is_told_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let (code, stderr) =
        fails(&["serve", "null:1G", "--socket", text(&socket), "--stats-file", "/nonexistent/stats.json"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("/nonexistent/stats.json"), "{stderr}");
    assert!(!socket.exists());
}

#[test]
fn nobody_reading_the_output_is_no_reason_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let mut serving = Serving::start(&["serve", "null:1G", "--socket", text(&socket)]);
    // The read end of its standard output goes away.
    let (reader, _) = std::io::pipe().unwrap();
    serving.stdout = BufReader::new(std::process::ChildStdout::from(std::os::fd::OwnedFd::from(reader)));
    serving.signal(Signal::USR1);
    serving.signal(Signal::TERM);
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}
