//! Where PostgreSQL's programs are, which user may run them, and how they are run.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs;
use std::hash::BuildHasher as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Why a server could not be started or steered, with what to do about it.
#[derive(Debug, Clone)]
pub struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Where Debian puts each version's programs.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The folder that holds `initdb` and `postgres`: the newest of Debian's, else one of `PATH`.
///
/// # Errors
/// If there is none; the message names the package to install.
pub fn folder_of_programs() -> Result<PathBuf, Failure> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(DEBIAN)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    versions
        .into_iter()
        .rev()
        .map(|(_, folder)| folder)
        .chain(std::env::split_paths(&path))
        .find(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
        .ok_or_else(|| {
            Failure(format!(
                "no PostgreSQL server found in {DEBIAN}/*/bin or on PATH: install Debian's \
                 package `postgresql` (`cargo xtask test` does it as root)"
            ))
        })
}

/// The path of one of PostgreSQL's programs, such as `psql` or `pgbench`; the bare name if it is
/// not beside the server.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    folder_of_programs()
        .map(|folder| folder.join(name))
        .ok()
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from(name))
}

/// The user a server runs as. PostgreSQL refuses to run as root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// The user to change to: none unless this process is root's.
pub(crate) fn owner() -> Result<Option<Owner>, Failure> {
    if id(&["-u"]) != Some(0) {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let (Some(user), Some(group)) = (id(&["-u", name]), id(&["-g", name])) {
            return Ok(Some(Owner { user, group }));
        }
    }
    Err(Failure(
        "PostgreSQL does not run as root, and there is neither a user `postgres` nor `nobody`: \
         Debian's package `postgresql` brings the first"
            .to_owned(),
    ))
}

fn id(arguments: &[&str]) -> Option<u32> {
    let done = Command::new("id")
        .args(arguments)
        .stderr(Stdio::null())
        .output();
    let done = done.ok().filter(|done| done.status.success())?;
    String::from_utf8(done.stdout).ok()?.trim().parse().ok()
}

/// A program in a folder, as that user, untouched by settings for other servers.
pub(crate) fn command(program: &Path, folder: &Path, owner: Option<Owner>) -> Command {
    let mut command = client(program);
    command.current_dir(folder).env("HOME", folder);
    // A group of its own: a key pressed at the terminal is for the tests, which then end it.
    command.process_group(0);
    if let Some(owner) = owner {
        command.uid(owner.user).gid(owner.group);
    }
    command
}

/// A client program, untouched by settings for other servers.
pub(crate) fn client(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    command
}

/// Runs a program to its end, or kills it at the limit.
pub(crate) fn output(command: &mut Command, limit: Duration) -> Result<Output, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure(format!("{name} does not start: {error}")))?;
    let id = child.id();
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    match ended.recv_timeout(limit) {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) => Err(Failure(format!("{name}: {error}"))),
        Err(_) => {
            signal("KILL", &[id]);
            Err(Failure(format!(
                "{name}: not done after {} s, killed",
                limit.as_secs()
            )))
        }
    }
}

/// Sends a signal. A process that is gone already is no error.
pub(crate) fn signal(which: &str, ids: &[u32]) {
    if ids.is_empty() {
        return;
    }
    // The shell's own kill: not every machine has the program.
    let _ = Command::new("sh")
        .args([
            "-c",
            "which=$1; shift; for id; do kill -s \"$which\" \"$id\"; done",
        ])
        .args(["sh", which])
        .args(ids.iter().map(u32::to_string))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// A number that no other process draws.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// A free port of the loopback address, below those the kernel hands to outgoing connections: it
/// stays free while a server is down between two starts.
pub(crate) fn free_port() -> u16 {
    for _ in 0..200 {
        let port = 15_000 + (random() % 17_000) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between 15000 and 32000 in 200 tries");
}

/// A new folder that only that user reads.
pub(crate) fn new_folder(owner: Option<Owner>) -> Result<PathBuf, Failure> {
    let parent = std::env::temp_dir();
    let parent = parent.canonicalize().map_err(|error| at(&parent, &error))?;
    let folder = parent.join(format!("counterfoil-postgres-{:016x}", random()));
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .map_err(|error| at(&folder, &error))?;
    if let Some(owner) = owner {
        chown(&folder, Some(owner.user), Some(owner.group)).map_err(|error| at(&folder, &error))?;
    }
    Ok(folder)
}

pub(crate) fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure(format!("{}: {error}", path.display()))
}
