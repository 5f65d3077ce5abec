//! No server at all: what comes on standard input goes to a socket as it is, and back. A test at
//! the other end is the server.

use std::io;

use tokio::io::{copy, stdin, stdout};
use tokio::net::TcpStream;

/// Until one side ends.
pub(crate) async fn run(address: &str) -> io::Result<()> {
    let (mut from, mut to) = TcpStream::connect(address).await?.into_split();
    let (mut input, mut output) = (stdin(), stdout());
    tokio::select! {
        done = copy(&mut input, &mut to) => done?,
        done = copy(&mut from, &mut output) => done?,
    };
    Ok(())
}
