//! What is lost, and is said to be: databases, locks, standard streams.

use std::{
    fs::{File, OpenOptions},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::process::Place;

const START: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];

/// A folder with a receipt in it, after a crash.
fn crashed() -> Place {
    let place = Place::new();
    let server = place.serve();
    assert_eq!(server.note(&place.agent_key(), "k", "hello").status, 201);
    server.kill();
    place
}

fn remove(database: &Path, suffixes: &[&str]) {
    for suffix in suffixes {
        let name = format!("counterfoil.db{suffix}");
        std::fs::remove_file(database.with_file_name(name)).unwrap();
    }
}

#[test]
fn i2_a_lost_database_is_no_quiet_fresh_start() {
    for what in ["removed", "emptied", "without its log"] {
        let place = crashed();
        let database = place.data().join("counterfoil.db");
        match what {
            "removed" => remove(&database, &["", "-wal", "-shm"]),
            "emptied" => {
                remove(&database, &["-wal"]);
                File::create(&database).unwrap();
            }
            _ => remove(&database, &["-wal"]),
        }
        for command in [&START[..], &["mcp", "--stdio"]] {
            let said = place.run(command).fails(4);
            for part in [
                "receipts of this folder are gone",
                "restore",
                "RUNS AGAIN",
                "agent-key",
            ] {
                assert!(said.contains(part), "{what}: {said}");
            }
        }
        // The way it names works.
        std::fs::remove_file(place.data().join("agent-key")).unwrap();
        let anew = place.serve();
        assert_eq!(anew.note(&place.agent_key(), "k", "hello").status, 201);
    }
}

#[test]
fn i2_a_database_of_another_folder_is_no_quiet_start_either() {
    let place = crashed();
    let other = Place::new();
    assert!(other.serve().terminate());
    let database = place.data().join("counterfoil.db");
    remove(&database, &["-wal", "-shm"]);
    std::fs::copy(other.data().join("counterfoil.db"), &database).unwrap();
    let said = place.run(&START).fails(4);
    assert!(said.contains("does not know the agent key"), "{said}");
}

#[test]
fn i2_field_22_a_database_removed_under_a_server_acknowledges_nothing() {
    let place = Place::new();
    let server = place.serve();
    let key = place.agent_key();
    assert_eq!(server.note(&key, "k", "hello").status, 201);
    assert_eq!(server.ask("GET", "/readyz", &[], "").status, 200);
    remove(&place.data().join("counterfoil.db"), &[""]);
    assert_eq!(server.ask("GET", "/readyz", &[], "").status, 503);
    let refused = server.note(&key, "k2", "hello");
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["code"], "unavailable");
}

#[test]
fn a_start_behind_a_held_lock_says_so_in_time() {
    let place = Place::new();
    assert!(place.serve().terminate());
    std::fs::write(
        place.path("counterfoil.toml"),
        "[limits]\nlock_patience = \"200ms\"\n",
    )
    .unwrap();
    let lock = place.data().join("start.lock");
    let held = OpenOptions::new().write(true).open(lock).unwrap();
    held.lock().unwrap();
    let begun = Instant::now();
    let said = place.run(&START).fails(4);
    assert!(said.contains("start.lock"), "{said}");
    assert!(said.contains("hint: "), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    held.unlock().unwrap();
    assert!(place.serve().terminate());
}

#[cfg(target_os = "linux")]
fn full() -> Stdio {
    let device = OpenOptions::new().write(true).open("/dev/full");
    Stdio::from(device.unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_error_changes_no_exit_code_and_stops_no_server() {
    use std::io::{BufRead as _, BufReader};
    let place = Place::new();
    let mut command = place.command(&["config", "check", "--config", "nowhere.toml"]);
    let status = command.stdout(Stdio::null()).stderr(full()).status();
    assert_eq!(status.unwrap().code(), Some(3));
    // Log lines at every level, none of which can be written.
    let mut child = place
        .command(&START)
        .arg("--data")
        .arg(place.data())
        .env("COUNTERFOIL_TELEMETRY_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(full())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(
        first.starts_with("Counterfoil listens on http://"),
        "{first}"
    );
    assert!(lines.any(|line| line.unwrap().starts_with("Ctrl-C")));
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn a_secret_that_nobody_reads_is_a_failure_that_says_the_way_back() {
    let place = Place::new();
    let server = place.serve();
    let keys = |arguments: &[&str], out: Stdio| {
        let mut command = place.command(arguments);
        command.arg("--data").arg(place.data()).stdout(out);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    let count = || {
        let list = place.run(&["keys", "list", "--json"]).json();
        list["agent_keys"].as_array().unwrap().len()
    };
    let issue = ["keys", "issue", "--name", "n"];
    let (code, said) = keys(&issue, full());
    assert_eq!(code, Some(1), "{said}");
    let id = said.split("counterfoil keys rotate ").nth(1).unwrap();
    let id = id.split('`').next().unwrap().to_owned();
    assert_eq!(count(), 2);
    let rotate = ["keys", "rotate", id.as_str()];
    let (code, said) = keys(&rotate, full());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&id), "{said}");
    // The null device is also what a closed stream becomes: nothing is made for it.
    for arguments in [&issue[..], &rotate] {
        let (code, said) = keys(arguments, Stdio::null());
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("nothing was done"), "{said}");
    }
    assert_eq!(count(), 2);
    // The key of the agent key file has a copy there.
    let held = place.agent_key();
    let first = format!("ak_{}", held.split('_').nth(1).unwrap());
    let (code, said) = keys(&["keys", "rotate", &first], full());
    assert_eq!(code, Some(0), "{said}");
    assert_ne!(place.agent_key(), held);
    assert_eq!(server.get(&place.agent_key(), "/api/v1/notes").status, 200);
    let issued = place.run(&["keys", "rotate", &id, "--json"]).json();
    let key = issued["key"].as_str().unwrap();
    assert_eq!(server.get(key, "/api/v1/notes").status, 200);
}
