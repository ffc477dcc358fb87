//! The guest's initramfs: busybox, fio, nvme-cli, e2fsprogs and a few modules.
//!
//! Uncompressed, since that boots quickest under TCG. A run's own files are appended
//! as a second archive.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Kernel, LIBRARIES, Rig, kernel, stubs};
use crate::cpio::Archive;
use crate::fault::{Context, Result, bail};
use crate::process::output;

const INIT: &str = include_str!("../../guest/init");

pub(super) const INPUTS: &str = concat!("initramfs, 3\n", include_str!("../../guest/init"));

/// Programs of the chroot that go into the guest (path there, path in the guest).
const PROGRAMS: [(&str, &str); 7] = [
    ("usr/bin/fio", "usr/bin/fio"),
    ("usr/sbin/nvme", "usr/sbin/nvme"),
    ("usr/sbin/mke2fs", "usr/sbin/mke2fs"),
    ("usr/sbin/mke2fs", "usr/sbin/mkfs.ext4"),
    ("usr/sbin/e2fsck", "usr/sbin/e2fsck"),
    ("usr/sbin/blkdiscard", "usr/sbin/blkdiscard"),
    ("etc/mke2fs.conf", "etc/mke2fs.conf"),
];

/// Modules that scripts may ask for; what these need comes along.
const MODULES: [&str; 8] =
    ["nvme", "ext4", "vfio-pci", "qemu_fw_cfg", "virtio_pci", "virtio_blk", "virtio_scsi", "sd_mod"];

pub(super) fn build(rig: &Rig, kernel: Kernel) -> Result<()> {
    let mut archive = Archive::default();
    for directory in ["dev", "proc", "sys", "tmp", "mnt", "root", "run", "etc", "usr/lib"] {
        archive.directory(directory)?;
    }
    for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib")] {
        archive.symlink(link, target)?;
    }
    archive.file("init", true, INIT.as_bytes())?;
    archive.host_file("usr/bin/busybox", &rig.root("usr/bin/busybox"))?;
    let applets = output(Command::new(rig.root("usr/bin/busybox")).arg("--list"), "busybox")?;
    for applet in String::from_utf8_lossy(&applets).lines() {
        let taken = applet == "busybox" || PROGRAMS.iter().any(|(_, guest)| guest.ends_with(&format!("/{applet}")));
        if !taken {
            archive.symlink(&format!("usr/bin/{applet}"), "busybox")?;
        }
    }
    archive.host_file("lib64/ld-linux-x86-64.so.2", &rig.root("lib64/ld-linux-x86-64.so.2"))?;
    let mut libraries = BTreeMap::new();
    for (path, guest) in PROGRAMS {
        archive.host_file(guest, &rig.root(path))?;
        if path.starts_with("usr/") {
            libraries.extend(shared_libraries(rig, path)?);
        }
    }
    for (name, path) in libraries {
        archive.host_file(&format!("{LIBRARIES}/{name}"), &path)?;
    }
    add_modules(rig, kernel, &mut archive)?;
    let file = rig.initrd(kernel);
    fs::write(&file, archive.finish()?).context(file.display())
}

/// Every library that a program loads, the stand-ins first.
fn shared_libraries(rig: &Rig, program: &str) -> Result<BTreeMap<String, PathBuf>> {
    let mut path = stubs::directory(rig).into_os_string();
    path.push(":");
    path.push(rig.root(LIBRARIES));
    let mut loader = Command::new(rig.root("lib64/ld-linux-x86-64.so.2"));
    loader.arg("--library-path").arg(path).arg("--list").arg(rig.root(program));
    let text = output(&mut loader, program)?;
    let mut found = BTreeMap::new();
    for line in String::from_utf8_lossy(&text).lines() {
        if let Some((name, rest)) = line.trim().split_once(" => ") {
            let file = rest.split(" (").next().unwrap_or(rest);
            if file.starts_with('/') && !name.contains("ld-linux") {
                found.insert(name.to_owned(), PathBuf::from(file));
            }
        }
    }
    Ok(found)
}

