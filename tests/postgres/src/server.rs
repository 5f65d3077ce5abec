//! A PostgreSQL server of its own: fresh cluster, free port, loopback only.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::programs::{self, Failure, Owner};
use crate::watchdog::Watchdog;

/// Longest that making a cluster, a start or a stop may take.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// `fsync` stays on: what survives a kill is what is tested. No Unix socket: its path would have
/// to be short.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
shared_buffers = 256MB
fsync = on
deadlock_timeout = 200ms
log_line_prefix = '%m [%p] %d '
timezone = 'UTC'
log_timezone = 'UTC'
";

const ACCESS: &str = "\
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
";

/// How a server is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Open transactions are rolled back, everything is flushed.
    Fast,
    /// All processes quit at once; the next start recovers from the log.
    Immediate,
}

/// A running server with a cluster of its own. Its superuser is `postgres`, without a password.
///
/// Ends and removes its folder when it is dropped. If this process is killed instead, a watchdog
/// does it. A server in a static is never dropped: it ends with the process in the same way.
///
/// Methods that steer the server wait until it is done and panic, with the end of the server's
/// log, if that takes longer than a minute. They may be called from any thread.
pub struct Server {
    programs: PathBuf,
    owner: Option<Owner>,
    folder: PathBuf,
    port: u16,
    postmaster: Mutex<Option<Child>>,
    /// Ends what is left; the last field, so that it is dropped last.
    _watchdog: Watchdog,
}

impl Server {
    /// Makes a cluster and starts it.
    ///
    /// # Panics
    /// As [`Server::try_start`] fails.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// As [`Server::start`], with further settings of `postgresql.conf`, such as
    /// `("max_connections", "10")`.
    ///
    /// # Panics
    /// As [`Server::try_start`] fails.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::make(settings).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Makes a cluster and starts it.
    ///
    /// # Errors
    /// If there is no PostgreSQL here, or no user it could run as, or if it does not start.
    pub fn try_start() -> Result<Self, Failure> {
        Self::make(&[])
    }

    fn make(settings: &[(&str, &str)]) -> Result<Self, Failure> {
        let programs = programs::folder_of_programs()?;
        let owner = programs::owner()?;
        let folder = programs::new_folder(owner)?;
        let watchdog = Watchdog::start(&folder)?;
        let mut server = Self {
            programs,
            owner,
            folder,
            port: 0,
            postmaster: Mutex::new(None),
            _watchdog: watchdog,
        };
        server.make_cluster(settings)?;
        // A port is free until somebody else takes it: try again elsewhere.
        for _ in 0..5 {
            server.port = programs::free_port();
            match server.launch() {
                Err(_) if server.log_tail().contains("could not bind") => {}
                done => return done.map(|()| server),
            }
        }
        Err(Failure(
            "five free ports were taken before the server had them".to_owned(),
        ))
    }

    fn make_cluster(&self, settings: &[(&str, &str)]) -> Result<(), Failure> {
        let mut command = self.command("initdb");
        command
            .args(["--no-sync", "--auth=trust", "--encoding=UTF8"])
            .args(["--locale=C.UTF-8", "--username=postgres", "--pgdata"])
            .arg(self.data());
        let done = programs::output(&mut command, LIMIT).map_err(|why| {
            let folder = self.folder.display();
            Failure(format!(
                "{why}\nin {folder}, as {:?}: may that user enter the folders above it?",
                self.owner
            ))
        })?;
        if !done.status.success() {
            return Err(Failure(format!(
                "initdb fails in {}: {}",
                self.folder.display(),
                String::from_utf8_lossy(&done.stderr)
            )));
        }
        let file = self.data().join("postgresql.conf");
        let mut text = fs::read_to_string(&file).map_err(|error| programs::at(&file, &error))?;
        text.push_str(SETTINGS);
        for (name, value) in settings {
            text.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
        }
        fs::write(&file, text).map_err(|error| programs::at(&file, &error))?;
        let file = self.data().join("pg_hba.conf");
        fs::write(&file, ACCESS).map_err(|error| programs::at(&file, &error))
    }

