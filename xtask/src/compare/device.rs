//! The devices of a comparison, what stands behind them, and QEMU's arguments for them.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::fault::{Context, Fault, Result, ensure};
use crate::qemu::vfio_user_device;
use crate::workdir_in;

/// Size of null disks.
const NULL_SIZE: &str = "64G";
const NULL_BYTES: u64 = 64 << 30;

/// Size of a device's own file on tmpfs, in MiB: eight of them fit into a small machine.
const TMPFS_MIB: u64 = 256;

/// PCI slot of the first device; QEMU's own parts are below.
const FIRST_SLOT: usize = 0x08;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `shadowbell serve` with these arguments.
    Shadowbell {
        args: &'static [&'static str],
        spins: bool,
    },
    /// QEMU's `nvme` with these properties; whether QEMU's trace sees its doorbell writes.
    Nvme {
        properties: &'static str,
        traced: bool,
    },
    VirtioBlk,
    VirtioScsi,
}

/// A device that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// Short name, in tables and for `--only`.
    pub(crate) name: &'static str,
    /// For a reader who does not know the name.
    pub(crate) about: &'static str,
    pub(crate) kind: Kind,
    /// Part of a comparison unless `--only` says otherwise.
    pub(crate) usual: bool,
}

impl Device {
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Shadowbell { .. })
    }

    /// Our devices are measured against the better of these.
    pub(crate) fn is_reference(&self) -> bool {
        [NVME.name, VIRTIO_BLK.name].contains(&self.name)
    }
}

pub(crate) const SHADOWBELL: Device = Device {
    name: "shadowbell",
    about: "shadowbell serve, --poll auto (the default)",
    kind: Kind::Shadowbell { args: &[], spins: false },
    usual: true,
};

pub(crate) const REGISTERS: Device = Device {
    name: "shadowbell-registers",
    about: "shadowbell serve --doorbells register: doorbell registers only",
    kind: Kind::Shadowbell { args: &["--doorbells", "register"], spins: false },
    usual: false,
};

const NVME: Device = Device {
    name: "nvme",
    about: "QEMU's nvme, shadow doorbells (its default)",
    kind: Kind::Nvme { properties: "", traced: true },
    usual: true,
};

const VIRTIO_BLK: Device =
    Device { name: "virtio-blk", about: "QEMU's virtio-blk with an iothread", kind: Kind::VirtioBlk, usual: true };

/// All devices, in the order of the tables.
pub(crate) const ALL: [Device; 9] = [
    NVME,
    Device {
        name: "nvme-ioeventfd",
        about: "QEMU's nvme, shadow doorbells, ioeventfd=on",
        kind: Kind::Nvme { properties: "ioeventfd=on", traced: false },
        usual: true,
    },
    Device {
        name: "nvme-registers",
        about: "QEMU's nvme, dbcs=off: doorbell registers only",
        kind: Kind::Nvme { properties: "dbcs=off", traced: true },
        usual: true,
    },
    VIRTIO_BLK,
    Device { name: "virtio-scsi", about: "QEMU's virtio-scsi with an iothread", kind: Kind::VirtioScsi, usual: true },
    SHADOWBELL,
    Device {
        name: "shadowbell-always",
        about: "shadowbell serve --poll always: a core of its own",
        kind: Kind::Shadowbell { args: &["--poll", "always"], spins: true },
        usual: true,
    },
    Device {
        name: "shadowbell-never",
        about: "shadowbell serve --poll never",
        kind: Kind::Shadowbell { args: &["--poll", "never"], spins: false },
        usual: true,
    },
    REGISTERS,
];

/// The devices that `only` names, in the order of the tables; the usual ones when it names none.
pub(crate) fn select(only: &[String]) -> Result<Vec<Device>> {
    if only.is_empty() {
        return Ok(ALL.into_iter().filter(|device| device.usual).collect());
    }
    for name in only {
        ensure!(
            ALL.iter().any(|device| device.name == name),
            "no device is named {name:?}; there are {}",
            ALL.map(|device| device.name).join(", ")
        );
    }
    Ok(ALL.into_iter().filter(|device| only.iter().any(|name| name == device.name)).collect())
}