/// Adds the wanted modules, decompressed, with a `modules.dep` for busybox's modprobe.
fn add_modules(rig: &Rig, kernel: Kernel, archive: &mut Archive) -> Result<()> {
    let dir = kernel::modules(rig, kernel)?;
    let release = dir.file_name().context("modules")?.to_string_lossy().into_owned();
    let mut files = BTreeMap::new();
    collect(&dir.join("kernel"), &mut files)?;
    let builtin = fs::read_to_string(dir.join("modules.builtin")).context("modules.builtin")?;
    let is_builtin =
        |name: &str| builtin.lines().any(|line| module_name(Path::new(line)).is_some_and(|other| other == name));
    let mut needs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut todo: Vec<String> = MODULES.iter().map(|name| name.replace('-', "_")).collect();
    while let Some(name) = todo.pop() {
        if needs.contains_key(&name) {
            continue;
        }
        let Some(path) = files.get(&name) else {
            if is_builtin(&name) {
                continue;
            }
            bail!("kernel {release} has no module {name}");
        };
        let module = decompress(rig, path)?;
        archive.file(&format!("usr/lib/modules/{release}/{name}.ko"), false, &module)?;
        let mut wanted = module_info(&module, "depends=");
        // Soft dependencies that this kernel does not have are no fault.
        wanted.extend(module_info(&module, "softdep=pre: ").into_iter().filter(|name| files.contains_key(name)));
        wanted.retain(|name| !is_builtin(name));
        todo.extend(wanted.iter().cloned());
        needs.insert(name, wanted);
    }
    let mut table = String::new();
    for name in needs.keys() {
        let mut closure = Vec::new();
        depth_first(name, &needs, &mut closure);
        let list: Vec<String> =
            closure.iter().filter(|other| *other != name).map(|other| format!("{other}.ko")).collect();
        writeln!(table, "{name}.ko: {}", list.join(" ")).context("modules.dep")?;
    }
    archive.file(&format!("usr/lib/modules/{release}/modules.dep"), false, table.as_bytes())?;
    archive.file(&format!("usr/lib/modules/{release}/modules.builtin"), false, builtin.as_bytes())
}

/// Appends what `name` needs, nearest first, as depmod writes it: the last is loaded first.
fn depth_first(name: &str, needs: &BTreeMap<String, Vec<String>>, closure: &mut Vec<String>) {
    // One that is needed again must be loaded earlier still, so it moves to the end.
    closure.retain(|other| other != name);
    closure.push(name.to_owned());
    for next in needs.get(name).into_iter().flatten() {
        depth_first(next, needs, closure);
    }
}

fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    Some(name.split_once(".ko")?.0.replace('-', "_"))
}

fn collect(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).context(dir.display())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

fn decompress(rig: &Rig, path: &Path) -> Result<Vec<u8>> {
    let tool = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "usr/bin/xz",
        Some("zst") => "usr/bin/zstd",
        _ => return fs::read(path).context(path.display()),
    };
    output(rig.tool(tool).arg("-dcq").arg(path), &path.display().to_string())
}

/// Names in the entries of a module's `.modinfo` section that begin with `key`.
fn module_info(module: &[u8], key: &str) -> Vec<String> {
    module
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(key.as_bytes()))
        .filter_map(|names| std::str::from_utf8(names).ok())
        .flat_map(|names| names.split([',', ' ']))
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modinfo_entries_are_read_with_dashes_made_underscores() {
        let module = b"junk\0depends=nvme-core,t10-pi\0softdep=pre: crc32c\0depends=\0";
        assert_eq!(module_info(module, "depends="), ["nvme_core", "t10_pi"]);
        assert_eq!(module_info(module, "softdep=pre: "), ["crc32c"]);
    }

    #[test]
    fn what_two_modules_need_is_loaded_before_both() {
        let needs = BTreeMap::from([
            ("a".to_owned(), vec!["c".to_owned(), "b".to_owned()]),
            ("b".to_owned(), vec!["c".to_owned()]),
            ("c".to_owned(), vec![]),
        ]);
        let mut closure = Vec::new();
        depth_first("a", &needs, &mut closure);
        assert_eq!(closure, ["a", "b", "c"]);
    }
}
