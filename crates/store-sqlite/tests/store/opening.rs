//! Files that can be opened, and what is said about those that cannot.

use std::{fs, sync::Arc};

use counterfoil_core::Decision;
use counterfoil_sqlite::{Fault, Injected, OpenError, Options, Point, SqliteStore};
use counterfoil_store::{Error, Store};

use crate::scene::{Scene, body, decided, granted, guarded, identity, success};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn refused(path: &std::path::Path, options: Options) -> OpenError {
    SqliteStore::open(path, options).expect_err("it opened")
}

fn reading() -> Options {
    Options {
        read_only: true,
        ..Options::default()
    }
}

#[tokio::test]
async fn a_new_file_is_readable_by_its_user_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = Scene::new(Options::default()).await;
    for name in ["receipts.db", "receipts.db-wal", "receipts.db-shm"] {
        let found = fs::metadata(scene.path().with_file_name(name)).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
    }
    let names = fs::read_dir(scene.path().parent().unwrap()).unwrap();
    assert_eq!(names.count(), 3, "no draft is left behind");
}

#[tokio::test]
async fn a_second_start_finds_everything() {
    let scene = Scene::new(Options::default()).await;
    let fence = granted(&scene.store, guarded("k")).await.fence;
    scene
        .store
        .complete(fence, success(fence, "done"))
        .await
        .unwrap();
    scene.store.close().await;
    let again = SqliteStore::open(scene.path(), Options::default()).unwrap();
    let (decision, found) = decided(&again, guarded("k")).await;
    assert_eq!((decision, body(&found)), (Decision::Replay, &b"done"[..]));
}

