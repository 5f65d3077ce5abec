//! `counterfoil store copy` and `counterfoil store check`, on real databases.

use std::{
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use counterfoil_core::{
    Fingerprint, Identity, Key, OperationId, Policy, PrincipalId, Reply, Target, Timestamp, Token,
    WorkspaceId,
};
use counterfoil_sqlite::{Options, SqliteStore};
use counterfoil_store::{Admission, Store as _, StoredReply, Whole};
use counterfoil_test_postgres::{Database, Proxy};
use serde_json::Value;

use crate::process::{Place, Server};

/// When the receipts that tests make up were made.
const THEN: i64 = 1_790_000_000_000;

fn admission(number: u32, policy: Policy) -> Admission {
    let now = Timestamp::from_millis(THEN + i64::from(number));
    let mut random = [1; 10];
    random[..4].copy_from_slice(&number.to_be_bytes());
    Admission {
        identity: Identity {
            workspace: WorkspaceId::new("default").unwrap(),
            principal: PrincipalId::new("ak_made_up").unwrap(),
            target: Target::new("POST /made/up"),
            key: Key::new(format!("made-up-{number}")).unwrap(),
        },
        fingerprint: Fingerprint::raw("", b"x"),
        inputs: None,
        version: 1,
        policy,
        operation_id: OperationId::new(now, random),
        token: Token::new([2; 16]),
        now,
        patience: Duration::from_secs(5),
    }
}

/// A receipt of a call that was done long ago.
fn done(number: u32) -> Whole {
    let reply = StoredReply {
        reply: Reply::json(201, &serde_json::json!({ "number": number })),
        sealed: number.is_multiple_of(7).then_some(number),
    };
    let admission = admission(number, Policy::atomic());
    let change = admission.execute(None, false, Ok(&reply)).unwrap();
    Whole {
        receipt: change.receipt,
        events: vec![change.event],
        result: Some(reply),
        questions: Vec::new(),
    }
}

/// Does something in a SQLite file, as a program on it does.
fn on_file<F: Future<Output = ()>>(file: &Path, work: impl FnOnce(SqliteStore) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(file, Options::default()).unwrap();
        work(store.clone()).await;
        store.close().await;
    });
}

fn make_up(file: &Path, count: u32) {
    on_file(file, |store| async move {
        let all: Vec<u32> = (0..count).collect();
        for part in all.chunks(500) {
            let rows = part.iter().map(|number| done(*number)).collect();
            store.import(rows).await.unwrap().unwrap();
        }
    });
}

fn file(place: &Place) -> String {
    format!("sqlite:{}", place.data().join("counterfoil.db").display())
}

fn receipts(database: &Database) -> u64 {
    let counted = database.try_psql("SELECT count(*) FROM counterfoil_receipts");
    counted.map_or(0, |count| count.trim().parse().unwrap())
}

/// A place where a server has run, and what it answered.
fn used() -> (Place, String) {
    let place = Place::new();
    let server = place.serve();
    let answer = server.note(&place.agent_key(), "first", "moved as it is");
    assert_eq!(answer.status, 201);
    assert!(server.terminate());
    (place, answer.body)
}

fn copy(place: &Place, from: &str, to: &str, more: &[&str]) -> std::process::Output {
    let arguments = ["store", "copy", "--from", from, "--to", to];
    let mut command = place.command(&[&arguments, more].concat());
    command.arg("--data").arg(place.data()).output().unwrap()
}

#[track_caller]
fn verified(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verified"], true);
    report
}

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Stops a copy in the middle of a transaction, as soon as there are more receipts than said.
const STOP: &str = "
CREATE TABLE stop(beyond bigint);
INSERT INTO stop VALUES (0);
CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) FROM counterfoil_receipts) > (SELECT beyond FROM stop) THEN
        PERFORM pg_sleep(300);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER stop AFTER INSERT ON counterfoil_receipts
    FOR EACH STATEMENT EXECUTE FUNCTION stop();
";

fn wait_until_stopped(child: &mut Child, database: &Database) {
    const STOPPED: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'PgSleep'";
    let start = Instant::now();
    while database.psql(STOPPED).trim() == "0" {
        assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
        assert!(start.elapsed() < Duration::from_secs(120));
    }
}

