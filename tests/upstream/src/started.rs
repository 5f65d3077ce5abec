//! For tests: the program, started.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::ledger::Ledger;

/// The program: the one `E2E_UPSTREAM` names, else built here.
///
/// # Panics
/// If it does not build.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(named) = std::env::var_os("E2E_UPSTREAM") {
            return PathBuf::from(named);
        }
        let test = std::env::current_exe().expect("a running program has a path");
        let folder = test.ancestors().nth(2).expect("target/debug/deps");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args([
                "build",
                "--quiet",
                "-p",
                "counterfoil-test-upstream",
                "--bins",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .status()
            .expect("cargo starts");
        assert!(status.success(), "the upstream does not build: {status}");
        folder.join("faulty-upstream")
    })
}

/// The command that starts one on a pipe, program first.
#[must_use]
pub fn words(ledger: &Ledger, more: &[&str]) -> Vec<String> {
    let program = program().display().to_string();
    let file = ledger.path().display().to_string();
    let mut words = vec![program, "--effects".to_owned(), file];
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words
}

/// A running upstream over HTTP. Killed when dropped.
pub struct Listening {
    child: Child,
    port: u16,
    words: Vec<String>,
}

impl Listening {
    /// Starts one on a port of its own and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(ledger: &Ledger, more: &[&str]) -> Self {
        let words = words(ledger, more);
        let (child, port) = launch(&words, 0);
        Self { child, port, words }
    }

    /// Its MCP endpoint.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    /// The port on the loopback address.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Whether it ended by itself.
    ///
    /// # Panics
    /// If the system does not tell.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it if it still runs, and starts it again on the same port.
    ///
    /// # Panics
    /// If it does not listen again.
    pub fn restart(&mut self) {
        self.kill();
        (self.child, _) = launch(&self.words, self.port);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launch(words: &[String], port: u16) -> (Child, u16) {
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .args(["--http", &format!("127.0.0.1:{port}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the upstream starts");
    let mut said = String::new();
    let out = child.stdout.take().expect("its output");
    BufReader::new(out).read_line(&mut said).expect("a port");
    let port = said.trim().parse().expect("the upstream prints its port");
    (child, port)
}
