//! What the note on retrying after a lost response asks to be tested: over real sockets, with
//! real kills.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use counterfoil_e2e::{Folder, Mcp, Server, until};
use serde_json::json;

use crate::STORE;

const NOTE: &str = r#"{"body":"Investigate the failing parser fixture."}"#;
const BODY: &str = "Investigate the failing parser fixture.";

#[test]
fn i1_field_05_eight_connections_race_with_one_key_and_one_runs() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    for round in 0..10 {
        let start = Arc::new(Barrier::new(8));
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let (http, start) = (server.http(), Arc::clone(&start));
                thread::spawn(move || {
                    start.wait();
                    http.note_until_answered(&format!("race-{round}"), NOTE)
                })
            })
            .collect();
        let replies: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
        for reply in &replies {
            assert_eq!(reply.status, 201, "{}", reply.text());
            assert_eq!(reply.body, replies[0].body);
        }
        assert_eq!(server.http().count(BODY), round + 1);
    }
}

#[test]
fn i1_eight_mcp_calls_race_with_one_key_and_one_runs() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let start = Arc::new(Barrier::new(8));
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (mcp, start) = (server.mcp(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                until("an answer", Duration::from_secs(60), || {
                    let arguments = json!({"body": BODY, "idempotency_key": "race"});
                    let said = mcp.call("create_note", arguments, json!({}));
                    let content = &said.result()["structuredContent"];
                    content["note_id"].as_str().map(str::to_owned)
                })
            })
        })
        .collect();
    let ids: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(server.http().count(BODY), 1);
}

/// The client closes its socket after sending; what it missed is there, and still there after a
/// power cut.
#[test]
fn i2_field_12_field_13_a_lost_response_is_recovered_and_again_after_kill_9() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    server
        .http()
        .note(Some("lost"), NOTE)
        .send_and_close()
        .unwrap();
    until("the note is there", Duration::from_secs(30), || {
        (server.http().count(BODY) == 1).then_some(())
    });
    let recovered = server.http().note(Some("lost"), NOTE).send().unwrap();
    let id = recovered.note_id();
    assert_eq!(recovered.header("idempotent-replayed"), Some("true"));
    server.kill();
    let server = Server::start(&folder);
    let again = server.http().note(Some("lost"), NOTE).send().unwrap();
    assert_eq!(again.note_id(), id);
    assert_eq!(again.body, recovered.body);
    assert_eq!(server.http().count(BODY), 1);
}

#[test]
fn i2_a_lost_mcp_response_is_recovered_and_again_after_kill_9() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let arguments = json!({"body": BODY, "idempotency_key": "lost"});
    let first = server
        .mcp()
        .call("create_note", arguments.clone(), json!({}));
    let id = first.content()["note_id"].clone();
    server.kill();
    let server = Server::start(&folder);
    let again = server.mcp().call("create_note", arguments, json!({}));
    assert!(again.replayed(), "{again:?}");
    assert_eq!(again.content()["note_id"], id);
    assert_eq!(server.http().count(BODY), 1);
}

#[test]
fn field_02_a_changed_payload_is_a_conflict_and_changes_nothing() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let first = server.http().note(Some("k"), NOTE).send().unwrap();
    let other = server
        .http()
        .note(Some("k"), r#"{"body":"other"}"#)
        .send()
        .unwrap();
    assert_eq!(
        (other.status, other.code().as_str()),
        (409, "idempotency_conflict")
    );
    let again = server.http().note(Some("k"), NOTE).send().unwrap();
    assert_eq!(again.body, first.body, "the conflict changed nothing");
    assert_eq!(server.http().notes().len(), 1);
}

