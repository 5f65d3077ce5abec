use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Error, ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use counterfoil_core::WorkspaceId;
use counterfoil_engine::Engine;
use counterfoil_server::{
    AgentKey, AgentKeys, Credential, DEFAULT_WORKSPACE, Issued, NewAgentKey, Role,
};

use crate::{
    address::Address,
    claim,
    config::Config,
    environment,
    exit::{Exit, Failure},
};

const DATABASE: &str = "counterfoil.db";
const AGENT_KEY: &str = "agent-key";
/// A first agent key that may not have been stored yet.
const DRAFT: &str = "agent-key.draft";
const LOCK: &str = "start.lock";
/// A pause before the lock is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Under which name the id of the first key is kept in the store.
pub(crate) const NOTE: &str = "first_agent_key";
/// Largest file with a secret that is read, in bytes.
const SECRET_BYTES_MAX: u64 = 4096;

/// The data folder: the SQLite database, unless it is elsewhere, and the first agent key in a file
/// for its owner only.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    database: PathBuf,
    /// What it is, and the flag that names it.
    called: Called,
}

type Called = (&'static str, &'static str);
const DATA: Called = ("the data folder", "--data");
const STATE: Called = ("the state folder", "--state");

/// The first agent key.
pub(crate) enum FirstKey {
    /// It was made just now.
    New,
    /// It was there.
    Old,
    /// It was there, and is not valid (any more): it was rotated or revoked elsewhere, or belongs
    /// to another database.
    Stale,
    /// There are agent keys, and none of them is here: another node made the first one. This is
    /// the oldest.
    Elsewhere(AgentKey),
}

/// What the agent key file holds.
pub(crate) enum Held {
    /// A key that is valid.
    Valid,
    /// A key that was rotated or revoked, or something else.
    Stale,
    /// A key that the store does not know.
    Unknown,
}

impl Folder {
    /// The folder that the configuration names, there or not.
    pub(crate) fn at(config: &Config) -> Self {
        let path = config.data.clone();
        let database = match &config.store {
            Address::Sqlite(Some(file)) => file.clone(),
            Address::Sqlite(None) | Address::Postgres(_) => path.join(DATABASE),
        };
        Self {
            path,
            database,
            called: DATA,
        }
    }

    /// The folder that the configuration names, as the proxy's: it has receipts and no agent key.
    pub(crate) fn of_proxy(config: &Config) -> Self {
        Self {
            called: STATE,
            ..Self::at(config)
        }
    }

