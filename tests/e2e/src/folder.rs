use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::binary::built;
use crate::server::Server;

/// A temporary folder: the data folder is inside, and so is what the server printed.
pub struct Folder {
    root: PathBuf,
    _temporary: Option<TempDir>,
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// A new, empty one.
    ///
    /// # Panics
    /// If there is no place for it.
    #[must_use]
    pub fn new() -> Self {
        let temporary = TempDir::new().expect("a temporary folder");
        Self {
            root: temporary.path().to_path_buf(),
            _temporary: Some(temporary),
        }
    }

    /// One whose data lies in a place that somebody else made.
    #[must_use]
    pub fn at(root: PathBuf) -> Self {
        Self {
            root,
            _temporary: None,
        }
    }

    /// The folder around the data folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The data folder.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.root.join("data")
    }

    /// The first agent key, as the first start left it.
    ///
    /// # Panics
    /// If it is not there.
    #[must_use]
    pub fn key(&self) -> String {
        let file = self.path().join("agent-key");
        let text = fs::read_to_string(&file).expect("the first start leaves an agent key");
        text.trim_end_matches('\n').to_owned()
    }

    /// Starts a server on a data folder elsewhere; what it prints goes here. Waits for nothing.
    ///
    /// # Panics
    /// If the program does not start.
    #[must_use]
    pub fn launch_at(&self, data: &Path) -> Server {
        Server::launch_on(data, &self.root, &[])
    }

    /// Writes a configuration file and hands back its path.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn config(&self, text: &str) -> String {
        let path = self.root.join("counterfoil.toml");
        fs::write(&path, text).expect("the configuration is written");
        path.display().to_string()
    }

    /// The database file: the one in the data folder that opens as SQLite files do.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        let entries = fs::read_dir(self.path()).expect("the data folder is there");
        entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3\0")))
            .expect("a database in the data folder")
    }

    /// Every byte of every file of the data folder but the agent key's.
    ///
    /// # Panics
    /// If a file cannot be read.
    #[must_use]
    pub fn bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = fs::read_dir(self.path()).expect("the data folder is there");
        entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_file() && !path.ends_with("agent-key"))
            .map(|path| (path.clone(), fs::read(&path).expect("a readable file")))
            .collect()
    }

    /// Runs the binary's command line on this folder, to its end.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(built());
        command.args(words).arg("--data").arg(self.path());
        crate::server::clean(&mut command);
        command
            .stdin(Stdio::null())
            .output()
            .expect("the binary starts")
    }

    /// The same, with `--json`, of which the answer is read.
    ///
    /// # Panics
    /// If it fails, or does not print JSON.
    #[must_use]
    pub fn json(&self, words: &[&str]) -> Value {
        let mut all = words.to_vec();
        all.push("--json");
        let done = self.run(&all);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{words:?}: {}\n{said}", done.status);
        serde_json::from_slice(&done.stdout).expect("--json prints JSON")
    }

    /// Issues an agent key; its id and the key.
    ///
    /// # Panics
    /// If the answer has no id and no key.
    #[must_use]
    pub fn issue(&self, name: &str) -> (String, String) {
        let issued = self.json(&["keys", "issue", "--workspace", "default", "--name", name]);
        let text = |field: &str| issued[field].as_str().expect("id and key").to_owned();
        (text("id"), text("key"))
    }
}