/// Somebody else's transaction is held longer than the lock timeout: `busy`, and nothing done.
#[test]
fn i3_field_22_a_held_database_lock_is_busy_and_nothing_is_invented() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let kept = server
        .http()
        .note(Some("kept"), r#"{"body":"kept"}"#)
        .send()
        .unwrap();
    let lock = folder.outside().lock();
    let asked = Instant::now();
    let busy = server.http().note(Some("k"), NOTE).send().unwrap();
    assert_eq!(
        (busy.status, busy.code().as_str()),
        (503, "busy"),
        "{}",
        busy.text()
    );
    let seconds: u64 = busy
        .header("retry-after")
        .expect("Retry-After")
        .parse()
        .unwrap();
    assert!((1..=60).contains(&seconds));
    assert!(
        asked.elapsed() >= Duration::from_secs(4),
        "it waited for the lock"
    );
    assert!(
        asked.elapsed() < Duration::from_secs(20),
        "it gave up in time"
    );
    let said = server.mcp().call(
        "create_note",
        json!({"body": BODY, "idempotency_key": "m"}),
        json!({}),
    );
    assert_eq!(said.refusal()["retryable"], true, "{said:?}");
    let replayed = server
        .http()
        .note(Some("kept"), r#"{"body":"kept"}"#)
        .send()
        .unwrap();
    assert_eq!(replayed.body, kept.body, "a replay needs no writer");
    assert_eq!(server.http().count(BODY), 0);
    lock.release();
    let done = server.http().note_until_answered("k", NOTE);
    assert_eq!(done.status, 201, "{}", done.text());
    assert_eq!(
        server.http().count(BODY),
        1,
        "the busy call left nothing behind"
    );
}

#[test]
fn i4_field_08_a_second_principal_with_the_same_key_runs_on_its_own() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let (_, second) = folder.issue("second");
    let one = server.http().note(Some("k"), NOTE).send().unwrap();
    let other = server
        .http_as(&second)
        .note(Some("k"), NOTE)
        .send()
        .unwrap();
    assert_ne!(one.note_id(), other.note_id());
    assert_eq!(other.header("idempotent-replayed"), None);
    assert_eq!(server.http().count(BODY), 2);
}

/// Another workspace sees neither the notes nor the operations of the first, whatever it asks.
#[test]
fn i4_field_08_another_workspace_sees_nothing() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let one = server.http().note(Some("k"), NOTE).send().unwrap();
    let issued = folder.json(&[
        "keys",
        "issue",
        "--workspace",
        "other",
        "--name",
        "stranger",
    ]);
    let stranger = server.http_as(issued["key"].as_str().unwrap());
    let other = stranger.note(Some("k"), NOTE).send().unwrap();
    assert_ne!(one.note_id(), other.note_id());
    assert_eq!(stranger.notes().len(), 1);
    let path = format!("/api/v1/notes/{}", one.note_id());
    assert_eq!(stranger.request("GET", &path).send().unwrap().status, 404);
    let mine = server
        .http()
        .request("GET", "/api/v1/operations")
        .send()
        .unwrap();
    let mine = mine.value();
    let id = mine["operations"][0]["operation_id"]
        .as_str()
        .expect("an operation");
    let path = format!("/api/v1/operations/{id}");
    assert_eq!(
        server.http().request("GET", &path).send().unwrap().status,
        200
    );
    assert_eq!(stranger.request("GET", &path).send().unwrap().status, 404);
}

/// The credential is withdrawn by another process: the very next retry gets no replay.
#[test]
fn i4_withdrawn_authorization_gets_no_replay() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let (id, key) = folder.issue("leaver");
    let http = server.http_as(&key);
    let first = http.note(Some("k"), NOTE).send().unwrap();
    let again = http.note(Some("k"), NOTE).send().unwrap();
    assert_eq!(again.body, first.body);
    let revoked = folder.run(&["keys", "revoke", &id]);
    assert!(revoked.status.success(), "{revoked:?}");
    let refused = http.note(Some("k"), NOTE).send().unwrap();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (401, "unauthorized")
    );
    let mcp = Mcp::new(http);
    let said = mcp.call("list_notes", json!({}), json!({}));
    assert_eq!(said.reply.status, 401);
    assert_eq!(server.http().count(BODY), 1);
}

