//! The inspector's command line: each call is a new process.

use std::process::Output;

use counterfoil_e2e::installed::inspector;
use counterfoil_e2e::{Folder, Server, built};
use serde_json::{Value, json};

use crate::STORE;
use crate::flow::same_note;

fn result(done: &Output) -> Value {
    let printed = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "{}\n{printed}\n{errors}",
        done.status
    );
    let result: Value = serde_json::from_str(&printed).expect("a result as JSON");
    json!({"result": result})
}

fn refusal(done: &Output) -> String {
    let printed = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "{printed}");
    format!("{printed}{errors}")
}

fn through(folder: &Folder, target: &[&str]) {
    let ask = |more: &[&str]| {
        let mut command = inspector(folder.root());
        let words = [target, more].concat();
        command.args(words).output().expect("the inspector starts")
    };
    let listed = result(&ask(&["--method", "tools/list"]));
    let tools = listed["result"]["tools"].as_array().expect("tools");
    assert_eq!(tools.len(), 5);
    let create = [
        "--method",
        "tools/call",
        "--tool-name",
        "create_note",
        "--tool-arg",
    ];
    let with = |more: &[&str]| ask(&[&create, more].concat());
    let first = result(&with(&["body=one", "idempotency_key=k"]));
    let again = result(&with(&["body=one", "idempotency_key=k"]));
    same_note(&first, &again);
    let conflict = refusal(&with(&["body=other", "idempotency_key=k"]));
    assert!(
        conflict.contains("reused with different arguments"),
        "{conflict}"
    );
    let missing = refusal(&with(&["body=no key"]));
    assert!(missing.contains("idempotency_key"), "{missing}");
    let meta = [
        "body=by meta",
        "--tool-metadata",
        "dev.counterfoil/idempotency-key=m",
    ];
    let first = result(&with(&meta));
    let again = result(&with(&meta));
    same_note(&first, &again);
}

#[test]
fn inspector_over_http_in_both_eras() {
    for era in ["modern", "legacy"] {
        let folder = Folder::new(STORE);
        let server = Server::start(&folder);
        let url = format!("http://{}/mcp", server.address());
        let key = format!("Authorization: Bearer {}", folder.key());
        let target = [url.as_str(), "--transport", "http", "--header", &key];
        through(
            &folder,
            &[target.as_slice(), &["--protocol-era", era]].concat(),
        );
        assert_eq!(server.http().notes().len(), 2);
    }
}

#[test]
fn inspector_over_stdio() {
    let folder = Folder::new(STORE);
    Server::start(&folder).stop();
    let binary = built().display().to_string();
    let place = folder.words();
    let mut words = vec![binary.as_str(), "mcp", "--stdio"];
    words.extend(place.iter().map(String::as_str));
    through(&folder, &words);
}
