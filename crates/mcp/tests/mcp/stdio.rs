use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use counterfoil_mcp::Limits;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, duplex},
    task::JoinHandle,
};

use crate::support::{MODERN, Server};

struct Pipe {
    input: DuplexStream,
    output: Lines<BufReader<DuplexStream>>,
    serving: JoinHandle<std::io::Result<()>>,
}

fn open(server: &Server) -> Pipe {
    let (input, reader) = duplex(1 << 21);
    let (writer, output) = duplex(1 << 21);
    let (endpoint, caller) = (server.endpoint.clone(), server.stage.caller("local"));
    Pipe {
        input,
        output: BufReader::new(output).lines(),
        serving: tokio::spawn(async move { endpoint.serve_stdio(caller, reader, writer).await }),
    }
}

impl Pipe {
    async fn say(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).await.unwrap();
        self.input.write_all(b"\n").await.unwrap();
    }

    async fn send(&mut self, id: u32, key: &str, arguments: Value) {
        let mut arguments = arguments;
        arguments["idempotency_key"] = json!(key);
        let params = json!({"name": "send", "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        self.say(&call.to_string()).await;
    }

    async fn hear(&mut self) -> Value {
        let line = self.output.next_line().await.unwrap().expect("a line");
        serde_json::from_str(&line).unwrap()
    }

    /// Ends the client's side; what else was said.
    async fn end(mut self) -> Vec<Value> {
        drop(self.input);
        let mut said = Vec::new();
        while let Some(line) = self.output.next_line().await.unwrap() {
            said.push(serde_json::from_str(&line).unwrap());
        }
        self.serving.await.unwrap().unwrap();
        said
    }
}

#[tokio::test]
async fn both_eras_are_served_on_one_pipe() {
    let server = Server::new();
    let mut pipe = open(&server);
    pipe.say(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#).await;
    assert_eq!(
        pipe.hear().await["result"]["protocolVersion"],
        json!("2025-11-25")
    );
    pipe.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
        .await;
    pipe.say("").await;
    pipe.send(1, "k", json!({})).await;
    assert_eq!(
        pipe.hear().await["result"]["structuredContent"]["count"],
        json!(1)
    );
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}});
    let discover =
        json!({"jsonrpc": "2.0", "id": 2, "method": "server/discover", "params": {"_meta": meta}});
    pipe.say(&discover.to_string()).await;
    assert_eq!(
        pipe.hear().await["result"]["supportedVersions"],
        json!([MODERN])
    );
    // Without what the newer era demands.
    pipe.say(r#"{"jsonrpc":"2.0","id":3,"method":"server/discover"}"#)
        .await;
    assert_eq!(pipe.hear().await["error"]["code"], json!(-32602));
    assert_eq!(pipe.end().await, Vec::<Value>::new());
}

#[tokio::test]
async fn what_is_no_message_is_refused_and_the_pipe_goes_on() {
    let server = Server::with(|builder| {
        let mut limits = Limits::default();
        limits.framing.message_bytes_max = 1024;
        builder.limits(limits)
    });
    let mut pipe = open(&server);
    for (text, code) in [
        ("{".to_owned(), -32700),
        (format!("\"{}\"", "x".repeat(4096)), -32600),
        ("[]".to_owned(), -32600),
        (
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#.to_owned(),
            -32600,
        ),
    ] {
        pipe.say(&text).await;
        assert_eq!(pipe.hear().await["error"]["code"], json!(code), "{text}");
    }
    pipe.say(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
        .await;
    assert_eq!(
        pipe.hear().await,
        json!({"jsonrpc": "2.0", "id": 1, "result": {}})
    );
    pipe.end().await;
}

#[tokio::test]
async fn calls_run_side_by_side_even_under_one_id() {
    let server = Server::new();
    let mut pipe = open(&server);
    pipe.send(1, "k-1", json!({"hold": true})).await;
    server.holds().await;
    pipe.send(1, "k-2", json!({})).await;
    assert_eq!(
        pipe.hear().await["result"]["structuredContent"]["count"],
        json!(2)
    );
    server.stage.gate.add_permits(1);
    assert_eq!(
        pipe.hear().await["result"]["structuredContent"]["count"],
        json!(1)
    );
    pipe.end().await;
}

#[tokio::test]
async fn a_cancel_stops_the_wait_and_the_operation_goes_on() {
    let server = Server::new();
    let mut pipe = open(&server);
    pipe.send(1, "k", json!({"hold": true})).await;
    server.holds().await;
    pipe.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"bored"}}"#).await;
    pipe.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}"#)
        .await;
    // The cancel is read before this, so what comes next is not the cancelled call's.
    pipe.say(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#)
        .await;
    assert_eq!(pipe.hear().await["id"], json!(2));
    server.stage.gate.add_permits(1);
    // A retry gets the answer, as soon as it is there.
    loop {
        pipe.send(3, "k", json!({"hold": true})).await;
        let heard = pipe.hear().await;
        assert_eq!(heard["id"], json!(3));
        if heard["result"]["structuredContent"]["code"] != json!("idempotency_in_progress") {
            assert_eq!(heard["result"]["structuredContent"]["count"], json!(1));
            break;
        }
    }
    assert_eq!(pipe.end().await, Vec::<Value>::new());
    assert_eq!(server.sent(), 1);
}

