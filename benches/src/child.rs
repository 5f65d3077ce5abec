use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{Error, request::Request};

const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// A server in a process of its own, ended when dropped.
pub(crate) struct Server {
    child: Child,
    /// Servers of the bench end when this closes, even if the bench is killed.
    _lifeline: Option<ChildStdin>,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

/// Resident memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    /// Now.
    pub(crate) now: u64,
    /// The most it ever was.
    pub(crate) peak: u64,
}

impl Server {
    /// A server of the bench: this very program again.
    pub(crate) fn of_bench(name: &str, data: &Path) -> Result<Self, Error> {
        let program = std::env::current_exe().map_err(Error::io("finding this program"))?;
        let mut child = Command::new(program)
            .args(["serve", name, "--data"])
            .arg(data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::io("starting a server"))?;
        let lifeline = child.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(Error::io("reading a server's address"))?;
        }
        let Ok(address) = line.trim().parse() else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::Start(name.to_owned(), format!("it said {line:?}")));
        };
        Ok(Self {
            child,
            _lifeline: lifeline,
            address,
        })
    }

    /// The release binary on a data folder, or on the store at this address, once it is ready; and
    /// how long that took.
    pub(crate) fn of_product(
        binary: &Path,
        data: &Path,
        config: &Path,
        store: Option<&str>,
    ) -> Result<(Self, Duration), Error> {
        if !binary.is_file() {
            return Err(Error::NoBinary(binary.to_owned()));
        }
        // Free a moment ago; nothing else here opens ports.
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(Error::io("finding a free port"))?;
        let log = data.with_extension("log");
        let log = File::create(log).map_err(Error::io("creating the server's log"))?;
        let begun = Instant::now();
        let child = Command::new(binary)
            .args(["serve", "--listen", &address.to_string(), "--data"])
            .arg(data)
            .arg("--config")
            .arg(config)
            .args(store.iter().flat_map(|store| ["--store", store]))
            // The product refuses variables of its name that it does not know.
            .env_remove(counterfoil_test_postgres::VARIABLE)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(Error::io("starting the release binary"))?;
        let mut server = Self {
            child,
            _lifeline: None,
            address,
        };
        while !is_ready(address) {
            let ended = server
                .child
                .try_wait()
                .map_err(Error::io("looking at the release binary"))?;
            if ended.is_some() || begun.elapsed() > START_LIMIT {
                let log = std::fs::read_to_string(data.with_extension("log")).unwrap_or_default();
                return Err(Error::Start(binary.display().to_string(), log));
            }
            std::thread::sleep(POLL);
        }
        Ok((server, begun.elapsed()))
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its resident memory.
    pub(crate) fn resident(&self) -> Result<Resident, Error> {
        Resident::of(self.child.id())
    }
}

impl Resident {
    /// Of the process with this id.
    pub(crate) fn of(process: u32) -> Result<Self, Error> {
        let path = format!("/proc/{process}/status");
        let status = std::fs::read_to_string(path).map_err(Error::io("reading /proc"))?;
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))
                .and_then(|kib| kib.trim().parse::<u64>().ok())
                .map(|kib| kib * 1024)
                .ok_or(Error::Form("/proc/PID/status"))
        };
        Ok(Self {
            now: field("VmRSS:")?,
            peak: field("VmHWM:")?,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(START_LIMIT))?;
        stream.write_all(&Request::ready())?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok(head.ends_with(b" 200"))
    };
    ask().unwrap_or(false)
}
