//! Servers that listen: one by itself, and proxies in front of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use counterfoil_e2e::{built, until};

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(30);

/// A program that listens. Killed when dropped.
pub(crate) struct Listening {
    child: Child,
    address: String,
}

/// The server on the Rust SDK, beside the other test upstream.
pub(crate) fn fixture() -> PathBuf {
    counterfoil_test_upstream::program().with_file_name("conformance-fixture")
}

impl Listening {
    /// A proxy with an empty state of its own, in front of this.
    pub(crate) fn proxy(target: &[&str], folder: &Path, name: &str) -> Self {
        let program = built().display().to_string();
        let state = folder.join(format!("{name}-state")).display().to_string();
        let words = [
            &program,
            "proxy",
            "--state",
            &state,
            "--keyless",
            "mint",
            "--listen",
            "127.0.0.1:0",
        ];
        Self::start(&[&words[..], target].concat(), folder, name)
    }

    /// Starts a program and waits until it says where it listens.
    pub(crate) fn start(words: &[&str], folder: &Path, name: &str) -> Self {
        let printed = folder.join(format!("{name}.txt"));
        let into = File::create(&printed).unwrap();
        let mut command = Command::new(words[0]);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"COUNTERFOIL_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(&words[1..])
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(into.try_clone().unwrap())
            .stderr(into)
            .spawn()
            .unwrap_or_else(|why| panic!("{}: {why}", words[0]));
        let address = until("it says where it listens", START, || {
            let printed = fs::read_to_string(&printed).unwrap_or_default();
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{words:?} ended: {status}\n{printed}");
            }
            address_in(&printed)
        });
        Self { child, address }
    }

    /// Its MCP endpoint.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line that is a port, or says an address; whole, so that no half of it is read.
fn address_in(printed: &str) -> Option<String> {
    let (whole, _) = printed.rsplit_once('\n')?;
    whole.lines().find_map(|line| match line.parse::<u16>() {
        Ok(port) => Some(format!("127.0.0.1:{port}")),
        Err(_) => {
            let (_, after) = line.split_once("listens on http://")?;
            Some(after.split_once("/mcp")?.0.to_owned())
        }
    })
}