    /// Starts the server on its port and waits until it takes connections.
    fn launch(&self) -> Result<(), Failure> {
        let mut postmaster = self.postmaster();
        if postmaster.is_some() {
            return Err(Failure("the server is running already".to_owned()));
        }
        let log = self.open_log()?;
        let errors = log
            .try_clone()
            .map_err(|error| programs::at(&self.log(), &error))?;
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string()])
            .stdout(log)
            .stderr(errors);
        let mut child = command
            .spawn()
            .map_err(|error| Failure(format!("postgres does not start: {error}")))?;
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(self.with_log(&format!("postgres ended at its start: {status}")));
            }
            if self.is_ready(child.id()) {
                *postmaster = Some(child);
                return Ok(());
            }
            if started.elapsed() > LIMIT {
                *postmaster = Some(child);
                return Err(self.with_log("postgres takes no connections after a minute"));
            }
            sleep(POLL);
        }
    }

    /// What the server writes about itself: its process in line 1, its state in line 8.
    fn is_ready(&self, id: u32) -> bool {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = text.lines();
        lines.next() == Some(id.to_string().as_str())
            && lines.nth(6).is_some_and(|state| state.trim() == "ready")
    }

    /// The port of 127.0.0.1 it listens on. It stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its address without a database: `postgres://postgres@127.0.0.1:PORT`.
    #[must_use]
    pub fn base(&self) -> String {
        format!("postgres://postgres@{}", self.address())
    }

    /// The address of one database.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("{}/{database}", self.base())
    }

    /// The folder it lives in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the server wrote to its log so far.
    #[must_use]
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// Stops it and starts it again on the same port and folder.
    ///
    /// # Panics
    /// If it does not.
    pub fn restart(&self, mode: Mode) {
        self.stop(mode);
        self.start_again();
    }

    /// Stops it and waits until it is gone. Nothing happens if it is not running.
    ///
    /// # Panics
    /// If it does not stop.
    pub fn stop(&self, mode: Mode) {
        let mut postmaster = self.postmaster();
        let Some(child) = postmaster.as_mut() else {
            return;
        };
        let which = match mode {
            Mode::Fast => "INT",
            Mode::Immediate => "QUIT",
        };
        programs::signal(which, &[child.id()]);
        let asked = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            assert!(
                asked.elapsed() < LIMIT,
                "{}",
                self.with_log("postgres does not stop")
            );
            sleep(POLL);
        }
        *postmaster = None;
    }

    /// Starts it after [`Server::stop`] or [`Server::kill`], on the same port and folder.
    ///
    /// # Panics
    /// If it is running, or does not start.
    pub fn start_again(&self) {
        self.launch().unwrap_or_else(|why| panic!("{why}"));
    }

    /// Kills the server and every backend (SIGKILL), as a power cut would, and waits until they
    /// are gone. Nothing happens if it is not running.
    ///
    /// # Panics
    /// If something of it is still there after a minute.
    pub fn kill(&self) {
        let mut postmaster = self.postmaster();
        let Some(mut child) = postmaster.take() else {
            return;
        };
        // Stopped first, it starts no backend while they are counted, and restarts none.
        programs::signal("STOP", &[child.id()]);
        let asked = Instant::now();
        loop {
            let left = self.processes();
            programs::signal("KILL", &left);
            let _ = child.try_wait();
            if left.is_empty() {
                let _ = child.wait();
                return;
            }
            assert!(asked.elapsed() < LIMIT, "postgres outlives SIGKILL");
            sleep(POLL);
        }
    }

    /// Stops server and backends in their tracks (SIGSTOP): connections stay open, nothing
    /// answers.
    pub fn pause(&self) {
        let postmaster = self.postmaster();
        if let Some(child) = postmaster.as_ref() {
            programs::signal("STOP", &[child.id()]);
            programs::signal("STOP", &self.processes());
        }
    }

    /// Lets them go on after [`Server::pause`].
    pub fn resume(&self) {
        programs::signal("CONT", &self.processes());
    }

    /// The server and its backends: each works in the cluster's folder.
    fn processes(&self) -> Vec<u32> {
        let data = self.data();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter(|entry| {
                fs::read_link(entry.path().join("cwd")).is_ok_and(|folder| folder == data)
            })
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    fn postmaster(&self) -> MutexGuard<'_, Option<Child>> {
        self.postmaster
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn command(&self, name: &str) -> std::process::Command {
        programs::command(&self.programs.join(name), &self.folder, self.owner)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn open_log(&self) -> Result<File, Failure> {
        let mut options = OpenOptions::new();
        let log = options.create(true).append(true).open(self.log());
        log.map_err(|error| programs::at(&self.log(), &error))
    }

    fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<_> = text.lines().rev().take(15).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn with_log(&self, what: &str) -> Failure {
        Failure(format!("{what}. The end of its log:\n{}", self.log_tail()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The watchdog ends what runs in the folder. The child is only waited for here, beside
        // it, so that nothing is left to reap.
        if let Some(mut child) = self.postmaster().take() {
            programs::signal("QUIT", &[child.id()]);
            std::thread::spawn(move || child.wait());
        }
    }
}
