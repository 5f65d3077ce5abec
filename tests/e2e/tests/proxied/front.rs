//! Programs that listen: a proxy, or a server that somebody else wrote.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use counterfoil_e2e::until;
use counterfoil_test_upstream::{Ledger, words};
use tempfile::TempDir;

use crate::host::Start;
use crate::subject::proxy;

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(60);

/// A program that listens. Killed when dropped.
pub(crate) struct Front {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Front {
    /// Starts it and waits until it listens at this address.
    pub(crate) fn start(start: &Start, address: SocketAddr) -> Self {
        let (errors, file) = start.errors();
        let mut child = start
            .command()
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|why| panic!("{}: {why}", start.words[0]));
        until("the program listens", START, || {
            if let Some(status) = child.try_wait().unwrap() {
                let errors = std::fs::read_to_string(&errors).unwrap_or_default();
                panic!("it ended: {status}\n{errors}");
            }
            TcpStream::connect(address).ok()
        });
        Self { child, address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address on which nobody listens now.
pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A proxy in front of the upstream that counts its effects; for clients that bring their own way
/// of starting it.
pub(crate) struct Counted {
    pub(crate) folder: TempDir,
    pub(crate) ledger: Ledger,
}

impl Counted {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let ledger = Ledger::new(folder.path().join("effects.jsonl"));
        Self { folder, ledger }
    }

    /// The command of a proxy, with more options.
    pub(crate) fn words(&self, more: &[&str]) -> Vec<String> {
        let mut all = proxy(self.folder.path(), more);
        all.push("--".to_owned());
        all.extend(words(&self.ledger, &[]));
        all
    }

    /// A proxy that listens.
    pub(crate) fn listen(&self) -> Front {
        self.listen_at(free_address())
    }

    pub(crate) fn listen_at(&self, address: SocketAddr) -> Front {
        let start = Start {
            words: self.words(&["--listen", &address.to_string()]),
            environment: Vec::new(),
            folder: self.folder.path().to_path_buf(),
        };
        Front::start(&start, address)
    }

    /// Waits until a call of `append` has had its effect.
    pub(crate) fn until_done(&self, id: &str) {
        until("the effect", START, || {
            (self.ledger.effects("append", id) > 0).then_some(())
        });
    }

    pub(crate) fn effects(&self, id: &str) -> usize {
        self.ledger.effects("append", id)
    }
}
