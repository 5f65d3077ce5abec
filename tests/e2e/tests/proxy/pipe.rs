//! A client that starts its server and speaks to it over pipes.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use counterfoil_e2e::until;
use serde_json::Value;

use crate::client::answer_to;
use crate::said::Inbox;

pub(crate) struct Pipe {
    child: Mutex<Child>,
    input: Arc<Mutex<Option<ChildStdin>>>,
}

impl Pipe {
    /// Starts the command; what it says on its standard error goes into the file.
    pub(crate) fn start(words: &[String], errors: &Path, inbox: &Arc<Inbox>) -> Self {
        let errors = File::options()
            .append(true)
            .create(true)
            .open(errors)
            .unwrap();
        let mut child = clean(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", words[0]));
        let input = Arc::new(Mutex::new(child.stdin.take()));
        let out = child.stdout.take().unwrap();
        let (inbox, back) = (Arc::clone(inbox), Arc::clone(&input));
        thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n') {
                let Ok(line) = line else { break };
                let text = String::from_utf8_lossy(&line).into_owned();
                let message = serde_json::from_str::<Value>(&text).unwrap_or_default();
                inbox.add(text);
                if let Some(answer) = answer_to(&message) {
                    write(&back, &answer);
                }
            }
            inbox.end();
        });
        Self {
            child: Mutex::new(child),
            input,
        }
    }

    pub(crate) fn send(&self, text: &str) {
        write(&self.input, text);
    }

    /// Ends what is written to it, as a host does first.
    pub(crate) fn end_input(&self) {
        lock(&self.input).take();
    }

    pub(crate) fn kill(&self) {
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }

    pub(crate) fn ended(&self, limit: Duration) -> ExitStatus {
        until("the process ends", limit, || {
            lock(&self.child).try_wait().unwrap()
        })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command without the settings of whoever runs the tests.
pub(crate) fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"COUNTERFOIL_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG");
    command
}

fn write(input: &Mutex<Option<ChildStdin>>, text: &str) {
    if let Some(input) = lock(input).as_mut() {
        // Whoever reads it may have ended; the inbox says so.
        let _ = input.write_all(format!("{text}\n").as_bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