    /// Creates the folder, for its owner only, if it is not there.
    pub(crate) fn create(&self) -> Result<(), Failure> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(&self.path)
            .map_err(|error| self.unusable("created", &error))?;
        self.writable().map(drop)
    }

    /// The folder, whose database must be there.
    pub(crate) fn existing(config: &Config) -> Result<Self, Failure> {
        let folder = Self::at(config);
        if folder.database().exists() {
            return Ok(folder);
        }
        let missing = if folder.database == folder.path.join(DATABASE) {
            format!(
                "there is no Counterfoil database in {}",
                folder.path.display()
            )
        } else {
            format!("there is no {}", folder.database.display())
        };
        let proxys = environment::state_folder().filter(|state| state.join(DATABASE).exists());
        let proxys = proxys.map_or_else(String::new, |state| {
            format!(
                "; what `counterfoil proxy` keeps is seen with --state {}",
                state.display()
            )
        });
        Err(Failure::new(Exit::NotFound, missing).hint(format!(
            "give what `counterfoil serve` uses with --data or --store, or start it once{proxys}"
        )))
    }

    /// The SQLite database.
    pub(crate) fn database(&self) -> PathBuf {
        self.database.clone()
    }

    pub(crate) fn agent_key(&self) -> PathBuf {
        self.path.join(AGENT_KEY)
    }

    /// Where receipts were made there is an agent key: a database that is gone must not be begun
    /// anew without a word, because every key used so far would run again.
    pub(crate) fn knows_receipts(&self) -> bool {
        self.agent_key().exists()
    }

    /// Why the database is not begun anew.
    pub(crate) fn receipts_lost(&self, why: &str) -> Failure {
        let key = self.agent_key();
        let database = self.database.file_name().unwrap_or_default();
        let database = database.to_string_lossy();
        Failure::new(
            Exit::Store,
            format!(
                "{why}. The receipts of this folder are gone, though {} shows that there were some",
                key.display()
            ),
        )
        .hint(format!(
            "restore {database} and, if there is one, {database}-wal from the same copy. To begin anew, remove {}: then every idempotency key used so far RUNS AGAIN",
            key.display()
        ))
    }

    /// Whether the agent key file holds the key `id`.
    pub(crate) fn holds(&self, id: &str) -> bool {
        let held = read_secret(&self.agent_key()).ok();
        held.and_then(|text| Credential::parse(&text))
            .is_some_and(|held| held.id() == id)
    }

    /// The lock of a start, waited for no longer than `patience`. Held until it is dropped.
    pub(crate) async fn locked(&self, patience: Duration) -> Result<File, Failure> {
        let lock = self.writable()?;
        let start = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                    tokio::time::sleep(LOCK_PAUSE).await;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Failure::new(
                        Exit::Store,
                        format!(
                            "another process holds {} for more than {} ms",
                            self.path.join(LOCK).display(),
                            patience.as_millis()
                        ),
                    )
                    .hint("it is starting here, or was stopped while it did; end it (`fuser` or `lsof` names it) and start again"));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(self.unusable("locked", &error));
                }
            }
        }
    }

    /// Opening the lock file for writing is the proof that the folder can be written to.
    fn writable(&self) -> Result<File, Failure> {
        let lock = self.path.join(LOCK);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options
            .open(&lock)
            .map_err(|error| self.unusable("written to", &error))
    }

    /// The folder itself cannot be used.
    fn unusable(&self, done: &str, error: &Error) -> Failure {
        let (what, flag) = self.called;
        refused(what, &self.path, done, error, flag)
    }

    /// Makes sure that the first agent key works and is in its file: one admin key of the
    /// workspace `default`. Several processes may start at once, and each step may be the last
    /// one before a crash.
    pub(crate) async fn first_key(
        &self,
        config: &Config,
        engine: &Engine,
        keys: &AgentKeys,
    ) -> Result<FirstKey, Failure> {
        let workspace = WorkspaceId::new(DEFAULT_WORKSPACE)
            .map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
        match &config.store {
            Address::Sqlite(_) => {
                let _lock = self.locked(config.lock_patience).await?;
                self.only_key(engine, keys, workspace).await
            }
            Address::Postgres(_) => claim::first_key(config, self, keys, workspace).await,
        }
    }

    /// What the agent key file holds; `None` if there is none.
    pub(crate) async fn held(&self, keys: &AgentKeys) -> Result<Option<Held>, Failure> {
        let path = self.agent_key();
        if !path.exists() {
            return Ok(None);
        }
        let credential = Credential::parse(&read_secret(&path)?);
        warn_if_open(&path);
        let Some(credential) = credential else {
            return Ok(Some(Held::Stale));
        };
        if keys.find(credential.id()).await?.is_none() {
            return Ok(Some(Held::Unknown));
        }
        let valid = keys.authenticate(&credential).await?.is_some();
        Ok(Some(if valid { Held::Valid } else { Held::Stale }))
    }

    /// The first key of a store that is this folder's alone. The caller holds the lock.
    async fn only_key(
        &self,
        engine: &Engine,
        keys: &AgentKeys,
        workspace: WorkspaceId,
    ) -> Result<FirstKey, Failure> {
        let path = self.agent_key();
        match self.held(keys).await? {
            Some(Held::Valid) => return Ok(FirstKey::Old),
            Some(Held::Stale) => return Ok(FirstKey::Stale),
            // The first key is the oldest row there is.
            Some(Held::Unknown) => {
                return Err(self.receipts_lost("the database does not know the agent key"));
            }
            None => {}
        }
        let noted = engine.store().note(NOTE).await?;
        let id = match noted.and_then(|bytes| String::from_utf8(bytes).ok()) {
            Some(id) => id,
            None => {
                let id = keys.new_id()?;
                let bytes = id.clone().into_bytes();
                engine.store().set_note(NOTE, bytes).await?;
                id
            }
        };
        let new = NewAgentKey {
            workspace,
            name: "first key".to_owned(),
            role: Role::Admin,
        };
        let issued = keys.issue_as(&id, new).await?;
        let is_new_principal = issued.agent_key.id.as_str() != id;
        if is_new_principal {
            let bytes = issued.agent_key.id.as_str().as_bytes().to_vec();
            engine.store().set_note(NOTE, bytes).await?;
        }
        write_secret(&path, &issued.credential.reveal())
            .map_err(|error| unusable("the agent key file", &path, "written", &error))?;
        Ok(FirstKey::New)
    }

    /// Where a first agent key lies until it is known to be stored.
    pub(crate) fn draft(&self) -> PathBuf {
        self.path.join(DRAFT)
    }

    /// The drafted key, if there is one.
    pub(crate) fn read_draft(&self) -> Result<Option<String>, Failure> {
        let path = self.draft();
        if !path.exists() {
            return Ok(None);
        }
        read_secret(&path).map(Some)
    }

    pub(crate) fn write_draft(&self, secret: &str) -> Result<(), Failure> {
        let path = self.draft();
        write_secret(&path, secret)
            .map_err(|error| unusable("the agent key file", &path, "written", &error))
    }

    /// The drafted key is the first one.
    pub(crate) fn keep_draft(&self) -> Result<(), Failure> {
        let path = self.agent_key();
        std::fs::rename(self.draft(), &path)
            .and_then(|()| File::open(&self.path)?.sync_all())
            .map_err(|error| unusable("the agent key file", &path, "written", &error))
    }

    /// The drafted key was never stored.
    pub(crate) fn drop_draft(&self) -> Result<(), Failure> {
        let path = self.draft();
        std::fs::remove_file(&path)
            .map_err(|error| unusable("the agent key file", &path, "removed", &error))
    }

    /// Writes the new secret of a key into the agent key file, if the file holds that key.
    pub(crate) fn update_key(&self, issued: &Issued) -> Result<bool, Failure> {
        let path = self.agent_key();
        if !path.exists() {
            return Ok(false);
        }
        let held = Credential::parse(&read_secret(&path)?);
        let same = held.is_some_and(|held| held.id() == issued.agent_key.id.as_str());
        if same {
            write_secret(&path, &issued.credential.reveal())
                .map_err(|error| unusable("the agent key file", &path, "written", &error))?;
        }
        Ok(same)
    }
}