#[test]
fn i2_everything_moves_to_postgres_through_three_kills_and_back() {
    const MADE_UP: u32 = 5000;
    let (place, first) = used();
    let from = file(&place);
    make_up(&place.data().join("counterfoil.db"), MADE_UP);
    let all = u64::from(MADE_UP) + 1;
    let database = Database::new();
    place.run(&["migrate", "--store", database.url()]).ok();
    database.psql(STOP);
    for beyond in [300, 1500, 3000] {
        database.psql(&format!("UPDATE stop SET beyond = {beyond}"));
        let url = database.url();
        let mut command = place.command(&["store", "copy", "--from", &from, "--to", url]);
        let mut child = command
            .args(["--page", "250"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until_stopped(&mut child, &database);
        child.kill().unwrap();
        child.wait().unwrap();
        database.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        );
        assert_eq!(receipts(&database), beyond / 250 * 250);
    }
    // Half of the keys would run again: nobody takes calls on it.
    let refused = place.run(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        database.url(),
    ]);
    let why = refused.fails(4);
    assert!(why.contains("was not brought to its end"), "{why}");
    let checked = place.run(&["store", "check", "--store", database.url()]);
    assert_eq!(checked.0.status.code(), Some(1));
    database.psql("DROP TRIGGER stop ON counterfoil_receipts");
    let output = copy(&place, &from, database.url(), &["--json"]);
    let report = verified(&output);
    assert!(said(&output).contains("going on"), "{}", said(&output));
    assert_eq!(report["receipts"], all);
    assert_eq!(report["receipts_written"], all - 3000);
    assert_eq!(receipts(&database), all);
    let again = verified(&copy(&place, &from, database.url(), &["--json"]));
    assert_eq!(again["receipts_written"], 0);
    assert_eq!(again["digest"], report["digest"]);
    assert_eq!(again["application_rows"], 3, "workspace, key, note");

    let key = place.agent_key();
    let server = Server::start(&place, &["--store", database.url()]);
    assert_eq!(place.agent_key(), key, "no other key is made");
    let replay = server.note(&key, "first", "moved as it is");
    assert!(replay.is_replay(), "{replay:?}");
    assert_eq!(replay.body, first);
    let id = replay.json()["note_id"].as_str().unwrap().to_owned();
    let found = server.get(&key, &format!("/api/v1/notes/{id}"));
    assert_eq!(found.json()["body"], "moved as it is");
    let second = server.note(&key, "second", "made on PostgreSQL");
    assert_eq!(second.status, 201);
    assert!(server.terminate());
    // A copy that is run once more by mistake cannot be verified, and shuts nobody out.
    let late = copy(&place, &from, database.url(), &["--json"]);
    assert!(!late.status.success(), "{}", said(&late));
    assert!(Server::start(&place, &["--store", database.url()]).terminate());

    let back = place.path("back.db");
    let to = format!("sqlite:{}", back.display());
    let report = verified(&copy(&place, database.url(), &to, &["--json"]));
    assert_eq!(report["receipts"], all + 1);
    let server = Server::start(&place, &["--store", &to]);
    for (name, body, answer) in [
        ("first", "moved as it is", &first),
        ("second", "made on PostgreSQL", &second.body),
    ] {
        let replay = server.note(&key, name, body);
        assert!(replay.is_replay());
        assert_eq!(&replay.body, answer);
    }
    assert!(server.terminate());
    for store in [database.url(), &to] {
        let checked = place.run(&["store", "check", "--json", "--store", store]);
        let checked = checked.json();
        assert_eq!(checked["ok"], true, "{checked}");
        assert_eq!(checked["states"]["succeeded"], all + 1);
    }
}

