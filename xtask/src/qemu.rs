//! A guest: QEMU's arguments, its serial console, and how it ended.
//!
//! The console is the guest's and the host's only conversation. Lines that begin with
//! `@` are for the host; a script that waits for a line gets one from [`Guest::release`].

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::cpio::Archive;
use crate::fault::{Context, Result, bail, ensure};
use crate::process::{self, Process};
use crate::rig::accel::Accel;
use crate::rig::{Kernel, Rig};

/// Kernel arguments of every guest: a serial console, and nothing that only costs time under TCG.
pub(crate) const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr \
    tsc=reliable no_timer_check cryptomgr.notests random.trust_cpu=on audit=0 apparmor=0 \
    nmi_watchdog=0 8250.nr_uarts=1 rcupdate.rcu_expedited=1";

/// Size of the null drive behind QEMU's own NVMe device: the same as ours, 64 GiB.
const QEMU_NULL_BYTES: u64 = 64 << 30;

/// What boots the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Firmware {
    /// QEMU loads kernel and initramfs itself.
    #[default]
    None,
    /// SeaBIOS boots from the disk.
    Seabios,
    /// OVMF (UEFI) boots from the disk.
    Ovmf,
}

/// The guest's NVMe device.
#[derive(Clone, Debug, Default)]
pub(crate) enum Disk {
    #[default]
    None,
    /// Ours, by vfio-user.
    Shadowbell { socket: PathBuf, namespaces: usize },
    /// QEMU's own device, with more properties for it; a drive is `null` or a raw image.
    Qemu { drives: Vec<PathBuf>, properties: String },
}

/// How a guest is to be started.
#[derive(Clone, Debug)]
pub(crate) struct GuestConfig {
    pub(crate) kernel: Kernel,
    pub(crate) accel: Accel,
    pub(crate) firmware: Firmware,
    pub(crate) disk: Disk,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u32,
    /// Kernel arguments after the usual ones.
    pub(crate) append: String,
    /// Host files and where the guest gets them.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// Shell script for the guest.
    pub(crate) script: String,
    pub(crate) qemu_args: Vec<String>,
    /// The guest may restart itself; otherwise a restart ends QEMU.
    pub(crate) may_reboot: bool,
    /// Print the script's output as it comes.
    pub(crate) echo: bool,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            kernel: Kernel::V6_12,
            accel: Accel::Tcg,
            firmware: Firmware::None,
            disk: Disk::None,
            memory_mib: 1024,
            cpus: 2,
            append: String::new(),
            files: Vec::new(),
            script: String::new(),
            qemu_args: Vec::new(),
            may_reboot: false,
            echo: false,
        }
    }
}

/// How a guest's run ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The script's status; `None` when it did not end by itself.
    pub(crate) status: Option<u8>,
    /// The time limit passed.
    pub(crate) timed_out: bool,
    /// The script was started.
    pub(crate) ready: bool,
}

/// A running guest; ended on drop.
#[derive(Debug)]
pub(crate) struct Guest {
    qemu: Process,
    input: ChildStdin,
    lines: Receiver<String>,
    log: File,
    echo: bool,
    status: Option<u8>,
    ready: bool,
    /// Seconds from QEMU's start to the script's.
    pub(crate) boot_seconds: Option<f64>,
    started: Instant,
    /// Lines of the script that were read so far.
    pub(crate) output: Vec<String>,
    stderr_log: PathBuf,
}

