//! A guarded call whose process died: found, explained, never run again, and settled by a person.

use std::thread;
use std::time::Duration;

use counterfoil_e2e::{Fixture, Folder, Mcp, Outside, Server, Store, until};
use serde_json::{Value, json};

use crate::STORE;

/// The tool counts its effect at once and then takes for ever.
fn call(fixture: &Fixture) -> Value {
    let arguments = json!({"label": "once", "ms": 600_000, "idempotency_key": "k"});
    let said = Mcp::new(fixture.http()).call("slow", arguments, json!({}));
    said.result().clone()
}

fn effects(database: &Outside) -> i64 {
    let count = "SELECT count(*) FROM fixture_effects";
    database.try_number(count).unwrap_or(0)
}

fn started(folder: &Folder) -> Fixture {
    match STORE {
        Store::Sqlite => {
            let data = folder.database().display().to_string();
            Fixture::start(folder, &["--data", &data])
        }
        Store::Postgres | Store::Memory => Fixture::start(folder, &[]),
    }
}

#[test]
fn field_14_field_21_a_call_in_doubt_is_found_explained_and_resolved_with_a_reason() {
    let folder = Folder::new(STORE);
    Server::start(&folder).stop();
    let database = folder.outside();

    let fixture = started(&folder);
    let caller = Mcp::new(fixture.http());
    let lost = thread::spawn(move || {
        let arguments = json!({"label": "once", "ms": 600_000, "idempotency_key": "k"});
        caller.try_call("slow", arguments).is_err()
    });
    until("the effect happened", Duration::from_secs(30), || {
        (effects(&database) == 1).then_some(())
    });
    drop(fixture);
    assert!(lost.join().unwrap(), "the answer is lost with the process");

    // While its lease lives, it counts as alive; then time passes.
    let fixture = started(&folder);
    let waits = call(&fixture);
    assert_eq!(waits["structuredContent"]["retryable"], true, "{waits}");
    database.end_leases();
    let doubt = call(&fixture);
    let content = &doubt["structuredContent"];
    assert_eq!(content["status"], "outcome_unknown", "{doubt}");
    assert_eq!(content["retryable"], false, "{doubt}");
    let id = content["operation_id"]
        .as_str()
        .expect("a handle")
        .to_owned();

    let listed = folder.json(&["operations", "list", "--in", "outcome_unknown"]);
    assert_eq!(
        listed["operations"][0]["operation_id"],
        json!(id),
        "{listed}"
    );
    let shown = folder.run(&["operations", "show", &id]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("Nobody knows whether it happened"),
        "{shown}"
    );

    let unreasoned = folder.run(&["operations", "resolve", &id, "--as", "happened"]);
    assert!(!unreasoned.status.success(), "a reason is required");
    let reason = "the mail is in the outbox of the provider";
    let resolve = [
        "operations",
        "resolve",
        &id,
        "--as",
        "happened",
        "--reason",
        reason,
    ];
    let resolved = folder.json(&resolve);
    assert_eq!(resolved["effect"], "happened", "{resolved}");
    let shown = folder.run(&["operations", "show", &id]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains(reason),
        "the reason is in the timeline: {shown}"
    );

    let after = call(&fixture);
    let content = &after["structuredContent"];
    assert_eq!(content["operation_id"], json!(id), "{after}");
    assert_eq!(content["retryable"], false, "{after}");
    assert_eq!(effects(&database), 1, "it never ran again");
}
