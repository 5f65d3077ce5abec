//! Disks that are full, read-only or hold something else: what is wrong is said, nothing is
//! invented, and receipts that are there stay readable.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use counterfoil_e2e::{Folder, Server, Store};
use rusqlite::Connection;
use tempfile::TempDir;

/// A small file system of its own. Unmounted when dropped.
struct Mount {
    at: TempDir,
}

impl Mount {
    /// `None`, and a line that says so, where mounting is impossible.
    fn new(megabytes: u32) -> Option<Self> {
        let at = TempDir::new().unwrap();
        let size = format!("size={megabytes}m");
        if run(&["mount", "-t", "tmpfs", "-o", &size, "tmpfs"], at.path()) {
            return Some(Self { at });
        }
        println!("SKIPPED: this user may not mount a file system here");
        None
    }

    fn remount(&self, how: &str) {
        let option = format!("remount,{how}");
        assert!(
            run(&["mount", "-o", &option], self.at.path()),
            "remount {how}"
        );
    }

    fn folder(&self) -> Folder {
        Folder::at(self.at.path().to_path_buf())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run(&["umount", "-l"], self.at.path());
    }
}

fn run(words: &[&str], path: &Path) -> bool {
    Command::new(words[0])
        .args(&words[1..])
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Fills a disk to the last byte.
fn fill(folder: &Path) -> PathBuf {
    use std::io::Write as _;
    let path = folder.join("filler");
    let mut file = fs::File::create(&path).unwrap();
    for size in [1 << 16, 1 << 12, 1 << 8, 1] {
        let part = vec![0; size];
        while file.write_all(&part).is_ok() {}
    }
    path
}

#[test]
fn i2_i3_field_22_a_full_disk_invents_nothing_and_receipts_stay_readable() {
    let Some(mount) = Mount::new(32) else { return };
    let folder = mount.folder();
    let server = Server::start(&folder);
    let http = server.http();
    let kept = http
        .note(Some("kept"), r#"{"body":"kept"}"#)
        .send()
        .unwrap();
    assert_eq!(kept.status, 201, "{}", kept.text());
    let filler = fill(folder.root());
    let note = |n: usize| format!(r#"{{"body":"{n:05}{}"}}"#, "x".repeat(9_000));
    let mut acknowledged = Vec::new();
    let mut refused = None;
    for n in 0..4_000 {
        let reply = http.note(Some(&format!("k{n}")), &note(n)).send().unwrap();
        if reply.status != 201 {
            refused = Some((n, reply));
            break;
        }
        acknowledged.push((n, reply));
    }
    let (failed, reply) = refused.expect("a full disk refuses sooner or later");
    assert!(
        matches!(reply.status, 503 | 507),
        "{} {}",
        reply.status,
        reply.text()
    );
    assert_eq!(reply.code(), "unavailable", "{}", reply.text());
    let again = http
        .note(Some("kept"), r#"{"body":"kept"}"#)
        .send()
        .unwrap();
    assert_eq!(again.body, kept.body, "a receipt stays readable");
    for (n, reply) in &acknowledged {
        let again = http.note(Some(&format!("k{n}")), &note(*n)).send().unwrap();
        assert_eq!(again.body, reply.body, "k{n}");
    }
    assert_eq!(
        http.notes().len(),
        1 + acknowledged.len(),
        "no silent pass-through"
    );
    fs::remove_file(filler).unwrap();
    let done = http.note_until_answered(&format!("k{failed}"), &note(failed));
    assert_eq!(
        done.status,
        201,
        "room again, the same key runs: {}",
        done.text()
    );
    assert_eq!(http.notes().len(), 2 + acknowledged.len());
    server.stop();
    let server = Server::start(&folder);
    let again = server
        .http()
        .note(Some(&format!("k{failed}")), &note(failed))
        .send()
        .unwrap();
    assert_eq!(again.body, done.body);
}

#[test]
fn field_22_a_start_on_a_full_disk_says_so() {
    let Some(mount) = Mount::new(4) else { return };
    let folder = mount.folder();
    fs::create_dir(folder.path()).unwrap();
    fill(folder.root());
    let elsewhere = Folder::new(Store::Sqlite);
    let printed = elsewhere.launch_at(&folder.path()).refused();
    assert!(
        printed.to_lowercase().contains("full") || printed.contains("space"),
        "{printed}"
    );
}

#[test]
fn field_22_a_read_only_folder_is_refused_and_its_receipts_stay_readable() {
    let Some(mount) = Mount::new(32) else { return };
    let folder = mount.folder();
    let server = Server::start(&folder);
    let kept = server
        .http()
        .note(Some("kept"), r#"{"body":"kept"}"#)
        .send()
        .unwrap();
    server.stop();
    mount.remount("ro");
    let elsewhere = Folder::new(Store::Sqlite);
    let printed = elsewhere.launch_at(&folder.path()).refused();
    let said = printed.to_lowercase();
    assert!(
        said.contains("read-only") || said.contains("cannot be written"),
        "{printed}"
    );
    let listed = folder.json(&["operations", "list"]);
    let operations = listed["operations"].as_array().expect("operations");
    assert_eq!(operations.len(), 1, "receipts already there stay readable");
    mount.remount("rw");
    let server = Server::start(&folder);
    let again = server
        .http()
        .note(Some("kept"), r#"{"body":"kept"}"#)
        .send()
        .unwrap();
    assert_eq!(again.body, kept.body);
}

#[test]
fn field_22_a_file_that_is_no_database_is_refused_and_left_alone() {
    let folder = Folder::new(Store::Sqlite);
    Server::start(&folder).stop();
    let database = folder.database();
    for name in leftovers(&database) {
        let _ = fs::remove_file(name);
    }
    let text = "this is a shopping list, not a database\n".repeat(200);
    fs::write(&database, &text).unwrap();
    let printed = Server::launch(&folder, &[]).refused();
    assert!(printed.contains("not a SQLite database"), "{printed}");
    assert!(
        printed.contains(&database.display().to_string()),
        "{printed}"
    );
    assert_eq!(
        fs::read_to_string(&database).unwrap(),
        text,
        "left as it was"
    );
}

#[test]
fn field_22_a_newer_schema_is_refused_and_left_alone() {
    let folder = Folder::new(Store::Sqlite);
    Server::start(&folder).stop();
    let database = Connection::open(folder.database()).unwrap();
    database.pragma_update(None, "user_version", 4_000).unwrap();
    drop(database);
    let printed = Server::launch(&folder, &[]).refused();
    assert!(printed.contains("schema version 4000"), "{printed}");
    assert!(printed.contains("newer version"), "{printed}");
    let database = Connection::open(folder.database()).unwrap();
    database.pragma_update(None, "user_version", 1).unwrap();
    drop(database);
    let _ = Server::start(&folder);
}

#[test]
fn field_22_another_applications_database_is_refused() {
    let folder = Folder::new(Store::Sqlite);
    Server::start(&folder).stop();
    let path = folder.database();
    for name in leftovers(&path) {
        let _ = fs::remove_file(name);
    }
    fs::remove_file(&path).unwrap();
    let database = Connection::open(&path).unwrap();
    database
        .execute_batch("CREATE TABLE shopping (item TEXT)")
        .unwrap();
    drop(database);
    let printed = Server::launch(&folder, &[]).refused();
    assert!(printed.contains(&path.display().to_string()), "{printed}");
}

fn leftovers(database: &Path) -> [String; 2] {
    ["-wal", "-shm"].map(|end| format!("{}{end}", database.display()))
}
