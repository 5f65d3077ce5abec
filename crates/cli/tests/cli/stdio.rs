use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
};

use serde_json::{Value, json};

use crate::process::{Finished, Place};

/// Sends the messages, closes standard input, and reads every answer.
fn talk(place: &Place, messages: &[Value]) -> Vec<Value> {
    let mut command = place.command(&["mcp", "--stdio", "--data"]);
    let mut child = command
        .arg(place.data())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for message in messages {
        writeln!(input, "{message}").unwrap();
    }
    drop(input);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let answers = lines
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    assert!(child.wait().unwrap().success());
    answers
}

fn call(id: u32, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": "create_note", "arguments": arguments}})
}

#[test]
fn a_command_serves_one_client_without_a_server() {
    let place = Place::new();
    let arguments = json!({"body": "hello", "idempotency_key": "k"});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let answers = talk(&place, &[hello, ready, call(2, &arguments)]);
    assert_eq!(answers.len(), 2, "{answers:?}");
    let made = answers.iter().find(|answer| answer["id"] == 2).unwrap();
    assert_eq!(made["result"]["isError"], false, "{made}");
    // Another process, another conversation, the same key.
    let again = talk(&place, &[call(1, &arguments)]);
    let meta = &again[0]["result"]["_meta"];
    assert_eq!(meta["dev.counterfoil/replayed"], true, "{again:?}");
    assert_eq!(again[0]["result"]["content"], made["result"]["content"]);
    // And what it made is there over REST.
    let server = place.serve();
    let list = server.get(&place.agent_key(), "/api/v1/notes").json();
    assert_eq!(list["notes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_key_that_is_not_valid_stops_it() {
    let place = Place::new();
    place.serve().kill();
    std::fs::write(place.path("other-key"), "cfk_nonsense\n").unwrap();
    let said = place
        .run(&["mcp", "--stdio", "--agent-key-file", "other-key"])
        .fails(3);
    assert!(said.contains("not valid"), "{said}");
    assert!(!said.contains("cfk_nonsense"));
    let output = place.command(&["mcp"]).output().unwrap();
    assert_eq!(Finished(output).0.status.code(), Some(2));
}
