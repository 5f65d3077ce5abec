use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Error, ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use counterfoil_engine::Engine;
use counterfoil_server::{AgentKeys, Credential, DEFAULT_WORKSPACE, Issued, NewAgentKey, Role};

use crate::exit::{Exit, Failure};

const DATABASE: &str = "counterfoil.db";
const AGENT_KEY: &str = "agent-key";
const LOCK: &str = "start.lock";
/// A pause before the lock is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Under which name the id of the first key is kept in the store.
const NOTE: &str = "first_agent_key";
/// Largest agent key file that is read, in bytes.
const AGENT_KEY_BYTES_MAX: u64 = 4096;

/// The data folder: the database, and the first agent key in a file for its owner only.
#[derive(Clone, Debug)]
pub(crate) struct Folder(PathBuf);

/// The first agent key.
pub(crate) enum FirstKey {
    /// It was made just now.
    New,
    /// It was there.
    Old,
    /// It was there, and is not valid (any more): it was rotated or revoked elsewhere, or belongs
    /// to another database.
    Stale,
}

impl Folder {
    /// Creates the folder, for its owner only, if it is not there.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(path)
            .map_err(|error| unusable("the data folder", path, "created", &error))?;
        Self::writable(path)?;
        Ok(Self(path.to_owned()))
    }

    /// The folder, which must be there.
    pub(crate) fn existing(path: &Path) -> Result<Self, Failure> {
        let folder = Self(path.to_owned());
        if folder.database().exists() {
            return Ok(folder);
        }
        Err(Failure::new(
            Exit::NotFound,
            format!("there is no Counterfoil database in {}", path.display()),
        )
        .hint("give the folder that `counterfoil serve` uses with --data, or start it once"))
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join(DATABASE)
    }

    pub(crate) fn agent_key(&self) -> PathBuf {
        self.0.join(AGENT_KEY)
    }

    /// Where receipts were made there is an agent key: a database that is gone must not be begun
    /// anew without a word, because every key used so far would run again.
    pub(crate) fn knows_receipts(&self) -> bool {
        self.agent_key().exists()
    }

    /// Why the database is not begun anew.
    pub(crate) fn receipts_lost(&self, why: &str) -> Failure {
        let key = self.agent_key();
        Failure::new(
            Exit::Store,
            format!(
                "{why}. The receipts of this folder are gone, though {} shows that there were some",
                key.display()
            ),
        )
        .hint(format!(
            "restore {DATABASE} and, if there is one, {DATABASE}-wal from the same copy. To begin anew, remove {}: then every idempotency key used so far RUNS AGAIN",
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
    async fn locked(&self, patience: Duration) -> Result<File, Failure> {
        let lock = Self::writable(&self.0)?;
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
                            self.0.join(LOCK).display(),
                            patience.as_millis()
                        ),
                    )
                    .hint("it is starting here, or was stopped while it did; end it (`fuser` or `lsof` names it) and start again"));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(unusable("the data folder", &self.0, "locked", &error));
                }
            }
        }
    }

    /// Opening the lock file for writing is the proof that the folder can be written to.
    fn writable(path: &Path) -> Result<File, Failure> {
        let lock = path.join(LOCK);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options
            .open(&lock)
            .map_err(|error| unusable("the data folder", path, "written to", &error))
    }

    /// Makes sure that the first agent key works and is in its file: one admin key of the
    /// workspace `default`. Several processes may start at once, and each step may be the last
    /// one before a crash.
    pub(crate) async fn first_key(
        &self,
        engine: &Engine,
        keys: &AgentKeys,
        patience: Duration,
    ) -> Result<FirstKey, Failure> {
        let _lock = self.locked(patience).await?;
        let path = self.agent_key();
        if path.exists() {
            let credential = Credential::parse(&read_secret(&path)?);
            warn_if_open(&path);
            // The first key is the oldest row there is.
            if let Some(credential) = &credential
                && keys.find(credential.id()).await?.is_none()
            {
                return Err(self.receipts_lost("the database does not know the agent key"));
            }
            let valid = match &credential {
                Some(credential) => keys.authenticate(credential).await?.is_some(),
                None => false,
            };
            return Ok(if valid {
                FirstKey::Old
            } else {
                FirstKey::Stale
            });
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
        let workspace = counterfoil_core::WorkspaceId::new(DEFAULT_WORKSPACE)
            .map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
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
    let failed = |error| unusable("the agent key file", path, "read", &error);
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(AGENT_KEY_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(failed)?;
    let line = text.trim();
    if line.is_empty() || line.contains('\n') {
        return Err(Failure::new(
            Exit::Config,
            format!("{} does not hold exactly one line", path.display()),
        )
        .hint("write the agent key into it, and nothing else"));
    }
    Ok(line.to_owned())
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the enum is non-exhaustive, and every kind has a hint"
)]
fn unusable(what: &str, path: &Path, done: &str, error: &Error) -> Failure {
    let path = path.display();
    let hint = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "give this user the permission, or name another folder with --data"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space on that disk",
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            "there is a file in its place; name another folder with --data"
        }
        ErrorKind::NotFound => "check the path",
        _ => "name another folder with --data",
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
