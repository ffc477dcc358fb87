//! Writer for the kernel's initramfs format (cpio "newc").

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::fault::{Context, Result};

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const REGULAR: u32 = 0o100_000;

/// An archive being built in memory. Parent directories are added as they are needed.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    next_inode: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    pub(crate) fn directory(&mut self, path: &str) -> Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.directories.contains(path) {
            return Ok(());
        }
        self.parents(path)?;
        self.directories.insert(path.to_owned());
        self.entry(path, DIRECTORY, &[])
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.parents(path)?;
        self.entry(path, SYMLINK, target.as_bytes())
    }

    pub(crate) fn file(&mut self, path: &str, executable: bool, content: &[u8]) -> Result<()> {
        self.parents(path)?;
        let mode = REGULAR | if executable { 0o755 } else { 0o644 };
        self.entry(path, mode, content)
    }

    /// Copies a file of the host, following symbolic links, with its executable bit.
    pub(crate) fn host_file(&mut self, path: &str, host: &Path) -> Result<()> {
        let content = fs::read(host).context(host.display())?;
        let mode = fs::metadata(host).context(host.display())?.permissions().mode();
        self.file(path, mode & 0o111 != 0, &content)
    }

    /// The finished archive, padded so that another may follow it.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        Ok(self.bytes)
    }

    fn parents(&mut self, path: &str) -> Result<()> {
        match path.trim_start_matches('/').rsplit_once('/') {
            Some((parent, _)) => self.directory(parent),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let name = path.trim_start_matches('/');
        let size = u32::try_from(content.len()).context(format!("{name}: too big for cpio"))?;
        let name_size = u32::try_from(name.len() + 1).context(name)?;
        self.next_inode += 1;
        // inode, mode, uid, gid, links, mtime, size, device (4 numbers), name size, checksum
        let fields =
            [self.next_inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0].map(|field| format!("{field:08X}"));
        self.bytes.extend_from_slice(b"070701");
        self.bytes.extend_from_slice(fields.concat().as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_each_parent_once_and_ends_with_the_trailer() {
        let mut archive = Archive::default();
        archive.file("/a/b/one", true, b"12345").unwrap();
        archive.file("a/b/two", false, b"").unwrap();
        archive.symlink("a/c", "b/one").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 512, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 6, "a, a/b, one, two, c, trailer");
        assert!(text.contains(&["12345", "070701"].join("\0\0\0")), "content is padded to 4 bytes");
        assert!(text.contains("TRAILER!!!"));
    }
}