/// Says in the log that others can read a file with secrets.
pub(crate) fn warn_if_open(path: &Path) {
    if is_open(path) {
        tracing::warn!(path = %path.display(), "other users of this machine can read or change this file, and it holds secrets; `chmod 600` it");
    }
}

/// Whether users outside the file's group can read it, or others than its owner can write to it.
pub(crate) fn is_open(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o026 != 0)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Writes one line for the owner only, whole or not at all.
fn write_secret(path: &Path, line: &str) -> Result<(), Error> {
    let temporary = path.with_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = OpenOptions::new();
    options.create_new(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(line.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// The only line of an agent key file.
pub(crate) fn read_secret(path: &Path) -> Result<String, Failure> {
    let line =
        read_whole(path).map_err(|error| unusable("the agent key file", path, "read", &error))?;
    only_line(&line, path, "the agent key")
}

/// The only line of a file that a setting names.
pub(crate) fn read_line(path: &Path, setting: &str, what: &str) -> Result<String, Failure> {
    let line = read_whole(path).map_err(|error| {
        Failure::new(
            Exit::Config,
            format!("{setting} {} cannot be read: {error}", path.display()),
        )
        .hint("check the path and its permissions")
    })?;
    only_line(&line, path, what)
}

fn read_whole(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    File::open(path)?
        .take(SECRET_BYTES_MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}

fn only_line(text: &str, path: &Path, what: &str) -> Result<String, Failure> {
    let line = text.trim();
    if line.is_empty() || line.contains('\n') {
        return Err(Failure::new(
            Exit::Config,
            format!("{} does not hold exactly one line", path.display()),
        )
        .hint(format!("write {what} into it, and nothing else")));
    }
    Ok(line.to_owned())
}

fn unusable(what: &str, path: &Path, done: &str, error: &Error) -> Failure {
    refused(what, path, done, error, DATA.1)
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the enum is non-exhaustive, and every kind has a hint"
)]
fn refused(what: &str, path: &Path, done: &str, error: &Error, flag: &str) -> Failure {
    let path = path.display();
    let hint = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            format!("give this user the permission, or name another folder with {flag}")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free some space on that disk".to_owned()
        }
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            format!("there is a file in its place; name another folder with {flag}")
        }
        ErrorKind::NotFound => "check the path".to_owned(),
        _ => format!("name another folder with {flag}"),
    };
    Failure::new(
        Exit::Store,
        format!("{what} {path} cannot be {done}: {error}"),
    )
    .hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_line_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(AGENT_KEY);
        write_secret(&path, "abc").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "abc\n");
        assert_eq!(read_secret(&path).unwrap(), "abc");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        std::fs::write(&path, "a\nb\n").unwrap();
        assert_eq!(read_secret(&path).unwrap_err().exit, Exit::Config);
        std::fs::write(&path, "\n").unwrap();
        assert_eq!(read_secret(&path).unwrap_err().exit, Exit::Config);
    }
}