#[test]
fn a_copy_outlives_a_connection_that_breaks() {
    let (place, _) = used();
    make_up(&place.data().join("counterfoil.db"), 300);
    let database = Database::new();
    place.run(&["migrate", "--store", database.url()]).ok();
    database.psql(STOP);
    database.psql("UPDATE stop SET beyond = 100");
    let proxy = Proxy::start(database.address());
    let url = database.url_at(proxy.address());
    let from = file(&place);
    let mut command = place.command(&["store", "copy", "--from", &from, "--to", &url, "--json"]);
    let mut child = command
        .args(["--page", "50"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_stopped(&mut child, &database);
    // Before anything goes on: another connection of the copy may be open.
    proxy.refuse(true);
    proxy.cut_now();
    database.psql("UPDATE stop SET beyond = 1000000");
    database.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event = 'PgSleep'",
    );
    assert_eq!(receipts(&database), 100);
    proxy.refuse(false);
    let output = child.wait_with_output().unwrap();
    let report = verified(&output);
    assert_eq!(report["receipts"], 301);
    assert_eq!(receipts(&database), 301);
}

#[test]
fn a_target_that_was_used_is_refused_and_left_alone() {
    let (place, _) = used();
    let database = Database::new();
    let other = Place::new();
    assert!(Server::start(&other, &["--store", database.url()]).terminate());
    let before = database.psql("SELECT * FROM agent_keys; SELECT * FROM workspaces");
    let output = copy(&place, &file(&place), database.url(), &[]);
    assert_eq!(output.status.code(), Some(4));
    let text = said(&output);
    assert!(text.contains("is not empty"), "{text}");
    assert!(text.contains("hint: give an empty database"), "{text}");
    let after = database.psql("SELECT * FROM agent_keys; SELECT * FROM workspaces");
    assert_eq!(after, before);
    assert_eq!(receipts(&database), 0);
}

#[test]
fn a_receipt_that_differs_is_named_and_left() {
    let (place, _) = used();
    make_up(&place.data().join("counterfoil.db"), 30);
    let database = Database::new();
    let from = file(&place);
    verified(&copy(
        &place,
        &from,
        database.url(),
        &["--json", "--page", "10"],
    ));
    let id = database.psql(
        "UPDATE counterfoil_receipts SET version = 9 WHERE key = 'made-up-3' RETURNING operation_id",
    );
    let id = format!("op_{}", id.lines().next().unwrap());
    let output = copy(&place, &from, database.url(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert!(text.contains(&format!("not verified: {id}")), "{text}");
    assert!(output.stdout.is_empty());
    // From here on nothing is skipped.
    let output = copy(&place, &from, database.url(), &[]);
    assert_eq!(output.status.code(), Some(4));
    let text = said(&output);
    assert!(text.contains(&format!("{id} is there already")), "{text}");
    let version = database.psql("SELECT version FROM counterfoil_receipts WHERE version = 9");
    assert_eq!(version.trim(), "9");
}

#[test]
fn an_application_row_that_was_lost_is_mended() {
    let (place, _) = used();
    let database = Database::new();
    let from = file(&place);
    verified(&copy(&place, &from, database.url(), &["--json"]));
    database.psql("DELETE FROM notes");
    let report = verified(&copy(&place, &from, database.url(), &["--json"]));
    assert_eq!(report["application_rows_written"], 1);
    assert_eq!(database.psql("SELECT count(*) FROM notes").trim(), "1");
}

#[test]
fn running_attempts_are_copied_only_if_told() {
    let (place, _) = used();
    on_file(&place.data().join("counterfoil.db"), |store| async move {
        let admitted = store.admit(admission(1, Policy::default())).await;
        assert!(matches!(
            admitted.unwrap(),
            counterfoil_store::Admitted::Run(_)
        ));
    });
    let database = Database::new();
    let output = copy(&place, &file(&place), database.url(), &[]);
    assert_eq!(output.status.code(), Some(4));
    let text = said(&output);
    assert!(text.contains("1 attempts are running"), "{text}");
    assert!(text.contains("--with-running"), "{text}");
    assert!(
        database
            .try_psql("SELECT 1 FROM counterfoil_receipts")
            .is_err()
    );
    let more = ["--json", "--with-running"];
    let report = verified(&copy(&place, &file(&place), database.url(), &more));
    assert_eq!(report["running"], 1);
    // Its lease lapsed long ago.
    let checked = place.run(&["store", "check", "--json", "--store", database.url()]);
    assert_eq!(checked.json()["lapsed_unrecorded"], 1);
}

#[test]
fn a_dry_run_reads_everything_and_writes_nothing() {
    let (place, _) = used();
    make_up(&place.data().join("counterfoil.db"), 30);
    let database = Database::new();
    let output = copy(&place, &file(&place), database.url(), &["--dry-run"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("would copy 31 receipts"), "{text}");
    assert!(database.try_psql("SELECT 1 FROM workspaces").is_err());
    let same = copy(&place, &file(&place), &file(&place), &[]);
    assert_eq!(same.status.code(), Some(2));
    let secret = "postgres://u:hunter2@127.0.0.1/d";
    let refused = copy(&place, &file(&place), secret, &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("password in --to"));
    assert!(!said(&refused).contains("hunter2"));
}

/// What somebody does to the rows from outside, and what is said.
const DAMAGES: [(&str, &str); 8] = [
    (
        "UPDATE counterfoil_receipts SET state = 6 WHERE key = 'made-up-2'",
        "what is known of its attempts does not fit its state",
    ),
    (
        "UPDATE counterfoil_receipts SET state = 8 WHERE key = 'made-up-3'",
        "its event log does not end in its state",
    ),
    (
        "UPDATE counterfoil_receipts SET kept = 0 WHERE key = 'made-up-4'",
        "it has a stored result although it is marked as having none",
    ),
    (
        "UPDATE counterfoil_receipts SET finished_at = NULL WHERE key = 'made-up-5'",
        "it is finished and does not say when",
    ),
    (
        "UPDATE counterfoil_events SET from_state = 2 WHERE id = (SELECT max(id) FROM counterfoil_events)",
        "its event log has lost its beginning",
    ),
    (
        "UPDATE counterfoil_results SET receipt = receipt + 1000 WHERE receipt = 3",
        "results of no receipt",
    ),
    (
        "UPDATE counterfoil_receipts SET event_count = 7 WHERE key = 'made-up-6'",
        "a row that cannot be read",
    ),
    (
        "UPDATE counterfoil_receipts SET state = 77 WHERE key = 'made-up-7'",
        "receipts in a state that there is not",
    ),
];

fn check_finds(place: &Place, store: &str, outside: impl Fn(&str)) {
    let check = |more: &[&str]| {
        let arguments = [&["store", "check", "--store", store], more].concat();
        place.run(&arguments).0
    };
    let clean = check(&[]);
    assert!(clean.status.success(), "{clean:?}");
    let text = String::from_utf8(clean.stdout).unwrap();
    assert!(text.contains("Everything hangs together."), "{text}");
    for (damage, _) in DAMAGES {
        outside(damage);
    }
    let found = check(&["--json"]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let report: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(report["ok"], false);
    let text = String::from_utf8(check(&[]).stdout).unwrap();
    for (_, what) in DAMAGES {
        assert!(report["findings_by_kind"].get(what).is_some(), "{report}");
        assert!(text.contains(what) && text.contains("hint: "), "{text}");
    }
}

#[test]
fn a_row_damaged_from_outside_is_found_in_sqlite() {
    let (place, _) = used();
    let path = place.data().join("counterfoil.db");
    make_up(&path, 30);
    let outside = |sql: &str| {
        let sqlite = rusqlite::Connection::open(&path).unwrap();
        assert_eq!(sqlite.execute(sql, []).unwrap(), 1, "{sql}");
    };
    check_finds(&place, &file(&place), outside);
    outside("UPDATE counterfoil_receipts SET locator = 1 WHERE key = 'made-up-9'");
    outside("UPDATE counterfoil_workspaces SET unresolved = 5");
    let text = String::from_utf8(place.run(&["store", "check"]).0.stdout).unwrap();
    assert!(text.contains("its key would not find it"), "{text}");
    assert!(
        text.contains("another number of unresolved receipts"),
        "{text}"
    );
    let database = Database::new();
    let output = copy(&place, &file(&place), database.url(), &[]);
    assert_eq!(output.status.code(), Some(4));
    assert!(said(&output).contains("is damaged"), "{}", said(&output));
}

#[test]
fn a_row_damaged_from_outside_is_found_in_postgres() {
    let (place, _) = used();
    make_up(&place.data().join("counterfoil.db"), 30);
    let database = Database::new();
    verified(&copy(&place, &file(&place), database.url(), &["--json"]));
    let outside = |sql: &str| drop(database.psql(sql));
    check_finds(&place, database.url(), outside);
    outside("UPDATE counterfoil_receipts SET locator = gen_random_uuid() WHERE key = 'made-up-9'");
    outside("INSERT INTO counterfoil_open VALUES (4711, 1, NULL, true)");
    let found = place.run(&["store", "check", "--store", database.url()]).0;
    assert_eq!(found.status.code(), Some(1));
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(text.contains("its key would not find it"), "{text}");
    assert!(
        text.contains("receipts in a state that there is not"),
        "{text}"
    );
    assert!(
        text.contains("entries of unresolved receipts belong to none"),
        "{text}"
    );
    // A damage above made a receipt unresolved behind the store's back.
    assert!(
        text.contains("1 unresolved receipts have no entry"),
        "{text}"
    );
    assert!(text.contains("clock"), "{text}");
}
