use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, Error as Sqlite};

use crate::{
    OpenError, Options,
    connection::{Guarded, Place, patiently},
    error::is_busy,
    fault::Seam,
    schema,
};

/// An opened database: where it is, the writer's connection unless it is read-only, the locators'
/// secret, and the number of this writer.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) place: Place,
    pub(crate) writer: Option<Guarded>,
    pub(crate) secret: [u8; 32],
    pub(crate) writer_id: i64,
}

/// Rows of writers not seen for this long are forgotten, in seconds.
const WRITER_FORGOTTEN_SECONDS: i64 = 7 * 24 * 3600;

pub(crate) fn open(path: &Path, options: &Options, seam: Seam) -> Result<Opened, OpenError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => return Err(OpenError::NotAFile(path.to_owned())),
        Ok(found) if options.must_exist && found.len() == 0 => {
            return Err(OpenError::Lost(path.to_owned()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound && options.must_exist => {
            return Err(OpenError::Lost(path.to_owned()));
        }
        Err(error) if error.kind() == ErrorKind::NotFound && options.read_only => {
            return Err(OpenError::Missing(path.to_owned()));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(OpenError::from_io(path, &error)),
    }
    let folder = folder_of(path);
    if !options.any_file_system
        && let Some(kind) = network_kind(&folder)
    {
        return Err(OpenError::NetworkFileSystem {
            path: path.to_owned(),
            kind,
        });
    }
    if options.read_only {
        return open_for_reading(path, options, seam);
    }
    create(path, &folder)?;
    let place = Place {
        path: path.to_owned(),
        immutable: false,
        seam,
    };
    open_for_writing(place, options)
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    }
}

/// Creates an empty file that only this user can read, under another name first: closing a
/// handle of the database file itself would drop the locks SQLite holds on it in this process.
fn create(path: &Path, folder: &Path) -> Result<(), OpenError> {
    if path.exists() {
        return Ok(());
    }
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(
        ".{}-{:?}.new",
        std::process::id(),
        std::thread::current().id()
    ));
    let draft = PathBuf::from(draft);
    // What a start that was killed here has left behind.
    let _ = fs::remove_file(&draft);
    let mut how = fs::OpenOptions::new();
    how.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut how, 0o600);
    let made = how.open(&draft).and_then(|file| file.sync_all());
    let linked = made.and_then(|()| fs::hard_link(&draft, path));
    let removed = fs::remove_file(&draft);
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(OpenError::from_io(path, &error)),
        Ok(()) => removed.map_err(|error| OpenError::from_io(path, &error))?,
    }
    // The name must be as durable as what will be written under it.
    fs::File::open(folder)
        .and_then(|handle| handle.sync_all())
        .map_err(|error| OpenError::from_io(path, &error))
}

fn open_for_writing(place: Place, options: &Options) -> Result<Opened, OpenError> {
    let path = place.path.clone();
    let patience = options.lock_patience;
    let sqlite = |error: Sqlite| OpenError::from_sqlite(&path, patience, &error);
    let writer = patiently(patience, || place.writer(options)).map_err(sqlite)?;
    let connection = &writer.sqlite;
    if connection.is_readonly("main").map_err(sqlite)? {
        return Err(OpenError::ReadOnly(path));
    }
    let owner = patiently(patience, || look_at_owner(connection)).map_err(sqlite)?;
    owner.check(&path, options.adopt)?;
    // What is left of a file whose log was deleted.
    if options.must_exist && owner.application_id != schema::APPLICATION_ID {
        return Err(OpenError::Lost(path));
    }
    set_up_log(&place, connection, patience)?;
    begin(connection, patience).map_err(sqlite)?;
    let made = bring_up(connection, &path, patience, options.adopt);
    if made.is_err() && !connection.is_autocommit() {
        // The transaction is undone at the latest when the connection closes.
        let _ = connection.execute_batch("ROLLBACK");
    }
    let (secret, writer_id) = made?;
    Ok(Opened {
        place,
        writer: Some(writer),
        secret,
        writer_id,
    })
}

/// In a transaction, so that of several starting processes one creates and the others find.
fn bring_up(
    connection: &Connection,
    path: &Path,
    patience: Duration,
    adopt: bool,
) -> Result<([u8; 32], i64), OpenError> {
    let sqlite = |error: Sqlite| OpenError::from_sqlite(path, patience, &error);
    // Looked at again under the lock: another process may have been first.
    let owner = check_owner(connection).map_err(sqlite)?;
    owner.check(path, adopt)?;
    schema::bring_up(connection).map_err(sqlite)?;
    let secret = schema::secret(connection).map_err(sqlite)?;
    let writer_id = register(connection).map_err(sqlite)?;
    connection.execute_batch("COMMIT").map_err(sqlite)?;
    Ok((secret, writer_id))
}