/// What stands behind every device.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Nothing: I/O is done at once, reads leave the buffer alone.
    Null,
    /// A raw file on tmpfs for each device.
    Ram,
    /// One raw image or block device for all, read-only.
    File(PathBuf),
}

impl std::str::FromStr for Backing {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "null" => Ok(Self::Null),
            "ram" => Ok(Self::Ram),
            path => {
                let path = std::path::absolute(path).context(path)?;
                ensure!(path.exists(), "{} does not exist (null, ram, or a path is wanted)", path.display());
                Ok(Self::File(path))
            }
        }
    }
}

impl Backing {
    /// For the report.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Null => format!("null disk, {NULL_SIZE}iB (QEMU: null-co)"),
            Self::Ram => format!("raw file on tmpfs, {TMPFS_MIB} MiB for each device, through the page cache"),
            Self::File(path) => format!("{}, read-only, direct I/O", path.display()),
        }
    }
}

/// Files on tmpfs for a run, removed at its end.
#[derive(Debug)]
pub(crate) struct Store {
    backing: Backing,
    files: Option<tempfile::TempDir>,
}

impl Store {
    pub(crate) fn new(backing: &Backing) -> Result<Self> {
        let files = matches!(backing, Backing::Ram).then(|| workdir_in(Path::new("/dev/shm"))).transpose()?;
        Ok(Self { backing: backing.clone(), files })
    }

    /// The file of device `number`, written in full: holes would be faster to read.
    fn file(&self, number: usize) -> Result<Option<PathBuf>> {
        match (&self.backing, &self.files) {
            (Backing::File(path), _) => Ok(Some(path.clone())),
            (_, Some(dir)) => {
                let path = dir.path().join(format!("{number}.img"));
                if !path.exists() {
                    let mut file = File::create(&path).context(path.display())?;
                    let mib = vec![0x5a_u8; 1 << 20];
                    for _ in 0..TMPFS_MIB {
                        file.write_all(&mib).context(path.display())?;
                    }
                }
                Ok(Some(path))
            }
            _ => Ok(None),
        }
    }

    fn read_only(&self) -> bool {
        matches!(self.backing, Backing::File(_))
    }

    /// Disk and further arguments of `shadowbell serve`.
    pub(crate) fn serve(&self, number: usize, own: &[&str]) -> Result<(String, Vec<String>)> {
        let mut args: Vec<String> = own.iter().map(|arg| (*arg).to_owned()).collect();
        // Devices with one serial number would be one disk for the guest.
        args.extend(["--serial".to_owned(), format!("OURS{number}")]);
        let Some(path) = self.file(number)? else { return Ok((format!("null:{NULL_SIZE}"), args)) };
        let direct = if self.read_only() { "on" } else { "off" };
        args.extend(["--direct".to_owned(), direct.to_owned()]);
        if self.read_only() {
            args.push("--read-only".to_owned());
        }
        Ok((path.to_string_lossy().into_owned(), args))
    }

    /// QEMU's `-blockdev` for device `number`, of that node name.
    fn blockdev(&self, number: usize, node: &str, aio: &str) -> Result<String> {
        let Some(path) = self.file(number)? else {
            // As our null disk: reads leave the buffer alone.
            let null = json!({ "driver": "null-co", "node-name": node, "size": NULL_BYTES, "read-zeroes": false });
            return Ok(null.to_string());
        };
        let driver = if path.is_file() { "file" } else { "host_device" };
        let direct = self.read_only();
        // Several nodes and our servers share a read-only file.
        let file = json!({ "driver": driver, "filename": path, "aio": aio, "cache": { "direct": direct },
            "locking": "off" });
        let raw = json!({ "driver": "raw", "node-name": node, "read-only": self.read_only(),
            "cache": { "direct": direct }, "file": file });
        Ok(raw.to_string())
    }
}

