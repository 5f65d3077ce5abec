//! The standard streams of this process.

use std::os::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    unix::net::UnixStream as StdStream,
};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{UnixStream, unix::pipe},
};

/// The standard streams, for one client.
pub(crate) struct Streams {
    /// Standard input.
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    /// Standard output.
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// Puts both back as they were when it is dropped.
    pub(crate) restore: Restore,
}

/// Puts the standard streams back as they were when it is dropped: whether they block is not a
/// property of this process alone, and whoever started it may go on using them.
#[derive(Default)]
pub(crate) struct Restore(Vec<(OwnedFd, OFlags)>);

impl Drop for Restore {
    fn drop(&mut self) {
        // Both may be one and the same: the first one saw it as it was.
        for (stream, flags) in self.0.iter().rev() {
            let _ = fcntl_setfl(stream, *flags);
        }
    }
}

/// The standard streams of this process. Pipes and sockets, which is what clients use, are read
/// and written by the runtime itself; that takes a few microseconds less per message than to ask
/// another thread, as for files and terminals. Must be called once, inside of a Tokio runtime.
pub(crate) fn standard() -> Streams {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    let mut restore = Restore::default();
    let reader = own(stdin.as_fd(), &mut restore, reader);
    let writer = own(stdout.as_fd(), &mut restore, writer);
    Streams {
        reader: reader.unwrap_or_else(|| Box::new(tokio::io::stdin())),
        writer: writer.unwrap_or_else(|| Box::new(tokio::io::stdout())),
        restore,
    }
}

/// What `make` makes of a second handle, if the stream may be made non-blocking. It may not if
/// stderr is the same pipe: other parts of this process, and the child, write there and expect
/// that to block.
pub(super) fn own<T>(
    stream: BorrowedFd<'_>,
    restore: &mut Restore,
    make: impl FnOnce(OwnedFd) -> Option<T>,
) -> Option<T> {
    let (this, stderr) = (fstat(stream).ok()?, fstat(std::io::stderr()).ok()?);
    let kind = FileType::from_raw_mode(this.st_mode);
    if !matches!(kind, FileType::Fifo | FileType::Socket)
        || (this.st_dev, this.st_ino) == (stderr.st_dev, stderr.st_ino)
    {
        return None;
    }
    let flags = fcntl_getfl(stream).ok()?;
    let kept = stream.try_clone_to_owned().ok()?;
    let made = make(stream.try_clone_to_owned().ok()?);
    if made.is_none() {
        fcntl_setfl(stream, flags).ok()?;
    }
    restore.0.push((kept, flags));
    made
}

fn is_socket(stream: &OwnedFd) -> bool {
    fstat(stream).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}

fn socket(stream: OwnedFd) -> Option<UnixStream> {
    let stream = StdStream::from(stream);
    // An internet socket is read and written like any other, but cannot be told from here.
    stream.local_addr().ok()?;
    stream.set_nonblocking(true).ok()?;
    UnixStream::from_std(stream).ok()
}

pub(super) fn reader(stream: OwnedFd) -> Option<Box<dyn AsyncRead + Send + Unpin>> {
    if is_socket(&stream) {
        return Some(Box::new(socket(stream)?));
    }
    Some(Box::new(pipe::Receiver::from_owned_fd(stream).ok()?))
}

pub(super) fn writer(stream: OwnedFd) -> Option<Box<dyn AsyncWrite + Send + Unpin>> {
    if is_socket(&stream) {
        return Some(Box::new(socket(stream)?));
    }
    Some(Box::new(pipe::Sender::from_owned_fd(stream).ok()?))
}