fn register(connection: &Connection) -> Result<i64, Sqlite> {
    connection.execute(
        "DELETE FROM counterfoil_writers WHERE seen_at < unixepoch() - ?1",
        [WRITER_FORGOTTEN_SECONDS],
    )?;
    connection.query_row(
        "INSERT INTO counterfoil_writers(id, sequence, seen_at) VALUES (abs(random() / 2), 0, unixepoch())
         RETURNING id",
        [],
        |row| row.get(0),
    )
}

fn begin(connection: &Connection, patience: Duration) -> Result<(), Sqlite> {
    patiently(patience, || connection.execute_batch("BEGIN IMMEDIATE"))
}

fn set_up_log(place: &Place, connection: &Connection, patience: Duration) -> Result<(), OpenError> {
    let sqlite = |error: Sqlite| OpenError::from_sqlite(&place.path, patience, &error);
    let mode: String = patiently(patience, || {
        connection.pragma_query_value(None, "journal_mode", |row| row.get(0))
    })
    .map_err(sqlite)?;
    if mode == "wal" {
        return Ok(());
    }
    connection
        .pragma_update(None, "page_size", 4096)
        .map_err(sqlite)?;
    let mode: String = patiently(patience, || {
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
    })
    .map_err(sqlite)?;
    if mode == "wal" {
        Ok(())
    } else {
        Err(OpenError::NoWriteAheadLog {
            path: place.path.clone(),
            mode,
        })
    }
}

fn open_for_reading(path: &Path, options: &Options, seam: Seam) -> Result<Opened, OpenError> {
    let sqlite = |error: Sqlite| OpenError::from_sqlite(path, options.lock_patience, &error);
    let mut place = Place {
        path: path.to_owned(),
        immutable: false,
        seam,
    };
    let look = |place: &Place| {
        let reader = place.reader(options)?;
        let owner = look_at_owner(&reader.sqlite)?;
        Ok::<_, Sqlite>((reader, owner))
    };
    let (reader, owner) = match patiently(options.lock_patience, || look(&place)) {
        Ok(found) => found,
        // Without a log nothing is missing from the file itself, and where its shared memory
        // cannot be created nobody can be writing. Whoever holds a lock can.
        Err(error) if !is_busy(&error) && !log_of(path).exists() => {
            place.immutable = true;
            look(&place).map_err(sqlite)?
        }
        Err(error) => return Err(sqlite(error)),
    };
    owner.check(path, false)?;
    if options.must_exist && owner.application_id != schema::APPLICATION_ID {
        return Err(OpenError::Lost(path.to_owned()));
    }
    if owner.application_id != schema::APPLICATION_ID || owner.version < schema::VERSION {
        return Err(OpenError::OlderSchema {
            path: path.to_owned(),
            found: owner.version,
            known: schema::VERSION,
        });
    }
    let secret = schema::secret(&reader.sqlite).map_err(sqlite)?;
    Ok(Opened {
        place,
        writer: None,
        secret,
        writer_id: 0,
    })
}

fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    PathBuf::from(log)
}

struct Owner {
    application_id: i64,
    version: i64,
    empty: bool,
}

/// As [`check_owner`], of one moment: half of what another process commits meanwhile looks like a
/// database of somebody else.
fn look_at_owner(connection: &Connection) -> Result<Owner, Sqlite> {
    let moment = connection.unchecked_transaction()?;
    let owner = check_owner(&moment)?;
    moment.commit()?;
    Ok(owner)
}

/// In a transaction of the caller's.
fn check_owner(connection: &Connection) -> Result<Owner, Sqlite> {
    Ok(Owner {
        application_id: schema::application_id(connection)?,
        version: schema::version(connection)?,
        empty: schema::is_empty(connection)?,
    })
}

impl Owner {
    fn check(&self, path: &Path, adopt: bool) -> Result<(), OpenError> {
        let ours = self.application_id == schema::APPLICATION_ID;
        if ours && self.version > schema::VERSION {
            return Err(OpenError::NewerSchema {
                path: path.to_owned(),
                found: self.version,
                known: schema::VERSION,
            });
        }
        if ours {
            Ok(())
        } else if self.application_id != 0 || self.version != 0 {
            // Both numbers of the header are needed, so such a database cannot be adopted.
            Err(OpenError::Foreign {
                path: path.to_owned(),
                application_id: self.application_id,
                user_version: self.version,
            })
        } else if self.empty || adopt {
            Ok(())
        } else {
            Err(OpenError::NotEmpty(path.to_owned()))
        }
    }
}