/// The PCI slot of device `number`, as QEMU and the guest's sysfs write it.
pub(crate) fn slot(number: usize) -> String {
    format!("{:02x}", FIRST_SLOT + number)
}

/// QEMU's arguments for device `number`; ours listens on `socket`.
pub(crate) fn qemu_args(
    device: &Device,
    number: usize,
    store: &Store,
    aio: &str,
    socket: Option<&Path>,
) -> Result<Vec<String>> {
    let address = format!("0x{}", slot(number));
    let node = format!("disk{number}");
    let mut args = Vec::new();
    let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
    if !device.is_ours() {
        add("-blockdev", store.blockdev(number, &node, aio)?);
    }
    let thread = format!("thread{number}");
    match device.kind {
        Kind::Shadowbell { .. } => {
            let mut ours = vfio_user_device(socket.context("a shadowbell device without a server")?);
            ours["addr"] = json!(address);
            add("-device", ours.to_string());
        }
        Kind::Nvme { properties, .. } => {
            let comma = if properties.is_empty() { "" } else { "," };
            add("-device", format!("nvme,serial=QEMU{number},drive={node},addr={address}{comma}{properties}"));
        }
        Kind::VirtioBlk => {
            add("-object", format!("iothread,id={thread}"));
            add("-device", format!("virtio-blk-pci,drive={node},iothread={thread},addr={address}"));
        }
        Kind::VirtioScsi => {
            let bus = format!("scsi{number}");
            add("-object", format!("iothread,id={thread}"));
            add("-device", format!("virtio-scsi-pci,id={bus},iothread={thread},addr={address}"));
            add("-device", format!("scsi-hd,drive={node},bus={bus}.0"));
        }
    }
    Ok(args)
}

/// Modules that the guest needs for all of them.
pub(crate) const MODULES: &str = "nvme virtio_pci virtio_blk virtio_scsi sd_mod";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_a_wrong_one_is_told_the_right_ones() {
        for (number, device) in ALL.iter().enumerate() {
            assert!(ALL[number + 1..].iter().all(|other| other.name != device.name), "{}", device.name);
        }
        assert_eq!(select(&[]).unwrap().len(), 8);
        let two = select(&["shadowbell".to_owned(), "nvme".to_owned()]).unwrap();
        assert_eq!(two.iter().map(|device| device.name).collect::<Vec<_>>(), ["nvme", "shadowbell"]);
        let fault = select(&["vhost".to_owned()]).unwrap_err().to_string();
        assert!(fault.contains("virtio-scsi, shadowbell,"), "{fault}");
    }

    #[test]
    fn the_references_are_virtio_blk_and_nvme_with_shadow_doorbells() {
        let names: Vec<_> = ALL.iter().filter(|device| device.is_reference()).map(|device| device.name).collect();
        assert_eq!(names, ["nvme", "virtio-blk"]);
    }

    #[test]
    fn all_devices_get_the_same_kind_of_disk() {
        let null = Store::new(&Backing::Null).unwrap();
        assert_eq!(null.serve(3, &["--poll", "never"]).unwrap().0, "null:64G");
        let node = null.blockdev(2, "disk2", "threads").unwrap();
        assert!(node.contains("\"null-co\"") && node.contains("68719476736"), "{node}");

        let image = tempfile::NamedTempFile::new().unwrap();
        let backing: Backing = image.path().to_str().unwrap().parse().unwrap();
        let file = Store::new(&backing).unwrap();
        let (disk, args) = file.serve(3, &[]).unwrap();
        assert_eq!(Path::new(&disk), image.path());
        assert!(args.join(" ").contains("--direct on --read-only"), "{args:?}");
        let node = file.blockdev(2, "disk2", "threads").unwrap();
        assert!(
            node.contains(&disk) && node.contains("\"read-only\":true") && node.contains("\"direct\":true"),
            "{node}"
        );
        assert!("/no/such/file".parse::<Backing>().is_err());
    }
}
