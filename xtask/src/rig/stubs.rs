//! Small stand-ins for the network libraries that Debian's fio links.
//!
//! fio needs Ceph, GlusterFS, NFS, RDMA and more only to start; in the guest they would
//! cost 50 MB of RAM and seconds of relocation under TCG. A stand-in has the same name,
//! versions and symbols, and traps when it is called, which the engines used here never do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{LIBRARIES, Rig};
use crate::fault::{Context, Result};
use crate::process::output;

pub(super) const INPUTS: &str = "fio stand-ins, 1";

/// Libraries of fio that the guest gets as they are.
const REAL: [&str; 6] = ["libc.so", "libm.so", "libz.so", "libaio.so", "libnuma.so", "ld-linux"];

pub(super) fn directory(rig: &Rig) -> PathBuf {
    rig.dir().join("stubs")
}

pub(super) fn build(rig: &Rig) -> Result<()> {
    let dir = directory(rig);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let fio = rig.root("usr/bin/fio");
    let wanted = symbols(&fio, "--undefined-only")?;
    for library in needed(&fio)? {
        if REAL.iter().any(|real| library.starts_with(real)) {
            continue;
        }
        let real = rig.root(LIBRARIES).join(&library);
        let defined: BTreeSet<String> = symbols(&real, "--defined-only")?.into_keys().collect();
        let mut code = String::new();
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, version) in wanted.iter().filter(|(name, _)| defined.contains(*name)) {
            writeln!(code, "void {name}(void) {{ __builtin_trap(); }}").context("code")?;
            if !version.is_empty() {
                versions.entry(version).or_default().push(name);
            }
        }
        let source = dir.join("stub.c");
        fs::write(&source, code)?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin"]).arg(format!("-Wl,-soname,{library}"));
        if !versions.is_empty() {
            let map: String = versions
                .iter()
                .map(|(version, names)| format!("{version} {{ global: {}; }};\n", names.join("; ")))
                .collect();
            let script = dir.join("stub.map");
            fs::write(&script, map)?;
            cc.arg(format!("-Wl,--version-script={}", script.display()));
        }
        output(cc.arg("-o").arg(dir.join(&library)).arg(&source), &format!("stand-in for {library}"))?;
    }
    for left in ["stub.c", "stub.map"] {
        // The map is only there when some library has versions.
        let _ = fs::remove_file(dir.join(left));
    }
    Ok(())
}

/// Names of the shared libraries that a program loads.
fn needed(program: &std::path::Path) -> Result<Vec<String>> {
    let text = output(Command::new("readelf").args(["-d", "-W"]).arg(program), "readelf")?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned()))
        .collect())
}

/// Dynamic symbols and their versions (empty for none).
fn symbols(file: &std::path::Path, which: &str) -> Result<BTreeMap<String, String>> {
    let text = output(Command::new("nm").args(["--dynamic", which]).arg(file), "nm (package binutils)")?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(|symbol| match symbol.split_once('@') {
            Some((name, version)) => (name.to_owned(), version.trim_start_matches('@').to_owned()),
            None => (symbol.to_owned(), String::new()),
        })
        .collect())
}
