//! The clients and servers of other people that `cargo xtask test` installs, and how each is run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::binary::clients;

/// What came of the calls of one job: the revision that was spoken, and an outcome for each.
pub struct Outcomes {
    /// `None` where the SDK does not tell.
    pub protocol: Option<String>,
    /// Each as the SDK shows it to its user.
    pub outcomes: Vec<Value>,
}

impl Outcomes {
    fn read(done: &Output) -> Self {
        let printed = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "{}\n{printed}\n{errors}",
            done.status
        );
        let line = printed.lines().last().unwrap_or_default();
        let value: Value = serde_json::from_str(line).expect("the script prints JSON");
        Self {
            protocol: value["protocol"].as_str().map(str::to_owned),
            outcomes: value["outcomes"].as_array().expect("outcomes").clone(),
        }
    }
}

/// A newer Node than most machines have: the one among the installed packages.
///
/// # Panics
/// If it is not installed.
#[must_use]
pub fn node() -> PathBuf {
    let machine = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "x64"
    };
    let node = modules().join(format!("node-linux-{machine}/bin/node"));
    assert!(
        node.exists(),
        "{} is missing: `cargo xtask test` installs the clients",
        node.display()
    );
    node
}

/// The installed packages for Node.
#[must_use]
pub fn modules() -> PathBuf {
    clients().join("node/node_modules")
}

/// A program of the Python environment.
#[must_use]
pub fn python_program(name: &str) -> PathBuf {
    clients().join("python/bin").join(name)
}

/// A program of the environment with the Python SDK 1.x.
#[must_use]
pub fn python_sdk_1_program(name: &str) -> PathBuf {
    clients().join("python-sdk-1/bin").join(name)
}

/// Runs a job with a TypeScript SDK; `tests/e2e/clients/typescript.mjs` says what a job is.
///
/// # Panics
/// If the script fails.
#[must_use]
pub fn typescript(job: &Value) -> Outcomes {
    let mut command = Command::new(node());
    command
        .arg(beside_packages("typescript.mjs"))
        .arg(job.to_string());
    Outcomes::read(&run(&mut command))
}

/// Runs a job with the Python SDK; `tests/e2e/clients/client.py` says what a job is.
///
/// # Panics
/// If the script fails.
#[must_use]
pub fn python(job: &Value) -> Outcomes {
    let mut command = Command::new(python_program("python"));
    command
        .arg(sources().join("client.py"))
        .arg(job.to_string());
    Outcomes::read(&run(&mut command))
}

/// The inspector's command line; its own files go into this folder.
///
/// # Panics
/// If it is not installed.
#[must_use]
pub fn inspector(folder: &Path) -> Command {
    let package = modules().join("@modelcontextprotocol/inspector");
    let mut command = Command::new(node());
    command
        .arg(package.join("clients/launcher/build/index.js"))
        .arg("--cli")
        .env("HOME", folder)
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

/// The command line of `fastmcp`; its own files go into this folder.
#[must_use]
pub fn fastmcp(folder: &Path) -> Command {
    let mut command = Command::new(python_program("fastmcp"));
    command
        .env("HOME", folder)
        .env("FASTMCP_CHECK_FOR_UPDATES", "off")
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

/// The official conformance suite, run in this folder.
///
/// # Panics
/// If it is not installed.
#[must_use]
pub fn conformance(folder: &Path, words: &[&str]) -> Output {
    let package = modules().join("@modelcontextprotocol/conformance");
    let mut command = Command::new(node());
    command
        .arg(package.join("dist/index.js"))
        .args(words)
        .current_dir(folder);
    run(&mut command)
}

/// A script beside the packages that it imports, which is where Node looks for them.
fn beside_packages(name: &str) -> PathBuf {
    let from = sources().join(name);
    let folder = clients().join("node");
    let place = folder.join(name);
    let fresh = folder.join(format!("{}-{name}", std::process::id()));
    fs::copy(from, &fresh).expect("a writable folder of clients");
    fs::rename(&fresh, &place).expect("a script in its place");
    place
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

fn run(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .expect("the client starts")
}