/// After rotation the principal is the same: its receipts are still its own.
#[test]
fn i4_a_rotated_credential_is_the_same_principal() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let (id, key) = folder.issue("rotated");
    let first = server.http_as(&key).note(Some("k"), NOTE).send().unwrap();
    let rotated = folder.json(&["keys", "rotate", &id]);
    let new = rotated["key"].as_str().expect("the new key");
    let again = server.http_as(new).note(Some("k"), NOTE).send().unwrap();
    assert_eq!(again.body, first.body);
    assert_eq!(
        server
            .http_as(&key)
            .note(Some("k"), NOTE)
            .send()
            .unwrap()
            .status,
        401
    );
}

#[test]
fn i2_an_expired_receipt_with_a_tombstone_refuses_its_key() {
    let folder = Folder::new(STORE);
    let config = folder.config("[retention]\nreplay_for = \"1s\"\ntombstone_for = \"1h\"\n");
    let server = Server::with(&folder, &["--config", &config]);
    let first = server.http().note(Some("k"), NOTE).send().unwrap();
    let _ = first.note_id();
    let refused = until("the window ends", Duration::from_secs(30), || {
        let reply = server.http().note(Some("k"), NOTE).send().unwrap();
        (reply.status != 201).then_some(reply)
    });
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert_eq!(refused.code(), "idempotency_key_expired");
    let other = server
        .http()
        .note(Some("k"), r#"{"body":"other"}"#)
        .send()
        .unwrap();
    assert_eq!(
        other.code(),
        "idempotency_conflict",
        "the tombstone keeps the fingerprint"
    );
    let server = {
        server.kill();
        Server::with(&folder, &["--config", &config])
    };
    let still = server.http().note(Some("k"), NOTE).send().unwrap();
    assert_eq!(still.code(), "idempotency_key_expired");
    assert_eq!(server.http().notes().len(), 1);
}

#[test]
fn an_expired_receipt_without_tombstones_is_a_new_action() {
    let folder = Folder::new(STORE);
    let config = folder.config("[retention]\nreplay_for = \"1s\"\ntombstone_for = \"0s\"\n");
    let server = Server::with(&folder, &["--config", &config]);
    let first = server
        .http()
        .note(Some("k"), NOTE)
        .send()
        .unwrap()
        .note_id();
    let second = until("the window ends", Duration::from_secs(30), || {
        let reply = server.http().note(Some("k"), NOTE).send().unwrap();
        let id = reply.note_id();
        (id != first).then_some(reply)
    });
    assert_eq!(
        second.header("idempotent-replayed"),
        None,
        "it is no replay"
    );
    assert_eq!(server.http().notes().len(), 2);
}

/// The write of the receipt fails after the write of the effect, and the other way round: neither
/// row stays, the caller is told that nothing happened, and the key is not used up.
#[test]
fn i3_a_failure_between_effect_and_receipt_leaves_neither() {
    for table in [
        "counterfoil_receipts",
        "counterfoil_results",
        "counterfoil_events",
    ] {
        let folder = Folder::new(STORE);
        let server = Server::start(&folder);
        let outside = folder.outside();
        outside.refuse_rows(table);
        let failed = server.http().note(Some("k"), NOTE).send().unwrap();
        assert!(failed.status >= 500, "{table}: {}", failed.text());
        assert_eq!(server.http().count(BODY), 0, "{table}: no effect");
        outside.allow_rows(table);
        let receipts = outside.number("SELECT count(*) FROM counterfoil_receipts");
        assert_eq!(receipts, 0, "{table}: no receipt");
        let done = server.http().note(Some("k"), NOTE).send().unwrap();
        assert_eq!(done.status, 201, "{table}: {}", done.text());
        assert_eq!(done.header("idempotent-replayed"), None);
        assert_eq!(server.http().count(BODY), 1, "{table}");
    }
}