impl Guest {
    /// Starts QEMU; its logs in `dir` begin with `name`.
    pub(crate) fn boot(rig: &Rig, config: &GuestConfig, dir: &Path, name: &str) -> Result<Self> {
        let mut command = rig.qemu();
        command.args(arguments(rig, config, dir, name)?);
        let stderr_log = dir.join(format!("{name}.qemu.log"));
        let log_path = dir.join(format!("{name}.log"));
        let log = File::create(&log_path).context(log_path.display())?;
        let mut qemu = Process::start("QEMU", &command, &stderr_log)?;
        let input = qemu.take_stdin()?;
        let console = qemu.take_stdout()?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut console = BufReader::new(console);
            let mut bytes = Vec::new();
            while console.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
                let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                bytes.clear();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            qemu,
            input,
            lines,
            log,
            echo: config.echo,
            status: None,
            ready: false,
            boot_seconds: None,
            started: Instant::now(),
            output: Vec::new(),
            stderr_log,
        })
    }

    /// The next line that the script printed; `None` at QEMU's end.
    pub(crate) fn next_line(&mut self, end: Instant) -> Result<Option<String>> {
        loop {
            process::check_interrupt()?;
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    // The log serves only a failure's report.
                    let _ = writeln!(self.log, "{line}");
                    // After the script's end only the kernel speaks.
                    if self.rig_line(&line) || self.status.is_some() {
                        continue;
                    }
                    if self.echo && self.ready {
                        println!("{line}");
                    }
                    self.output.push(line.clone());
                    return Ok(Some(line));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= end => {
                    bail!("time limit passed")
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// Takes a line of the guest's init; false for any other.
    fn rig_line(&mut self, line: &str) -> bool {
        // Kernel messages may stand in front of it.
        let Some((_, word)) = line.split_once("@rig ") else { return false };
        if word.starts_with("ready") {
            self.ready = true;
            self.boot_seconds.get_or_insert(self.started.elapsed().as_secs_f64());
        } else if let Some(rest) = word.strip_prefix("exit status=") {
            self.status = rest.split(' ').next().and_then(|number| number.parse().ok());
        }
        true
    }

    /// Reads on until a line contains `text`, and gives that line.
    pub(crate) fn wait_for(&mut self, text: &str, limit: Duration) -> Result<String> {
        let end = Instant::now() + limit;
        loop {
            match self.next_line(end).context(format!("waiting for {text:?} from the guest"))? {
                Some(line) if line.contains(text) => return Ok(line),
                Some(_) => {}
                None => bail!(
                    "the guest ended before it said {text:?}{}",
                    self.status.map_or_else(String::new, |status| format!(" (script status {status})"))
                ),
            }
        }
    }

    /// Sends one empty line to the guest, which lets one waiting reader go on.
    pub(crate) fn release(&mut self) -> Result<()> {
        self.send("")
    }

    /// Sends one line to the guest.
    pub(crate) fn send(&mut self, line: &str) -> Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).context("guest console")
    }

    /// Reads to the guest's end.
    pub(crate) fn finish(&mut self, limit: Duration) -> Result<Outcome> {
        let end = Instant::now() + limit;
        let mut timed_out = false;
        loop {
            match self.next_line(end) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    process::check_interrupt()?;
                    ensure!(Instant::now() >= end, "{error}");
                    timed_out = true;
                    break;
                }
            }
        }
        if !timed_out {
            // The console closed: QEMU is on its way out.
            let status = self.qemu.wait(Duration::from_secs(20))?;
            if self.status.is_none() {
                let tail = process::tail(&self.stderr_log, 10);
                let how = status.map_or_else(|| "did not end".to_owned(), process::describe);
                eprintln!("xtask: QEMU ended without the script's status ({how})\n{tail}");
            }
        }
        self.qemu.kill();
        Ok(Outcome { status: self.status, timed_out, ready: self.ready })
    }

    /// Reads to the guest's end; anything but status 0 is a fault.
    pub(crate) fn succeed(&mut self, limit: Duration) -> Result<()> {
        let outcome = self.finish(limit)?;
        match outcome {
            Outcome { status: Some(0), .. } => Ok(()),
            Outcome { timed_out: true, .. } => bail!("the guest was not done after {} s", limit.as_secs()),
            Outcome { status: Some(status), .. } => {
                let last = self.output.iter().rev().find(|line| !line.is_empty());
                bail!("the guest's script ended with status {status}: {}", last.map_or("", String::as_str))
            }
            Outcome { ready: false, .. } => bail!("the guest did not boot"),
            Outcome { .. } => bail!("the guest died during its script"),
        }
    }

    /// Cuts the power.
    pub(crate) fn kill(&mut self) {
        self.qemu.kill();
    }

    /// QEMU's CPU time so far.
    pub(crate) fn cpu_us(&self) -> Result<u64> {
        self.qemu.cpu_us()
    }

    /// Values of `key=value` words in the output lines that begin with `prefix`.
    pub(crate) fn value(&self, prefix: &str, key: &str) -> Option<String> {
        self.output.iter().filter(|line| line.starts_with(prefix)).find_map(|line| word(line, key))
    }
}

/// Value of the word `key=value` in a line.
pub(crate) fn word(line: &str, key: &str) -> Option<String> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
}

