use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_counterfoil");

/// A folder of a test's own, with the commands that work in it.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub(crate) fn agent_key(&self) -> String {
        let text = std::fs::read_to_string(self.data().join("agent-key")).unwrap();
        text.trim_end_matches('\n').to_owned()
    }

    /// The binary, without an environment of somebody else's.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments).current_dir(self.folder.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("COUNTERFOIL_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs a command to its end, with `--data` for this place.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        let data = self.data();
        let mut command = self.command(arguments);
        command.arg("--data").arg(data);
        Finished(command.output().unwrap())
    }

    pub(crate) fn serve(&self) -> Server {
        Server::start(self, &[])
    }
}

/// A command that has ended.
pub(crate) struct Finished(pub(crate) Output);

impl Finished {
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.0.status.success(), "{:?}", self.0);
        String::from_utf8(self.0.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Asserts the exit code, and gives what was said on standard error.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.0.status.code(), Some(code), "{:?}", self.0);
        assert!(self.0.stdout.is_empty());
        String::from_utf8(self.0.stderr).unwrap()
    }
}

/// A running server on a port of its own.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// What it greeted with.
    pub(crate) greeting: String,
}

impl Server {
    pub(crate) fn start(place: &Place, more: &[&str]) -> Self {
        let mut command = place.command(&["serve", "--listen", "127.0.0.1:0"]);
        let mut child = command
            .arg("--data")
            .arg(place.data())
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = String::new();
        for line in lines.by_ref() {
            let line = line.unwrap();
            greeting.push_str(&line);
            greeting.push('\n');
            if line.starts_with("Ctrl-C") {
                break;
            }
        }
        let address = greeting
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("Counterfoil listens on http://"))
            .unwrap_or_else(|| panic!("no address in {greeting:?}"))
            .to_owned();
        Self {
            child,
            address,
            greeting,
        }
    }

    /// A request and its answer, on a connection of its own.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
            .write_all(request(&self.address, method, path, headers, body).as_bytes())
            .unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::read(&bytes)
    }

    /// Sends a request and closes without reading the answer.
    pub(crate) fn send_and_go_away(&self, path: &str, headers: &[(&str, &str)], body: &str) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .write_all(request(&self.address, "POST", path, headers, body).as_bytes())
            .unwrap();
    }

    pub(crate) fn note(&self, credential: &str, key: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {credential}");
        let body = serde_json::json!({ "body": body }).to_string();
        let headers = [("authorization", bearer.as_str()), ("idempotency-key", key)];
        self.ask("POST", "/api/v1/notes", &headers, &body)
    }

    pub(crate) fn get(&self, credential: &str, path: &str) -> Answer {
        let bearer = format!("Bearer {credential}");
        self.ask("GET", path, &[("authorization", bearer.as_str())], "")
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; whether it ended well.
    pub(crate) fn terminate(mut self) -> bool {
        self.signal(rustix::process::Signal::TERM);
        self.child.wait().unwrap().success()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.child.id()).unwrap();
        let id = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(id, signal).unwrap();
    }

    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn request(
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> String {
    let mut text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    format!("{text}\r\n{body}")
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.head.contains("idempotent-replayed: true")
    }
}

#[cfg(unix)]
pub(crate) fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}
