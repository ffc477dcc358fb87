//! `xtask licences`: what may come in as a dependency.
//!
//! A small equal of cargo-deny's licence, ban and source checks, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::fault::{Context, Result};
use crate::process::output;

/// Licences that go with "MIT OR Apache-2.0".
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that must not come in, and why.
const BANNED: &[(&str, &str)] = &[
    ("openssl-sys", "no C TLS library; nothing here speaks TLS"),
    ("native-tls", "no C TLS library; nothing here speaks TLS"),
    ("tokio", "workers poll their queues themselves; no async runtime"),
    ("async-std", "discontinued; no async runtime"),
    ("serde_yaml", "unmaintained"),
    ("atty", "unmaintained; std has IsTerminal"),
    ("nix", "rustix does it"),
];

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    source: Option<String>,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
}

/// Checks all dependencies; the result is the exit status.
pub(crate) fn run() -> Result<u8> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--locked", "--manifest-path"]).arg(manifest);
    let metadata: Metadata =
        serde_json::from_slice(&output(&mut command, "cargo metadata")?).context("cargo metadata")?;
    let complaints = check(&metadata);
    for complaint in &complaints {
        eprintln!("licences: {complaint}");
    }
    println!("licences: {} packages, {} complaints", metadata.packages.len(), complaints.len());
    Ok(u8::from(!complaints.is_empty()))
}

fn check(metadata: &Metadata) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in &metadata.packages {
        let label = format!("{} {}", package.name, package.version);
        match &package.license {
            Some(licence) if allowed(licence) => {}
            Some(licence) => complaints.push(format!("{label}: licence {licence:?} is not on the allow-list")),
            None => complaints.push(format!("{label}: names no licence")),
        }
        if metadata.workspace_members.contains(&package.id) {
            complaints.extend(package.dependencies.iter().filter_map(|dependency| careless(&label, dependency)));
        } else if package.source.as_deref() != Some(CRATES_IO) {
            complaints.push(format!("{label}: does not come from crates.io"));
        }
    }
    complaints.extend(banned(metadata));
    complaints.extend(duplicates(metadata));
    complaints
}

/// A dependency of ours on just any version, or on something outside of crates.io and the workspace.
fn careless(owner: &str, dependency: &Dependency) -> Option<String> {
    let local = dependency.path.is_some();
    if !local && dependency.req.contains('*') {
        return Some(format!("{owner}: wildcard version for {}", dependency.name));
    }
    if !local && dependency.source.as_deref() != Some(CRATES_IO) {
        return Some(format!("{owner}: {} does not come from crates.io", dependency.name));
    }
    None
}

/// Banned crates, each with who needs it.
fn banned(metadata: &Metadata) -> Vec<String> {
    let by_id: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let mut complaints = Vec::new();
    for node in &metadata.resolve.nodes {
        let owner = by_id.get(node.id.as_str()).map_or("?", |package| package.name.as_str());
        for dependency in node.deps.iter().filter_map(|edge| by_id.get(edge.pkg.as_str())) {
            if let Some((name, reason)) = BANNED.iter().find(|(name, _)| *name == dependency.name) {
                complaints.push(format!("{owner} needs {name}: {reason}"));
            }
        }
    }
    complaints
}

/// Crates that our own manifests bring in at more than one version.
fn duplicates(metadata: &Metadata) -> Vec<String> {
    let by_id: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for node in metadata.resolve.nodes.iter().filter(|node| metadata.workspace_members.contains(&node.id)) {
        for package in node.deps.iter().filter_map(|edge| by_id.get(edge.pkg.as_str())) {
            versions.entry(&package.name).or_default().insert(&package.version);
        }
    }
    versions
        .into_iter()
        .filter(|(_, versions)| versions.len() > 1)
        .map(|(name, versions)| format!("our crates ask for {name} at several versions: {versions:?}"))
        .collect()
}

/// Whether an SPDX expression can be met with allowed licences alone.
///
/// OR binds weaker than AND; the old `MIT/Apache-2.0` spelling is an OR.
fn allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: Vec<&str> = spaced.split_whitespace().rev().collect();
    either(&mut words) && words.is_empty()
}

fn either(words: &mut Vec<&str>) -> bool {
    let mut met = both(words);
    while words.last() == Some(&"OR") {
        words.pop();
        // Not short-circuited: the right side must be read in any case.
        met |= both(words);
    }
    met
}

fn both(words: &mut Vec<&str>) -> bool {
    let mut met = one(words);
    while words.last() == Some(&"AND") {
        words.pop();
        met &= one(words);
    }
    met
}

fn one(words: &mut Vec<&str>) -> bool {
    match words.pop() {
        Some("(") => {
            let met = either(words);
            words.pop() == Some(")") && met
        }
        Some(name) => {
            if words.last() == Some(&"WITH") {
                words.pop();
                let exception = words.pop().unwrap_or_default();
                return ALLOWED.contains(&format!("{name} WITH {exception}").as_str());
            }
            ALLOWED.contains(&name)
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_met_when_some_choice_has_only_allowed_licences() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "GPL-2.0-only OR MIT AND ISC",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT OR ISC) AND MPL-2.0", "(MIT", "MIT)", "MIT ISC"] {
            assert!(!allowed(bad), "{bad}");
        }
    }
}
