//! `shadowbell bench` and `shadowbell identify` as their user meets them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::net::UnixListener,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

fn shadowbell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shadowbell"));
    command.args(args).env("RUST_LOG", "warn").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = shadowbell(args).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn json(args: &[&str]) -> Value {
    let (code, stdout, stderr) = run(args);
    assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
    serde_json::from_str(&stdout).unwrap()
}

fn wait_for<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A bench that runs, with a temporary directory of its own.
struct Running {
    child: Child,
    directory: tempfile::TempDir,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = shadowbell(args);
        command.env("TMPDIR", directory.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), directory }
    }

    /// Its server, once that does I/O: then the doorbells of the bench are in use.
    fn server(&self) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let server = wait_for("it starts a server", || {
            let text = fs::read_to_string(&children).unwrap();
            text.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().unwrap()))
        });
        let threads = format!("/proc/{}/task", self.child.id());
        wait_for("it starts its jobs", || {
            let names = fs::read_dir(&threads).unwrap().flatten();
            let names: Vec<_> = names.filter_map(|t| fs::read_to_string(t.path().join("comm")).ok()).collect();
            names.iter().any(|name| name.starts_with("bench-job")).then_some(())
        });
        server
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Status, standard output, standard error; nothing stays behind.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(fs::read_dir(self.directory.path()).unwrap().count(), 0, "its files are gone");
        (status.code(), stdout, stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn gone(pid: Pid) {
    wait_for("the server is gone", || test_kill_process(pid).is_err().then_some(()));
}

#[test]
fn a_short_run_in_a_pipe_gives_json_with_the_figures_of_both_doorbells() {
    let report = json(&["bench", "--iodepth", "1,4", "--runtime", "200ms", "--output-format", "json"]);
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> =
        rows.iter().map(|r| (r["iodepth"].as_u64().unwrap(), r["doorbells"].as_str().unwrap())).collect();
    assert_eq!(names, [(1, "register"), (1, "shadow"), (4, "register"), (4, "shadow")]);
    for row in rows {
        assert_eq!(row["numjobs"], 1);
        assert!(row["iops"].as_f64().unwrap() > 10.0, "{row}");
        let latency = ["p50", "p99", "p99_9"].map(|name| row["latency_us"][name].as_f64().unwrap());
        assert!(latency[0] > 0.0 && latency.is_sorted(), "{row}");
        assert!(row["latency_us"]["mean"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["wakeups_per_io"].is_f64() && row["interrupts_per_io"].is_f64(), "{row}");
        assert_eq!(row["counted_by"], "device");
        assert_eq!(row["device"]["commands"], row["driver"]["commands"], "{row}");
    }
    for pair in rows.chunks(2) {
        let writes = |row: &Value| row["register_writes_per_io"].as_f64().unwrap();
        assert!(writes(&pair[0]) > 1.0 && writes(&pair[0]) <= 2.01, "{}", pair[0]);
        assert!(writes(&pair[1]) < writes(&pair[0]), "{}", pair[1]);
        let ratio = pair[1]["iops"].as_f64().unwrap() / pair[0]["iops"].as_f64().unwrap();
        assert!((pair[1]["ratio_to_register"].as_f64().unwrap() - ratio).abs() < 1e-6);
    }
    for fact in ["kernel", "cpu"] {
        assert!(!report["machine"][fact].as_str().unwrap().is_empty());
    }
    assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
    assert_eq!(report["shadowbell"], env!("CARGO_PKG_VERSION"));
    assert!(report["command"].as_str().unwrap().contains("bench --iodepth 1,4"));
}

#[test]
fn interrupts_verification_and_html_work_in_process_and_over_a_socket() {
    let report = json(&[
        "bench",
        "ram:8M",
        "--verify",
        "--iodepth",
        "8",
        "--runtime",
        "100ms",
        "--completion",
        "interrupt",
        "--output-format",
        "json",
    ]);
    for row in report["rows"].as_array().unwrap() {
        assert!(row["interrupts_per_io"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["verify"]["faults"], 0);
        assert!(row["verify"]["checked"].as_u64().unwrap() >= (8 << 20) / 512, "{row}");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.html");
    let (code, stdout, stderr) = run(&[
        "bench",
        "--target",
        "in-process",
        "--iodepth",
        "4",
        "--numjobs",
        "1,2",
        "--runtime",
        "50ms",
        "--output-format",
        "html",
        "--output",
        file.to_str().unwrap(),
    ]);
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
    let page = fs::read_to_string(&file).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(page.matches("<figure>").count(), 3, "rate, latency, register writes");
    for outside in ["http:", "https:", "src=", "href=", "@import"] {
        assert!(!page.contains(outside), "the file needs nothing else: {outside}");
    }
}

#[test]
fn ctrl_c_prints_what_was_measured_and_ends_the_server() {
    // From outside nobody sees when the warm-up is over and a row has begun. A signal that came too early leaves no row; then
    // it is tried again, later.
    let mut patience = Duration::from_millis(600);
    loop {
        let running = Running::start(&["bench", "--iodepth", "2", "--runtime", "600"]);
        let server = running.server();
        std::thread::sleep(patience);
        running.signal(Signal::INT);
        let (code, stdout, stderr) = running.end();
        assert_eq!((code, stderr.as_str()), (Some(130), ""), "{stdout}");
        gone(server);
        if stdout.contains("stopped after") {
            assert!(stdout.contains("register") && stdout.contains("interrupted"), "{stdout}");
            return;
        }
        patience *= 4;
        assert!(patience < LIMIT, "{stdout}");
    }
}

#[test]
fn a_server_that_dies_ends_the_bench_with_its_reason() {
    let running = Running::start(&["bench", "--iodepth", "2", "--doorbells", "shadow", "--runtime", "600"]);
    kill_process(running.server(), Signal::KILL).unwrap();
    let (code, stdout, stderr) = running.end();
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    assert!(stderr.contains("the server has ended") && stderr.contains("signal: 9"), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn the_server_goes_with_a_bench_that_is_killed() {
    let running = Running::start(&["bench", "--runtime", "600"]);
    let server = running.server();
    running.signal(Signal::KILL);
    gone(server);
}

/// A server that runs already.
struct Serving(Child);

impl Serving {
    fn start(socket: &Path, more: &[&str]) -> Self {
        let mut child = shadowbell(&["serve", "ram:16M", "--socket", socket.to_str().unwrap()])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut greeting = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut greeting).unwrap();
        assert!(greeting.contains("listening"), "{greeting}");
        Self(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn mapped_doorbells_are_measured_on_a_device_that_was_started_with_them() {
    for target in [&[][..], &["--target", "in-process"]] {
        let words =
            ["bench", "--doorbells", "mapped", "--iodepth", "4", "--runtime", "100ms", "--output-format", "json"];
        let report = json(&[&words[..], target].concat());
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 1, "{target:?}");
        assert_eq!((rows[0]["doorbells"].as_str(), rows[0]["counted_by"].as_str()), (Some("mapped"), Some("device")));
        assert_eq!(rows[0]["register_writes_per_io"], 0.0, "none reaches the device as a message");
        assert!(rows[0]["driver"]["sq_register_writes"].as_u64() > Some(0), "{}", rows[0]);
        assert_eq!(rows[0]["driver"]["sq_spared"], 0);
    }
}

#[test]
fn a_server_that_runs_already_is_measured_identified_and_left_running() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s.sock");
    let mut serving = Serving::start(&socket, &["--serial", "S123", "--doorbells", "register"]);
    let target = format!("socket:{}", socket.display());
    let bench = ["bench", "--target", &target, "--iodepth", "4", "--runtime", "50ms", "--output-format", "json"];
    let report = json(&bench);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "there are no shadow doorbells");
    assert_eq!((rows[0]["counted_by"].as_str(), &rows[0]["wakeups_per_io"]), (Some("driver"), &Value::Null));
    assert!(report["notes"].to_string().contains("no shadow doorbells"), "{report}");
    let (code, _, stderr) = run(&[&bench[..], &["--doorbells", "shadow"]].concat());
    assert_eq!(code, 1);
    assert!(stderr.contains("--doorbells mapped or register"), "{stderr}");
    let identify = json(&["identify", &target, "--output-format", "json"]);
    assert_eq!(identify["id_ctrl"]["sn"], "S123");
    assert_eq!(identify["id_ctrl"]["oacs"].as_u64().unwrap() & 0x100, 0);
    assert_eq!(identify["namespaces"][0]["id_ns"]["nsze"], (16 << 20) / 512);
    assert_eq!(serving.0.try_wait().unwrap(), None);
}

#[test]
fn identify_says_what_nvme_cli_would() {
    let (code, text, stderr) = run(&["identify", "ram:1M"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    for line in ["vid       : 0x1234", "sqes      : 0x66", "nsze      : 2048", "lbads:9"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let json = json(&["identify", "ram:1M", "--output-format", "json"]);
    assert_eq!(json["id_ctrl"]["vid"], 0x1234);
    assert_eq!(json["namespaces"][0]["nsid"], 1);
    assert_eq!(json["namespaces"][0]["id_ns"]["lbafs"][0]["ds"], 9);
    assert!(json["id_ctrl"]["psds"].is_array());
}

#[test]
fn a_server_that_never_answers_or_talks_nonsense_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let target = format!("socket:{}", socket.display());
    let silent = std::thread::spawn({
        let listener = listener.try_clone().unwrap();
        move || listener.accept().unwrap()
    });
    let (code, _, stderr) = run(&["bench", "--target", &target]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("s.sock") && stderr.contains("no answer in time"), "{stderr}");
    drop(silent.join().unwrap());
    let nonsense = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(&[0x5a; 4096]);
        stream
    });
    let (code, _, stderr) = run(&["bench", "--target", &target]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.starts_with("shadowbell: socket ") && stderr.contains("s.sock"), "{stderr}");
    drop(nonsense.join().unwrap());
}

#[test]
fn wrong_arguments_end_with_status_2_and_what_cannot_be_opened_with_1() {
    for (expected, args, words) in [
        (2, &["bench", "--iodepth", "0"][..], "1..=2047"),
        (2, &["bench", "--rw", "sideways"], "randrw"),
        (2, &["bench", "--shape", "2017"], "2016"),
        (2, &["bench", "--runtime", "0"], "500ms"),
        (2, &["bench", "--target", "tcp:x"], "socket:PATH"),
        (2, &["bench", "ram:1M", "--target", "socket:/x"], "leave it away"),
        (2, &["bench", "--target", "socket:/x", "--poll", "never"], "leave it away"),
        (2, &["bench", "--verify"], "ram:256M"),
        (2, &["bench", "null:1000"], "multiple of the block size"),
        (2, &["bench", "--bs", "1000"], "multiple"),
        (2, &["identify", "socket:"], "path of the socket"),
        (1, &["bench", "/nonexistent/disk.img"], "/nonexistent/disk.img"),
        (1, &["bench", "--target", "in-process", "/nonexistent/disk.img"], "/nonexistent/disk.img"),
        (1, &["bench", "--target", "socket:/nonexistent/s.sock"], "/nonexistent/s.sock"),
        (1, &["bench", "--output", "/nonexistent/report"], "/nonexistent/report"),
        (1, &["identify", "/nonexistent/disk.img"], "/nonexistent/disk.img"),
    ] {
        let (code, _, stderr) = run(args);
        assert_eq!(code, expected, "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
}
