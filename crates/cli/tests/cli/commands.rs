use crate::process::Place;

#[test]
fn keys_are_issued_rotated_and_revoked_under_a_running_server() {
    let place = Place::new();
    let server = place.serve();
    let issued = place
        .run(&[
            "keys",
            "issue",
            "--workspace",
            "other",
            "--name",
            "worker",
            "--json",
        ])
        .json();
    let (id, key) = (
        issued["id"].as_str().unwrap(),
        issued["key"].as_str().unwrap(),
    );
    assert_eq!(issued["workspace"], "other");
    assert_eq!(issued["role"], "member");
    assert_eq!(server.note(key, "k", "hello").status, 201);
    let default = server.get(&place.agent_key(), "/api/v1/notes").json();
    assert_eq!(default["notes"].as_array().unwrap().len(), 0);

    let rotated = place.run(&["keys", "rotate", id, "--json"]).json();
    let new = rotated["key"].as_str().unwrap();
    assert_eq!(rotated["id"], id);
    assert_eq!(server.note(key, "k", "hello").status, 401);
    assert!(server.note(new, "k", "hello").is_replay());

    let list = place.run(&["keys", "list", "--workspace", "other"]).ok();
    assert!(
        list.contains(id) && list.contains("worker") && list.contains("rotated"),
        "{list}"
    );
    let secret = new.rsplit('_').next().unwrap();
    assert!(!list.contains(secret));

    let revoked = place.run(&["keys", "revoke", id]).ok();
    assert!(revoked.contains(id));
    assert_eq!(server.note(new, "k", "hello").status, 401);
    let said = place.run(&["keys", "rotate", id]).fails(2);
    assert!(said.contains("revoked"), "{said}");
}

#[test]
fn what_is_not_there_is_said_with_a_hint() {
    let place = Place::new();
    let said = place.run(&["keys", "list"]).fails(5);
    assert!(
        said.contains("no Counterfoil database") && said.contains("hint: "),
        "{said}"
    );
    assert!(!place.data().exists(), "a reading command creates nothing");
    place.serve().kill();
    let operation = "op_01890000-0000-7000-8000-000000000000";
    let said = place.run(&["operations", "show", operation]).fails(5);
    assert!(said.contains("operations list"), "{said}");
    let said = place.run(&["keys", "revoke", "ak_nothing"]).fails(5);
    assert!(said.contains("keys list"), "{said}");
    place.run(&["keys", "issue", "--name", ""]).fails(2);
    place
        .run(&["keys", "issue", "--name", "x", "--workspace", "a b"])
        .fails(2);
    place
        .run(&["operations", "list", "--in", "nonsense"])
        .fails(2);
    place.run(&["operations", "list", "--limit", "0"]).fails(2);
    place.run(&["keys", "issue"]).fails(2);
}

