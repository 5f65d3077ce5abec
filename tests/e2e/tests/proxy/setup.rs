use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use counterfoil_e2e::{built, until};
use counterfoil_test_upstream::{Ledger, Listening, words};
use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Client, Era};
use crate::pipe::clean;

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(30);

/// How messages go in and out of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Pipe,
    Web,
}

/// A folder for one test: the proxy's state, its configuration, and what the upstream did.
pub(crate) struct Setup {
    folder: TempDir,
    pub(crate) ledger: Ledger,
    /// Lines above the first section of the configuration, then sections.
    config: Option<PathBuf>,
    /// More words for the proxy, before the command.
    more: Vec<String>,
    /// More words for the upstream.
    upstream: Vec<String>,
}

/// A client, the proxy it goes through, and the upstream behind.
pub(crate) struct Wrapped {
    pub(crate) client: Client,
    /// The proxy, if it listens; with a pipe it is the client's child.
    _proxy: Option<Listener>,
    /// The upstream, if it listens; with a pipe it is the proxy's child.
    pub(crate) upstream: Option<Listening>,
}

/// A proxy that listens. Killed when dropped.
pub(crate) struct Listener {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl By {
    pub(crate) const BOTH: [Self; 2] = [Self::Pipe, Self::Web];
}

impl Setup {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let ledger = Ledger::new(folder.path().join("effects.jsonl"));
        Self {
            folder,
            ledger,
            config: None,
            more: Vec::new(),
            upstream: Vec::new(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// With a configuration file.
    pub(crate) fn with_config(mut self, text: &str) -> Self {
        let path = self.path().join("proxy.toml");
        fs::write(&path, text).unwrap();
        self.config = Some(path);
        self
    }

    /// With more words on the proxy's command line.
    pub(crate) fn with(mut self, more: &[&str]) -> Self {
        self.more.extend(more.iter().map(|word| (*word).to_owned()));
        self
    }

    /// With more words on the upstream's command line.
    pub(crate) fn with_upstream(mut self, more: &[&str]) -> Self {
        self.upstream
            .extend(more.iter().map(|word| (*word).to_owned()));
        self
    }

    /// The command of the upstream on a pipe.
    pub(crate) fn upstream_words(&self) -> Vec<String> {
        let more: Vec<&str> = self.upstream.iter().map(String::as_str).collect();
        words(&self.ledger, &more)
    }

    /// The words of a proxy, up to what it wraps.
    pub(crate) fn proxy_words(&self) -> Vec<String> {
        let state = self.path().join("state").display().to_string();
        let mut words = vec![
            built().display().to_string(),
            "proxy".to_owned(),
            "--state".to_owned(),
            state,
        ];
        if let Some(config) = &self.config {
            words.extend(["--config".to_owned(), config.display().to_string()]);
        }
        words.extend(self.more.iter().cloned());
        words
    }

    /// The words of a proxy in front of the upstream's command.
    pub(crate) fn wrapping_words(&self) -> Vec<String> {
        let mut words = self.proxy_words();
        words.push("--".to_owned());
        words.extend(self.upstream_words());
        words
    }

    /// An upstream that listens.
    pub(crate) fn listening(&self) -> Listening {
        let more: Vec<&str> = self.upstream.iter().map(String::as_str).collect();
        Listening::start(&self.ledger, &more)
    }

    /// A client on a pipe to a proxy in front of an upstream on a pipe.
    pub(crate) fn client(&self, era: Era) -> Client {
        Client::pipe(&self.wrapping_words(), era, self.path())
    }

    /// A client on a pipe to a proxy in front of a URL.
    pub(crate) fn client_of(&self, url: &str, era: Era) -> Client {
        let mut words = self.proxy_words();
        words.extend(["--url".to_owned(), url.to_owned()]);
        Client::pipe(&words, era, self.path())
    }

    /// A proxy that listens.
    pub(crate) fn listener(&self, upstream: Option<&str>) -> Listener {
        let address = free_address();
        let mut words = self.proxy_words();
        words.extend(["--listen".to_owned(), address.to_string()]);
        match upstream {
            Some(url) => words.extend(["--url".to_owned(), url.to_owned()]),
            None => {
                words.push("--".to_owned());
                words.extend(self.upstream_words());
            }
        }
        Listener::start(&words, address, self.path())
    }

    /// Everything, as asked for.
    pub(crate) fn start(&self, era: Era, front: By, back: By) -> Wrapped {
        let upstream = (back == By::Web).then(|| self.listening());
        let url = upstream.as_ref().map(Listening::url);
        let (client, proxy) = match (front, &url) {
            (By::Pipe, None) => (self.client(era), None),
            (By::Pipe, Some(url)) => (self.client_of(url, era), None),
            (By::Web, url) => {
                let proxy = self.listener(url.as_deref());
                let client = Client::web(proxy.address, era, None, self.path());
                (client, Some(proxy))
            }
        };
        Wrapped {
            client,
            _proxy: proxy,
            upstream,
        }
    }

    /// Every operation that the state knows, as the command line lists them.
    pub(crate) fn operations(&self) -> Vec<Value> {
        let state = self.path().join("state").display().to_string();
        let done = clean(&built().display().to_string())
            .args([
                "operations",
                "list",
                "--state",
                &state,
                "--json",
                "--limit",
                "100",
            ])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {errors}", done.status);
        let listed: Value = serde_json::from_slice(&done.stdout).unwrap();
        listed["operations"].as_array().unwrap().clone()
    }

    /// The states of all operations, sorted.
    pub(crate) fn states(&self) -> Vec<String> {
        let state = |one: &Value| one["state"].as_str().unwrap_or_default().to_owned();
        let mut states: Vec<_> = self.operations().iter().map(state).collect();
        states.sort();
        states
    }

    /// Waits until the upstream has received a call.
    pub(crate) fn until_called(&self, tool: &str, id: &str, times: usize) {
        let limit = Duration::from_secs(20);
        until(&format!("call {times} of {tool} {id}"), limit, || {
            (self.ledger.calls(tool, id) >= times).then_some(())
        });
    }

    /// Waits until the upstream has done something.
    pub(crate) fn until_done(&self, tool: &str, id: &str, times: usize) {
        let limit = Duration::from_secs(20);
        until(&format!("effect {times} of {tool} {id}"), limit, || {
            (self.ledger.effects(tool, id) >= times).then_some(())
        });
    }
}

impl Listener {
    fn start(words: &[String], address: SocketAddr, folder: &Path) -> Self {
        let errors = File::options()
            .append(true)
            .create(true)
            .open(folder.join("errors.txt"))
            .unwrap();
        let mut child = clean(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(errors.try_clone().unwrap())
            .stderr(errors)
            .spawn()
            .unwrap();
        until("the proxy listens", START, || {
            if let Some(status) = child.try_wait().unwrap() {
                let errors = fs::read_to_string(folder.join("errors.txt"));
                panic!("the proxy ended: {status}\n{}", errors.unwrap_or_default());
            }
            TcpStream::connect(address).ok()
        });
        Self { child, address }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A loopback address on which nobody listens now.
pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}
