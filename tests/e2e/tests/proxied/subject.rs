//! A server that somebody else wrote, with a small world of its own to change.

use std::fs;
use std::path::{Path, PathBuf};

use counterfoil_e2e::built;
use serde_json::Value;
use tempfile::TempDir;

use crate::host::{Era, Host, Start};

/// A tool and its arguments.
pub(crate) type Call = (&'static str, Value);

pub(crate) struct Subject {
    pub(crate) folder: TempDir,
    /// The server's command, without a proxy.
    pub(crate) direct: Start,
    /// Makes its world as it was at the beginning.
    pub(crate) lay: fn(&Path),
    /// What it is asked that changes nothing and is no tool.
    pub(crate) asks: Vec<(&'static str, Value)>,
    /// Calls that change nothing, and say so.
    pub(crate) reads: Vec<Call>,
    /// A call that changes something each time it runs.
    pub(crate) change: Call,
    /// Without this it would be refused once more.
    pub(crate) ready: fn(&Path),
    /// How often it ran.
    pub(crate) effects: fn(&Path) -> usize,
    /// Its tools say what they do.
    pub(crate) annotated: bool,
}

impl Subject {
    /// A folder in which a server changes something.
    pub(crate) fn folder() -> (TempDir, PathBuf) {
        let folder = TempDir::new().unwrap();
        let world = folder.path().join("world");
        (folder, world)
    }

    /// What the server changes.
    pub(crate) fn world(&self) -> PathBuf {
        self.folder.path().join("world")
    }

    /// Makes the world as it was at the beginning.
    pub(crate) fn lay(&self) {
        let world = self.world();
        if world.exists() {
            fs::remove_dir_all(&world).unwrap();
        }
        fs::create_dir_all(&world).unwrap();
        (self.lay)(&world);
        self.ready();
    }

    /// Makes it possible that the change runs once more.
    pub(crate) fn ready(&self) {
        (self.ready)(&self.world());
    }

    pub(crate) fn effects(&self) -> usize {
        (self.effects)(&self.world())
    }

    /// The command with a proxy in front.
    pub(crate) fn proxied(&self, more: &[&str]) -> Start {
        let mut words = proxy(self.folder.path(), more);
        words.push("--".to_owned());
        words.extend(self.direct.words.iter().cloned());
        Start {
            words,
            ..self.direct.clone()
        }
    }

    /// A host of the server behind a proxy, that knows its tools.
    pub(crate) fn host(&self, era: Era) -> Host {
        let mut host = Host::start(&self.proxied(&[]), era);
        host.ask("tools/list", serde_json::json!({}));
        host
    }
}

/// The words of a proxy with its state in this folder, up to what it wraps.
pub(crate) fn proxy(folder: &Path, more: &[&str]) -> Vec<String> {
    let state = folder.join("state").display().to_string();
    let mut words = vec![built().display().to_string()];
    words.extend(["proxy", "--state", &state].map(str::to_owned));
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words
}
