//! A listening socket and its path.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, chmod, lstat, unlink},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with},
};

/// Why a socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another server is there.
    #[error("{}: a server is listening there already", .0.display())]
    Busy(PathBuf),
    /// Something else is there, and it is not ours to remove.
    #[error("{}: exists and is no socket", .0.display())]
    NoSocket(PathBuf),
    /// The path does not fit into a socket address.
    #[error("{}: too long for a socket, at most 107 bytes", .0.display())]
    TooLong(PathBuf),
    /// What the system says.
    #[error("{}: cannot {what}: {error}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What came of it.
        error: io::Error,
    },
}

/// The listening socket. Its path goes with it, unless someone has put another file there.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of our socket file.
    identity: (u64, u64),
}

impl Listener {
    /// Opens a socket at `path`. One that a server left behind is replaced.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<Self, BindError> {
        let failed = |what| move |errno: Errno| BindError::Io { path: path.into(), what, error: errno.into() };
        let address = SocketAddrUnix::new(path).map_err(|_| BindError::TooLong(path.into()))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let new_socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let fd = new_socket().map_err(failed("create a socket"))?;
        match bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                let stat = lstat(path).map_err(failed("look at what is there"))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
                    return Err(BindError::NoSocket(path.into()));
                }
                match connect(new_socket().map_err(failed("create a socket"))?, &address) {
                    Err(Errno::CONNREFUSED) => {}
                    // A full queue of connections is EAGAIN.
                    Ok(()) | Err(Errno::AGAIN) => return Err(BindError::Busy(path.into())),
                    Err(errno) => return Err(failed("ask whether a server is there")(errno)),
                }
                tracing::debug!(path = %path.display(), "replaces a socket that nobody listens to");
                unlink(path).map_err(failed("remove an old socket"))?;
                bind(&fd, &address).map_err(failed("bind"))?;
            }
            other => other.map_err(failed("bind"))?,
        }
        let stat = lstat(path).map_err(failed("find the new socket"))?;
        // From here on, the file goes with the value.
        let this = Self { fd, path: path.into(), identity: (stat.st_dev, stat.st_ino) };
        // Nobody can connect before listen().
        chmod(path, Mode::from_raw_mode(mode)).map_err(failed("set permissions"))?;
        listen(&this.fd, 16).map_err(failed("listen"))?;
        Ok(this)
    }

    pub(crate) fn accept(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if lstat(&self.path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity) {
            // Nothing to do about an error; the next server replaces it.
            let _ = unlink(&self.path);
        }
    }
}