/// The network or user-space file system that `folder` is on, if it is on one.
#[cfg(target_os = "linux")]
fn network_kind(folder: &Path) -> Option<&'static str> {
    // A folder that is not there is reported by what comes next.
    let found = rustix::fs::statfs(folder).ok()?;
    let magic = u32::try_from(found.f_type & 0xffff_ffff).ok()?;
    kind_of(magic)
}

#[cfg(not(target_os = "linux"))]
fn network_kind(_folder: &Path) -> Option<&'static str> {
    None
}

/// The numbers of `statfs(2)`.
#[cfg(target_os = "linux")]
fn kind_of(magic: u32) -> Option<&'static str> {
    const KINDS: [(u32, &str); 14] = [
        (0x0000_6969, "NFS"),
        (0x0000_517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB 2"),
        (0x0102_1997, "9p"),
        (0x6573_5546, "FUSE"),
        (0x5346_414f, "AFS"),
        (0x7375_7245, "Coda"),
        (0x0000_564c, "NCP"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x4750_4653, "GPFS"),
    ];
    KINDS
        .into_iter()
        .find_map(|(number, name)| (number == magic).then_some(name))
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

    use super::{
        Connection, Duration, OpenError, Options, Place, Seam, look_at_owner, open, set_up_log,
    };
    use crate::schema;

    /// A database that is set up and holds nothing, and a connection to it.
    fn empty() -> (tempfile::TempDir, PathBuf, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        super::create(&path, folder.path()).unwrap();
        let place = Place {
            path: path.clone(),
            immutable: false,
            seam: Seam::default(),
        };
        let options = Options::default();
        let connection = place.writer(&options).unwrap().sqlite;
        set_up_log(&place, &connection, options.lock_patience).unwrap();
        (folder, path, connection)
    }

    /// Has another connection make the tables once `connection` comes to what is `awaited`; whether
    /// that happened.
    fn make_at(
        connection: &mut Connection,
        path: PathBuf,
        awaited: fn(&AuthAction<'_>) -> bool,
    ) -> Arc<AtomicBool> {
        let made = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&made);
        connection
            .authorizer(Some(move |context: AuthContext<'_>| {
                if awaited(&context.action) && !seen.swap(true, Ordering::SeqCst) {
                    open(&path, &Options::default(), Seam::default()).unwrap();
                }
                Authorization::Allow
            }))
            .unwrap();
        made
    }

    #[test]
    fn a_database_that_another_process_makes_meanwhile_is_not_somebody_elses() {
        let moments: [fn(&AuthAction<'_>) -> bool; 2] = [
            |action| {
                matches!(
                    action,
                    AuthAction::Pragma {
                        pragma_name: "user_version",
                        ..
                    }
                )
            },
            |action| matches!(action, AuthAction::Select),
        ];
        for moment in moments {
            let (_folder, path, mut connection) = empty();
            let made = make_at(&mut connection, path.clone(), moment);
            let before = look_at_owner(&connection).unwrap();
            assert!(made.load(Ordering::SeqCst), "in the middle of the look");
            before.check(&path, false).unwrap();
            assert_eq!(
                (before.application_id, before.version, before.empty),
                (0, 0, true)
            );
            let after = look_at_owner(&connection).unwrap();
            after.check(&path, false).unwrap();
            assert_eq!(
                (after.application_id, after.version, after.empty),
                (schema::APPLICATION_ID, schema::VERSION, false)
            );
        }
    }

    #[test]
    fn a_file_that_somebody_writes_to_is_not_read_without_locks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let writer = Connection::open(&path).unwrap();
        writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
        let options = Options {
            read_only: true,
            lock_patience: Duration::ZERO,
            ..Options::default()
        };
        let locked = open(&path, &options, Seam::default());
        assert!(
            matches!(locked, Err(OpenError::Locked { .. })),
            "{locked:?}"
        );
        writer.execute_batch("ROLLBACK").unwrap();
        let empty = open(&path, &options, Seam::default());
        assert!(
            matches!(empty, Err(OpenError::OlderSchema { found: 0, .. })),
            "{empty:?}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        use super::kind_of;

        assert_eq!(kind_of(0x6969), Some("NFS"));
        assert_eq!(kind_of(0xfe53_4d42), Some("SMB 2"));
        assert_eq!(kind_of(0x0000_ef53), None, "ext4 is local");
        assert_eq!(kind_of(0x0102_1994), None, "tmpfs is local");
    }
}
