//! The installed clients, and how each is run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use counterfoil_e2e::{Folder, clients};
use serde_json::Value;

/// A newer Node than most machines have: the one among the installed packages.
fn node() -> PathBuf {
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

fn modules() -> PathBuf {
    clients().join("node/node_modules")
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

/// What came of the calls of one job: the revision that was spoken, and an outcome for each.
pub(crate) struct Outcomes {
    /// `None` where the SDK does not tell.
    pub(crate) protocol: Option<String>,
    pub(crate) outcomes: Vec<Value>,
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

pub(crate) fn typescript(job: &Value) -> Outcomes {
    let mut command = Command::new(node());
    command
        .arg(beside_packages("typescript.mjs"))
        .arg(job.to_string());
    Outcomes::read(&run(&mut command))
}

pub(crate) fn python(job: &Value) -> Outcomes {
    let mut command = Command::new(clients().join("python/bin/python"));
    command
        .arg(sources().join("client.py"))
        .arg(job.to_string());
    Outcomes::read(&run(&mut command))
}

/// The inspector's command line; its own files go to a folder of the test.
pub(crate) fn inspector(folder: &Folder, words: &[&str]) -> Output {
    let package = modules().join("@modelcontextprotocol/inspector");
    let mut command = Command::new(node());
    command
        .arg(package.join("clients/launcher/build/index.js"))
        .arg("--cli")
        .args(words)
        .env("HOME", folder.root())
        .current_dir(folder.root());
    run(&mut command)
}

/// The official conformance suite.
pub(crate) fn conformance(folder: &Folder, words: &[&str]) -> Output {
    let package = modules().join("@modelcontextprotocol/conformance");
    let mut command = Command::new(node());
    command
        .arg(package.join("dist/index.js"))
        .args(words)
        .current_dir(folder.root());
    run(&mut command)
}

fn run(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .expect("the client starts")
}