#[test]
fn field_21_operations_are_listed_and_their_events_told() {
    let place = Place::new();
    let server = place.serve();
    let key = place.agent_key();
    let note = server.note(&key, "key-of-mine", "body-of-mine").json();
    let id = note["operation_id"].as_str().unwrap();
    let list = place.run(&["operations", "list", "--json"]).json();
    assert_eq!(list["operations"][0]["operation_id"], id);
    assert_eq!(list["operations"][0]["state"], "succeeded");
    let table = place.run(&["operations", "list"]).ok();
    assert!(table.contains(id) && table.starts_with("ID"), "{table}");
    let shown = place.run(&["operations", "show", id]).ok();
    for part in [
        "succeeded",
        "POST /api/v1/notes",
        "It happened, once.",
        "- -> succeeded",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let whole = place.run(&["operations", "show", id, "--json"]).json();
    assert_eq!(whole["events"][0]["to"], "succeeded");
    for hidden in ["key-of-mine", "body-of-mine"] {
        assert!(!shown.contains(hidden) && !whole.to_string().contains(hidden));
    }
    let arguments = [
        "operations",
        "resolve",
        id,
        "--as",
        "happened",
        "--reason",
        "looked",
    ];
    let said = place.run(&arguments).fails(1);
    assert!(said.contains("not in doubt"), "{said}");
}

#[test]
fn a_first_sweep_says_why_it_purges_nothing() {
    let place = Place::new();
    place.serve().kill();
    let report = place.run(&["sweep", "--json"]).json();
    assert_eq!(report["receipts_deleted"], 0);
    assert!(
        report["note"]
            .as_str()
            .unwrap()
            .contains("two sweeps at least an hour apart")
    );
    let text = place.run(&["sweep"]).ok();
    assert!(text.contains("two sweeps at least an hour apart"), "{text}");
}

#[test]
fn completions_and_help_are_there() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = place.command(&["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("counterfoil"));
    }
    let output = place.command(&["--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for part in [
        "serve",
        "mcp",
        "keys",
        "operations",
        "sweep",
        "config",
        "completions",
        "Exit codes",
    ] {
        assert!(help.contains(part), "{part}");
    }
    assert_eq!(
        place.command(&["nonsense"]).output().unwrap().status.code(),
        Some(2)
    );
}

/// An operation whose outcome nobody knows, as a crashed handler leaves it behind.
async fn doubt(database: std::path::PathBuf) -> String {
    use std::sync::Arc;

    use counterfoil_core::{Fingerprint, Identity, Key, Policy, PrincipalId, Target, WorkspaceId};
    use counterfoil_engine::{Answer, Call, Engine, Operation, Outcome};
    let store = counterfoil_sqlite::SqliteStore::open(database, Default::default()).unwrap();
    let engine = Engine::new(Arc::new(store.clone()));
    let identity = Identity {
        workspace: WorkspaceId::new("default").unwrap(),
        principal: PrincipalId::new("ak_test").unwrap(),
        target: Target::new("elsewhere"),
        key: Key::new("doubt").unwrap(),
    };
    let operation = Operation::new(1, Policy::default()).unwrap();
    let call = Call::new(identity, Fingerprint::raw("", b""), operation);
    let lost = |_| async { Outcome::Lost { timed_out: true } };
    let Answer::Refused(refusal) = engine.run(call, lost).await else {
        panic!("the outcome is unknown");
    };
    store.close().await;
    refusal.operation_id.unwrap().to_string()
}

#[test]
fn field_21_an_operation_in_doubt_is_resolved_with_a_reason_that_stays() {
    let place = Place::new();
    let server = place.serve();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let id = runtime.block_on(doubt(place.data().join("counterfoil.db")));
    server.note(&place.agent_key(), "k", "later");
    let list = place.run(&["operations", "list", "--json"]).json();
    assert_eq!(list["operations"][0]["operation_id"], id.as_str());
    assert_eq!(list["operations"][0]["state"], "outcome_unknown");
    let resolve = |reason: &str| {
        place.run(&[
            "operations",
            "resolve",
            &id,
            "--as",
            "happened",
            "--reason",
            reason,
            "--json",
        ])
    };
    resolve(" ").fails(2);
    let resolved = resolve("found it at the bank").json();
    assert_eq!(resolved["state"], "succeeded");
    assert_eq!(resolved["effect"], "happened");
    let events = resolved["events"].as_array().unwrap();
    let reason = events.last().unwrap()["reason"].as_str().unwrap();
    assert!(reason.contains("found it at the bank"), "{reason}");
}

#[test]
fn field_22_what_is_there_stays_readable_when_nothing_can_be_written() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let server = place.serve();
    let note = server.note(&place.agent_key(), "k", "hello").json();
    assert!(server.terminate());
    let database = place.data().join("counterfoil.db");
    let set = |folder: u32, file: u32| {
        std::fs::set_permissions(&database, std::fs::Permissions::from_mode(file)).unwrap();
        std::fs::set_permissions(place.data(), std::fs::Permissions::from_mode(folder)).unwrap();
    };
    let before = std::fs::read(&database).unwrap();
    set(0o500, 0o400);
    let list = place.run(&["operations", "list", "--json"]);
    let keys = place.run(&["keys", "list", "--json"]);
    set(0o700, 0o600);
    assert_eq!(
        list.json()["operations"][0]["operation_id"],
        note["operation_id"]
    );
    assert_eq!(keys.json()["agent_keys"][0]["name"], "first key");
    // Also for a user whom permissions do not stop.
    assert!(
        std::fs::read(&database).unwrap() == before,
        "looking writes nothing"
    );
}
