//! A host that starts a server and speaks to it over pipes, one message after the other.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use counterfoil_e2e::until;
use serde_json::{Value, json};

use crate::answer::Answer;

/// Longest life of a server: whoever waits for it longer waits for nothing.
const LIFE: Duration = Duration::from_secs(90);
/// Longest end of a server.
const END: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// A command, what is set for it in the environment, and a folder for what it prints beside its
/// messages.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) words: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) folder: PathBuf,
}

pub(crate) struct Host {
    era: Era,
    child: Arc<Mutex<Child>>,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    next: u64,
    /// What was said that answers nothing, or what nobody asked for.
    heard: Vec<Value>,
    errors: PathBuf,
    /// Dropped with the host: the watch over the server's life ends.
    _watch: Sender<()>,
}

impl Era {
    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }
}

impl Start {
    /// The same without the settings of whoever runs the tests.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"COUNTERFOIL_") {
                command.env_remove(name);
            }
        }
        command
            .args(&self.words[1..])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env_remove("RUST_LOG")
            .current_dir(&self.folder);
        command
    }

    pub(crate) fn errors(&self) -> (PathBuf, File) {
        let path = self.folder.join("errors.txt");
        let file = File::options().append(true).create(true).open(&path);
        (path, file.unwrap())
    }
}

impl Host {
    /// Starts a server and shakes hands, if that is the custom of the era.
    pub(crate) fn start(start: &Start, era: Era) -> Self {
        let (errors, file) = start.errors();
        let mut child = start
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|why| panic!("{}: {why}", start.words[0]));
        let input = child.stdin.take();
        let output = child.stdout.take().map(BufReader::new);
        let child = Arc::new(Mutex::new(child));
        let mut host = Self {
            era,
            _watch: watch(&child),
            child,
            input,
            output,
            next: 1,
            heard: Vec::new(),
            errors,
        };
        host.shake_hands();
        host
    }

    fn shake_hands(&mut self) {
        if self.era == Era::Modern {
            return;
        }
        let said = self.ask(
            "initialize",
            json!({
                "protocolVersion": self.era.version(),
                "capabilities": {},
                "clientInfo": {"name": "host", "version": "1"},
            }),
        );
        assert_eq!(said.result()["protocolVersion"], self.era.version());
        self.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
    }

    /// Calls a tool.
    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Answer {
        self.call_with(tool, arguments, &json!({}))
    }

    /// The same with members of `_meta`.
    pub(crate) fn call_with(&mut self, tool: &str, arguments: &Value, meta: &Value) -> Answer {
        let (id, text) = self.called(tool, arguments, meta);
        self.write(&text);
        self.answer(id)
    }

    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Answer {
        let (id, text) = self.request(method, params);
        self.write(&text);
        self.answer(id)
    }

    /// Calls a tool and cancels it in the same breath. The answer has not come and never does:
    /// the proxy has taken the cancel when it answers what is asked after it.
    pub(crate) fn cancel(&mut self, tool: &str, arguments: &Value, meta: &Value) {
        let (id, text) = self.called(tool, arguments, meta);
        let cancel = json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "the host gives up"},
        });
        self.write(&format!("{text}\n{cancel}"));
        self.ask("tools/list", json!({}));
        let came = self.heard.iter().find(|said| said["id"] == id);
        assert!(came.is_none(), "cancelled, and answered: {came:?}");
    }

    /// Calls a tool and is gone at once, both pipes with it. Returns when the server has ended.
    pub(crate) fn vanish(mut self, tool: &str, arguments: &Value, meta: &Value) {
        let (_, text) = self.called(tool, arguments, meta);
        self.write(&text);
        drop(self.output.take());
        drop(self.input.take());
        ended(&self.child);
    }

    /// Ends as a host does first: nothing more is said to the server.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        let status = ended(&self.child);
        assert!(status.success(), "{status}\n{}", self.printed());
    }

    fn called(&mut self, tool: &str, arguments: &Value, meta: &Value) -> (u64, String) {
        let mut params = json!({"name": tool, "arguments": arguments});
        if meta.as_object().is_some_and(|meta| !meta.is_empty()) {
            params["_meta"] = meta.clone();
        }
        self.request("tools/call", params)
    }

    fn request(&mut self, method: &str, mut params: Value) -> (u64, String) {
        let id = self.next;
        self.next += 1;
        if self.era == Era::Modern {
            let name = |last: &str| format!("io.modelcontextprotocol/{last}");
            if params["_meta"].is_null() {
                params["_meta"] = json!({});
            }
            params["_meta"][name("protocolVersion")] = json!(self.era.version());
            params["_meta"][name("clientInfo")] = json!({"name": "host", "version": "1"});
            params["_meta"][name("clientCapabilities")] = json!({});
        }
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        (id, message.to_string())
    }

    fn write(&mut self, text: &str) {
        let input = self.input.as_mut().unwrap();
        // One write: what is said in one breath arrives in one.
        let written = input.write_all(format!("{text}\n").as_bytes());
        written.unwrap_or_else(|why| panic!("{why}\n{}", self.printed()));
    }

    fn answer(&mut self, id: u64) -> Answer {
        loop {
            let mut line = String::new();
            let read = self.output.as_mut().unwrap().read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the server ended\n{}", self.printed());
            let answer = Answer::new(&line);
            if answer.value["id"] == id && answer.value.get("method").is_none() {
                return answer;
            }
            self.heard.push(answer.value);
        }
    }

    fn printed(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Kills a server that lives too long, so that whoever reads what it says is told.
fn watch(child: &Arc<Mutex<Child>>) -> Sender<()> {
    let (watch, until) = mpsc::channel();
    let child = Arc::downgrade(child);
    thread::spawn(move || {
        if until.recv_timeout(LIFE) == Err(RecvTimeoutError::Timeout)
            && let Some(child) = child.upgrade()
        {
            let _ = lock(&child).kill();
        }
    });
    watch
}

fn ended(child: &Mutex<Child>) -> ExitStatus {
    until("the server ends", END, || lock(child).try_wait().unwrap())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a file holds a text so many times.
pub(crate) fn count(file: &Path, text: &str) -> usize {
    let held = std::fs::read_to_string(file).unwrap_or_default();
    held.matches(text).count()
}
