//! The SDKs. Over stdio the command is `counterfoil mcp --stdio`.

use counterfoil_e2e::installed::{Outcomes, python, typescript};
use counterfoil_e2e::{Folder, Server, built};
use serde_json::{Value, json};

use crate::STORE;
use crate::flow;

/// The command that serves one client.
fn stdio(folder: &Folder) -> Value {
    let mut words = vec![json!(built()), json!("mcp"), json!("--stdio")];
    words.extend(folder.words().into_iter().map(Value::from));
    Value::Array(words)
}

/// Through HTTP, then through stdio, each on fresh data.
fn through_both(run: fn(&Value) -> Outcomes, job: &Value, modern: bool) {
    let mut job = job.clone();
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    job["calls"] = flow::calls("key");
    job["url"] = json!(format!("http://{}/mcp", server.address()));
    job["key"] = json!(folder.key());
    flow::check(&run(&job), modern);
    assert_eq!(server.http().notes().len(), flow::NOTES);
    drop(server);

    let folder = Folder::new(STORE);
    Server::start(&folder).stop();
    let members = job.as_object_mut().unwrap();
    members.remove("url");
    members.remove("key");
    job["command"] = stdio(&folder);
    flow::check(&run(&job), modern);
    let server = Server::start(&folder);
    assert_eq!(server.http().notes().len(), flow::NOTES);
}

#[test]
fn typescript_sdk_1() {
    through_both(typescript, &json!({"sdk": "v1"}), false);
}

#[test]
fn typescript_sdk_2() {
    through_both(typescript, &json!({"sdk": "v2", "mode": "auto"}), true);
}

#[test]
fn typescript_sdk_2_as_a_client_of_the_older_revision() {
    through_both(typescript, &json!({"sdk": "v2", "mode": "legacy"}), false);
}

#[test]
fn python_sdk_2() {
    through_both(python, &json!({"mode": "auto"}), true);
}

#[test]
fn python_sdk_2_as_a_client_of_the_older_revision() {
    through_both(python, &json!({"mode": "legacy"}), false);
}

/// A call whose answer was lost with its client is recovered by another client over another
/// transport: the key is what connects them.
#[test]
fn i2_field_12_one_sdk_recovers_what_another_began() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let calls = json!([{
        "tool": "create_note",
        "arguments": {"body": "handed over", "idempotency_key": "handed over"},
    }]);
    let url = format!("http://{}/mcp", server.address());
    let key = folder.key();
    let job = json!({"sdk": "v1", "url": url, "key": key, "calls": calls});
    let first = typescript(&job).outcomes.remove(0);
    server.kill();
    let job = json!({
        "command": stdio(&folder),
        "calls": calls,
    });
    let again = python(&job).outcomes.remove(0);
    flow::same_note(&first, &again);
}