/// QEMU's device for a vfio-user server at `socket`.
pub(crate) fn vfio_user_device(socket: &Path) -> serde_json::Value {
    serde_json::json!({ "driver": "vfio-user-pci", "socket": { "type": "unix", "path": socket } })
}

fn arguments(rig: &Rig, config: &GuestConfig, dir: &Path, name: &str) -> Result<Vec<String>> {
    let mut args: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));
    let memory = format!("{}M", config.memory_mib);
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-rtc", "base=utc"]);
    add(&["-serial", "stdio", "-m", &memory, "-smp", &config.cpus.to_string()]);
    add(&["-machine", "q35,sata=off,smbus=off,usb=off,vmport=off,memory-backend=ram0"]);
    // Shared, so that the server can map the guest's memory.
    add(&["-object", &format!("memory-backend-memfd,id=ram0,size={memory},share=on")]);
    match config.accel {
        Accel::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
        // Four-level page tables: a TLB miss costs less to emulate.
        _ => add(&["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"]),
    }
    if !config.may_reboot {
        add(&["-no-reboot"]);
    }
    let boot_index = u32::from(config.firmware == Firmware::None);
    match &config.disk {
        Disk::None => {}
        Disk::Shadowbell { socket, .. } => {
            let mut device = vfio_user_device(socket);
            device["bootindex"] = boot_index.into();
            add(&["-device", &device.to_string()]);
        }
        Disk::Qemu { drives, properties } => {
            let comma = if properties.is_empty() { "" } else { "," };
            for (number, drive) in drives.iter().enumerate() {
                let node = if drive == Path::new("null") {
                    format!("driver=null-co,node-name=d{number},size={QEMU_NULL_BYTES},read-zeroes=on")
                } else {
                    format!(
                        "driver=raw,node-name=d{number},discard=unmap,file.driver=file,file.filename={}",
                        drive.display()
                    )
                };
                add(&["-blockdev", &node]);
            }
            if drives.len() == 1 {
                add(&["-device", &format!("nvme,serial=rig,drive=d0,bootindex={boot_index}{comma}{properties}")]);
            } else {
                add(&["-device", &format!("nvme,serial=rig{comma}{properties}")]);
                for number in 0..drives.len() {
                    add(&["-device", &format!("nvme-ns,drive=d{number},nsid={}", number + 1)]);
                }
            }
        }
    }
    if config.firmware == Firmware::None {
        let initrd = dir.join(format!("{name}.initrd"));
        fs::write(&initrd, initramfs(rig, config)?).context(initrd.display())?;
        let namespaces = match config.disk {
            Disk::None => 0,
            Disk::Shadowbell { namespaces, .. } => namespaces,
            Disk::Qemu { ref drives, .. } => drives.len(),
        };
        add(&["-kernel", &rig.vmlinux(config.kernel).to_string_lossy(), "-initrd", &initrd.to_string_lossy()]);
        add(&["-append", &format!("{KERNEL_ARGUMENTS} rig.disks={namespaces} {}", config.append)]);
    } else {
        ensure!(
            config.files.is_empty() && config.append.is_empty(),
            "a guest that firmware boots has its kernel arguments and files on its disk: \
             --append and --file cannot be used with --firmware"
        );
        let script = dir.join(format!("{name}.sh"));
        fs::write(&script, &config.script).context(script.display())?;
        add(&["-fw_cfg", &format!("name=opt/org.shadowbell/run,file={}", script.display())]);
    }
    if config.firmware == Firmware::Ovmf {
        let (code, store) = rig.ovmf();
        let variables = dir.join(format!("{name}.vars.fd"));
        fs::copy(&store, &variables).context(store.display())?;
        add(&["-drive", &format!("if=pflash,unit=0,format=raw,readonly=on,file={}", code.display())]);
        add(&["-drive", &format!("if=pflash,unit=1,format=raw,file={}", variables.display())]);
    }
    args.extend(config.qemu_args.iter().cloned());
    Ok(args)
}

/// The kernel's initramfs with the script and files of this run behind it.
fn initramfs(rig: &Rig, config: &GuestConfig) -> Result<Vec<u8>> {
    let base = rig.initrd(config.kernel);
    let mut bytes = fs::read(&base).context(base.display())?;
    let mut own = Archive::default();
    own.file("run.sh", false, config.script.as_bytes())?;
    for (host, guest) in &config.files {
        own.host_file(guest, host)?;
    }
    bytes.extend(own.finish()?);
    Ok(bytes)
}