#[tokio::test]
async fn at_the_end_what_is_under_way_is_still_answered() {
    let server = Server::new();
    let mut pipe = open(&server);
    pipe.send(1, "k", json!({"hold": true})).await;
    server.holds().await;
    let gate = server.stage.gate.clone();
    let ending = tokio::spawn(pipe.end());
    gate.add_permits(1);
    let said = ending.await.unwrap();
    assert_eq!(said.len(), 1);
    assert_eq!(said[0]["result"]["structuredContent"]["count"], json!(1));
}

#[tokio::test(start_paused = true)]
async fn field_13_the_end_is_not_waited_for_without_bound() {
    let server = Server::new();
    let mut pipe = open(&server);
    pipe.send(1, "k", json!({"hold": true})).await;
    server.holds().await;
    let started = tokio::time::Instant::now();
    assert_eq!(pipe.end().await, Vec::<Value>::new());
    assert!(started.elapsed() >= Duration::from_secs(10));
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn i4_a_credential_withdrawn_during_the_connection_is_good_for_nothing() {
    let server = Server::new();
    let mut pipe = open(&server);
    pipe.send(1, "k", json!({})).await;
    pipe.hear().await;
    server
        .stage
        .authorized
        .store(false, std::sync::atomic::Ordering::SeqCst);
    for key in ["k", "k-2"] {
        pipe.send(2, key, json!({})).await;
        let heard = pipe.hear().await;
        assert_eq!(
            heard["result"]["structuredContent"]["code"],
            json!("unauthorized")
        );
    }
    assert_eq!(server.sent(), 1);
    pipe.end().await;
}

#[tokio::test]
async fn every_request_on_a_pipe_is_counted() {
    let left = Arc::new(AtomicU64::new(2));
    let server = Server::with(|builder| {
        let left = Arc::clone(&left);
        builder.limiter(move |_| {
            let take = |n: u64| n.checked_sub(1);
            let taken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
            taken.map(|_| ()).map_err(|_| Duration::from_secs(1))
        })
    });
    let mut pipe = open(&server);
    for id in 1..=2 {
        pipe.send(id, &id.to_string(), json!({})).await;
        assert_eq!(pipe.hear().await["result"]["isError"], json!(false));
    }
    pipe.send(3, "3", json!({})).await;
    let facts = pipe.hear().await["result"]["structuredContent"].clone();
    assert_eq!(facts["code"], json!("rate_limited"));
    assert_eq!(facts["retry_after_ms"], json!(1000));
    pipe.say(r#"{"jsonrpc":"2.0","id":4,"method":"ping"}"#)
        .await;
    assert_eq!(
        pipe.hear().await["error"]["data"]["code"],
        json!("rate_limited")
    );
    // The key was not used up.
    left.store(1, Ordering::SeqCst);
    pipe.send(3, "3", json!({})).await;
    assert_eq!(pipe.hear().await["result"]["isError"], json!(false));
    assert_eq!(server.sent(), 3);
}

#[tokio::test]
async fn a_cancel_right_behind_its_call_is_heeded() {
    let server = Server::new();
    let mut pipe = open(&server);
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"send","arguments":{"idempotency_key":"k"}}}"#;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    pipe.say(&format!("{call}\n{cancel}")).await;
    pipe.say(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#)
        .await;
    assert_eq!(pipe.hear().await["id"], json!(2));
    assert_eq!(pipe.end().await, Vec::<Value>::new());
}
