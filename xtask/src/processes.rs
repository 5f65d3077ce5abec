//! Starting programs, and ending whatever they started.
//!
//! Everything a run starts carries a mark in its environment, and so does everything that those
//! programs start. A guard, a second process of this binary, waits on a pipe whose other end only
//! the run holds: when the run ends, however it ends, the guard ends what still carries the mark.

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use counterfoil_test_postgres::{Server, VARIABLE};

const MARK: &str = "XTASK_RUN";
const POLL: Duration = Duration::from_millis(20);
/// How long a program may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(10);

/// One run: its mark, its guard, and the PostgreSQL server of its tests.
pub(crate) struct Run {
    mark: String,
    guard: Child,
    postgres: OnceLock<Server>,
}

impl Run {
    /// Starts the guard.
    ///
    /// # Errors
    /// If this binary cannot be started a second time.
    pub(crate) fn new() -> Result<Self, String> {
        let mark = format!("xtask-{}", std::process::id());
        let binary = std::env::current_exe().map_err(|error| error.to_string())?;
        let guard = Command::new(binary)
            .args(["guard", &mark])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("the guard does not start: {error}"))?;
        Ok(Self {
            mark,
            guard,
            postgres: OnceLock::new(),
        })
    }

    /// Starts the server that every later command of this run is told of. It ends with the run;
    /// it has a watchdog of its own for the case that this process is killed.
    ///
    /// # Errors
    /// If PostgreSQL is not here, or does not start.
    pub(crate) fn start_postgres(&self) -> Result<(), String> {
        let server = Server::try_start().map_err(|error| error.to_string())?;
        println!("{VARIABLE}={}", server.base());
        let _ = self.postgres.set(server);
        Ok(())
    }

    /// A command of this run, in the root of the work tree, with its input closed.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(crate::root())
            .env(MARK, &self.mark)
            .stdin(Stdio::null());
        if let Some(server) = self.postgres.get() {
            command.env(VARIABLE, server.base());
        }
        command
    }

    /// Runs a command and shows what it prints.
    ///
    /// # Errors
    /// If it does not start, fails, or takes longer than `limit`.
    pub(crate) fn show(&self, command: &mut Command, limit: Duration) -> Result<(), String> {
        let started = Instant::now();
        let mut child = command
            .spawn()
            .map_err(|error| format!("{}: {error}", name(command)))?;
        loop {
            match child.try_wait() {
                Err(error) => return Err(format!("{}: {error}", name(command))),
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("{}: {status}", name(command))),
                Ok(None) if started.elapsed() > limit => {
                    end_marked(&self.mark);
                    return Err(format!(
                        "{}: not done after {} s, ended",
                        name(command),
                        limit.as_secs()
                    ));
                }
                Ok(None) => sleep(POLL),
            }
        }
    }

    /// Runs a command and hands back its standard output.
    ///
    /// # Errors
    /// If it does not start or fails; its error output is in the message.
    pub(crate) fn output(&self, command: &mut Command) -> Result<String, String> {
        let done = command
            .output()
            .map_err(|error| format!("{}: {error}", name(command)))?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(format!("{}: {}\n{said}", name(command), done.status));
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

fn name(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.take(6).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

/// The guard's own work: waits until the run is over, then ends what it left.
pub(crate) fn guard(mark: &str) -> ExitCode {
    let mut nothing = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut nothing);
    end_marked(mark);
    ExitCode::SUCCESS
}

/// Asks every marked process to end, waits, and kills what is still there.
fn end_marked(mark: &str) {
    if marked(mark).is_empty() {
        return;
    }
    signal("TERM", &marked(mark));
    let asked = Instant::now();
    while asked.elapsed() < GRACE && !marked(mark).is_empty() {
        sleep(POLL);
    }
    signal("KILL", &marked(mark));
}

/// The processes that carry the mark, but for this one.
fn marked(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(id) = entry.file_name().into_string() else {
            continue;
        };
        if id == std::process::id().to_string() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == wanted.as_bytes())
        {
            found.push(id);
        }
    }
    found
}

fn signal(which: &str, ids: &[String]) {
    for id in ids {
        // The shell's own kill: not every machine has the program.
        let _ = Command::new("sh")
            .args(["-c", "kill -s \"$1\" \"$2\" 2>/dev/null", "sh", which, id])
            .stdin(Stdio::null())
            .status();
    }
}
