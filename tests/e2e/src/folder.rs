use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use counterfoil_test_postgres::{self as postgres, Database};
use serde_json::Value;
use tempfile::TempDir;

use crate::binary::built;
use crate::outside::Outside;
use crate::server::Server;

/// Where a test keeps its receipts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// In a file of the data folder.
    Sqlite,
    /// In a PostgreSQL database of its own.
    Postgres,
    /// In the memory of the fixture server. The product has no such store.
    Memory,
}

/// A PostgreSQL database, and its server if that is nobody else's.
pub struct Base {
    /// Before its server, so that it is dropped first.
    database: Database,
    server: Option<postgres::Server>,
}

/// A temporary folder: the data folder is inside, and so is what the server printed. With
/// PostgreSQL the receipts are in a database, and the folder is one machine's.
pub struct Folder {
    root: PathBuf,
    _temporary: Option<TempDir>,
    base: Option<Arc<Base>>,
    store: Store,
}

impl Base {
    /// A new database on the server that all tests share.
    ///
    /// # Panics
    /// If there is no such server, or it refuses.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            database: Database::new(),
            server: None,
        })
    }

    /// A new database on a server of its own, which may be stopped.
    ///
    /// # Panics
    /// If the server does not start.
    #[must_use]
    pub fn with_server() -> Arc<Self> {
        let server = postgres::Server::start();
        Arc::new(Self {
            database: Database::on(&server),
            server: Some(server),
        })
    }

    /// The database.
    #[must_use]
    pub const fn database(&self) -> &Database {
        &self.database
    }

    /// The server that is this database's alone.
    ///
    /// # Panics
    /// If it is shared.
    #[must_use]
    pub const fn server(&self) -> &postgres::Server {
        self.server.as_ref().expect("a server of its own")
    }
}

impl Folder {
    /// A new, empty one.
    ///
    /// # Panics
    /// If there is no place for it.
    #[must_use]
    pub fn new(store: Store) -> Self {
        match store {
            Store::Sqlite | Store::Memory => Self::somewhere(store, None),
            Store::Postgres => Self::on(&Base::new()),
        }
    }

    /// The folder of one more machine, whose receipts are in this database.
    ///
    /// # Panics
    /// If there is no place for it.
    #[must_use]
    pub fn on(base: &Arc<Base>) -> Self {
        Self::somewhere(Store::Postgres, Some(Arc::clone(base)))
    }

    fn somewhere(store: Store, base: Option<Arc<Base>>) -> Self {
        let temporary = TempDir::new().expect("a temporary folder");
        Self {
            root: temporary.path().to_path_buf(),
            _temporary: Some(temporary),
            base,
            store,
        }
    }

    /// One whose data, SQLite's file among it, lies in a place that somebody else made.
    #[must_use]
    pub fn at(root: PathBuf) -> Self {
        Self {
            root,
            _temporary: None,
            base: None,
            store: Store::Sqlite,
        }
    }

    /// Which store it is for.
    #[must_use]
    pub const fn store(&self) -> Store {
        self.store
    }

    /// Where its receipts are, if they are in PostgreSQL.
    #[must_use]
    pub fn base(&self) -> Option<&Arc<Base>> {
        self.base.as_ref()
    }

    /// The words that tell the program where things are.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["--data".to_owned(), self.path().display().to_string()];
        if let Some(base) = &self.base {
            words.extend(["--store".to_owned(), base.database.url().to_owned()]);
        }
        words
    }

    /// A look into the database from outside.
    ///
    /// # Panics
    /// If there is no database yet.
    #[must_use]
    pub fn outside(&self) -> Outside {
        match &self.base {
            None => Outside::sqlite(&self.database()),
            Some(base) => Outside::Postgres(Arc::clone(base)),
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
        let words = ["--data".to_owned(), data.display().to_string()];
        Server::launch_on(&words, &self.root, &[])
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

    /// Every byte of every file of the data folder but the agent key's, and of the database's own
    /// server: tables, write-ahead log and what it prints.
    ///
    /// # Panics
    /// If a file cannot be read.
    #[must_use]
    pub fn bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut folders = vec![self.path()];
        if let Some(base) = &self.base {
            base.database.psql("CHECKPOINT");
            folders.push(base.server().folder().to_path_buf());
        }
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a readable folder").flatten() {
                let path = entry.path();
                let kind = entry.file_type().expect("a kind of file");
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() && !path.ends_with("agent-key") {
                    // What a running server removes meanwhile is no longer there.
                    found.extend(fs::read(&path).ok().map(|bytes| (path, bytes)));
                }
            }
        }
        found
    }

    /// Runs the binary's command line on this folder, to its end.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(built());
        command.args(words).args(self.words());
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