#[test]
fn what_is_no_database_is_refused_and_left_alone() {
    let folder = folder();
    let path = folder.path().join("notes.txt");
    let text = "These are my notes. ".repeat(400);
    fs::write(&path, &text).unwrap();
    let error = refused(&path, Options::default());
    assert!(matches!(error, OpenError::NotADatabase(_)), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("notes.txt is not a SQLite database; give")
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    let error = refused(folder.path(), Options::default());
    assert!(matches!(error, OpenError::NotAFile(_)), "{error:?}");
    let error = refused(&folder.path().join("no/such/file"), Options::default());
    assert!(matches!(error, OpenError::NoFolder(_)), "{error:?}");
    let error = refused(&folder.path().join("nothing"), reading());
    assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_both_versions() {
    let scene = Scene::new(Options::default()).await;
    scene.store.close().await;
    let other = rusqlite::Connection::open(scene.path()).unwrap();
    other.pragma_update(None, "user_version", 99).unwrap();
    drop(other);
    for options in [Options::default(), reading()] {
        let error = refused(&scene.path(), options);
        assert!(
            matches!(
                error,
                OpenError::NewerSchema {
                    found: 99,
                    known: 1,
                    ..
                }
            ),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains("version 99") && text.contains("up to 1"),
            "{text}"
        );
    }
}

#[test]
fn somebody_elses_database_is_refused_unless_adopted() {
    let folder = folder();
    let path = folder.path().join("app.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute_batch("CREATE TABLE mine(x); INSERT INTO mine VALUES (7)")
        .unwrap();
    let error = refused(&path, Options::default());
    assert!(matches!(error, OpenError::NotEmpty(_)), "{error:?}");
    let adopted = Options {
        adopt: true,
        ..Options::default()
    };
    drop(SqliteStore::open(&path, adopted.clone()).unwrap());
    // From now on it is known.
    drop(SqliteStore::open(&path, Options::default()).unwrap());
    let seven: i64 = other
        .query_row("SELECT x FROM mine", [], |row| row.get(0))
        .unwrap();
    assert_eq!(seven, 7);

    let path = folder.path().join("marked.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.pragma_update(None, "application_id", 0x1234).unwrap();
    let error = refused(&path, adopted);
    assert!(
        matches!(
            error,
            OpenError::Foreign {
                application_id: 0x1234,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_lock_held_while_it_starts_is_said_after_the_patience() {
    let folder = folder();
    let path = folder.path().join("receipts.db");
    drop(SqliteStore::open(&path, Options::default()).unwrap());
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let options = Options {
        lock_patience: std::time::Duration::from_millis(50),
        ..Options::default()
    };
    let error = refused(&path, options);
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
}

struct Pages;

impl Fault for Pages {
    fn at(&self, _point: Point) -> Option<Injected> {
        None
    }

    fn pages_max(&self) -> Option<u32> {
        Some(3)
    }
}

#[test]
fn a_full_disk_at_the_first_start_is_said_and_the_next_start_works() {
    let folder = folder();
    let path = folder.path().join("receipts.db");
    let fault = Arc::new(Pages);
    let opened = SqliteStore::open_with_fault(&path, Options::default(), fault);
    let error = opened.expect_err("it opened");
    assert!(matches!(error, OpenError::DiskFull(_)), "{error:?}");
    assert!(error.to_string().contains("free some space"));
    drop(SqliteStore::open(&path, Options::default()).unwrap());
}

#[tokio::test]
async fn opened_read_only_receipts_can_be_read_and_nothing_is_written() {
    let scene = Scene::new(Options::default()).await;
    let fence = granted(&scene.store, guarded("k")).await.fence;
    scene
        .store
        .complete(fence, success(fence, "done"))
        .await
        .unwrap();
    // Beside a living writer, and of a file that was closed.
    for closed in [false, true] {
        if closed {
            scene.store.close().await;
        }
        let store = SqliteStore::open(scene.path(), reading()).unwrap();
        let found = store.find(&identity("k")).await.unwrap().unwrap();
        assert_eq!(body(&found), b"done");
        assert_eq!(store.events(fence.operation_id).await.unwrap().len(), 2);
        let refused = store.admit(guarded("new")).await.unwrap_err();
        assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
        store.close().await;
    }
}

#[test]
fn many_may_start_on_a_new_file_at_once() {
    let folder = folder();
    let path = folder.path().join("receipts.db");
    let starting: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || SqliteStore::open(path, Options::default()))
        })
        .collect();
    let stores: Vec<_> = starting
        .into_iter()
        .map(|start| start.join().unwrap().unwrap())
        .collect();
    let other = rusqlite::Connection::open(&path).unwrap();
    let secrets: i64 = other
        .query_row("SELECT count(*) FROM counterfoil_meta", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!((secrets, stores.len()), (1, 8));
}

fn existing() -> Options {
    Options {
        must_exist: true,
        ..Options::default()
    }
}

#[tokio::test]
async fn i2_a_lost_database_is_no_new_one_where_receipts_must_exist() {
    let scene = Scene::new(Options::default()).await;
    let path = scene.path();
    let lost = |what: &str| {
        let error = refused(&path, existing());
        assert!(matches!(error, OpenError::Lost(_)), "{what}: {error:?}");
        assert!(error.to_string().contains("restore"), "{error}");
    };
    // After a crash everything may still lie in the log; without it the file is empty.
    let copy = folder();
    let crashed = copy.path().join("receipts.db");
    fs::copy(&path, &crashed).unwrap();
    let error = refused(&crashed, existing());
    assert!(matches!(error, OpenError::Lost(_)), "{error:?}");
    scene.store.close().await;
    drop(SqliteStore::open(&path, existing()).unwrap());
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    lost("emptied");
    fs::remove_file(&path).unwrap();
    lost("removed");
    assert!(!path.exists(), "nothing is created");
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_a_database_removed_under_a_running_store_acknowledges_nothing() {
    let scene = Scene::new(Options::default()).await;
    granted(&scene.store, guarded("before")).await;
    assert!(scene.store.health().await.is_ok());
    let path = scene.path();
    let away = path.with_file_name("away.db");
    let log = path.with_file_name("receipts.db-wal");
    let unavailable = async |what: &str| {
        let health = scene.store.health().await;
        assert!(
            matches!(health, Err(Error::Unavailable(_))),
            "{what}: {health:?}"
        );
        let admitted = scene.store.admit(guarded("after")).await;
        assert!(matches!(admitted, Err(Error::Unavailable(_))), "{what}");
        let found = scene.store.find(&identity("before")).await;
        assert!(
            matches!(found, Err(Error::Unavailable(_))),
            "{what}: {found:?}"
        );
    };
    fs::rename(&path, &away).unwrap();
    unavailable("removed").await;
    fs::copy(&away, &path).unwrap();
    unavailable("replaced").await;
    fs::rename(&away, &path).unwrap();
    scene.healthy().await;
    granted(&scene.store, guarded("back")).await;
    let away = path.with_file_name("away.db-wal");
    fs::rename(&log, &away).unwrap();
    unavailable("without its log").await;
    fs::rename(&away, &log).unwrap();
    scene.healthy().await;
    granted(&scene.store, guarded("with its log")).await;
}
