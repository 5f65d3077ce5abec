use counterfoil_mcp::framing::{FramingLimits, Id, Incoming, Message, read};
use serde_json::json;

use crate::support::{ERAS, Era, Server};

#[tokio::test]
async fn malformed_texts_are_refused_and_nothing_is_stored() {
    let call = |arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"send","arguments":{arguments}}}}}"#
        )
    };
    let bomb = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        for (what, body, code) in [
            (
                "duplicate keys",
                call(r#"{"idempotency_key":"k","to":"a","to":"b"}"#),
                -32602,
            ),
            (
                "duplicate keys, escaped",
                call(r#"{"idempotency_key":"k","to":"a","\u0074o":"b"}"#),
                -32602,
            ),
            ("depth bomb", call(&bomb), -32602),
            (
                "lone surrogate",
                call(r#"{"idempotency_key":"\ud800"}"#),
                -32602,
            ),
            (
                "too large a number",
                call(r#"{"idempotency_key":"k","n":1e400}"#),
                -32602,
            ),
            (
                "twice the method",
                r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#.to_owned(),
                -32600,
            ),
            (
                "twice something else",
                r#"{"jsonrpc":"2.0","id":1,"method":"a","x":1,"x":2}"#.to_owned(),
                -32600,
            ),
            ("cut off", r#"{"jsonrpc":"2.0""#.to_owned(), -32700),
            ("two texts", "{}{}".to_owned(), -32700),
            ("not an object", "7".to_owned(), -32600),
            (
                "null as id",
                r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_owned(),
                -32600,
            ),
            (
                "fraction as id",
                r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#.to_owned(),
                -32600,
            ),
            (
                "lone surrogate as id",
                r#"{"jsonrpc":"2.0","id":"\ud800","method":"ping"}"#.to_owned(),
                -32600,
            ),
            (
                "other JSON-RPC",
                r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#.to_owned(),
                -32600,
            ),
            (
                "no method",
                r#"{"jsonrpc":"2.0","id":1}"#.to_owned(),
                -32600,
            ),
            (
                "array as params",
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}"#.to_owned(),
                -32602,
            ),
        ] {
            let got = client.raw(body).await;
            assert_eq!(got.status, 400, "{what}");
            assert_eq!(got.error()["code"], json!(code), "{what}");
        }
        let mut not_utf8 = call(r#"{"idempotency_key":"k","to":"X"}"#).into_bytes();
        let at = not_utf8.iter().position(|byte| *byte == b'X').unwrap();
        not_utf8[at] = 0xff;
        assert_eq!(client.raw(not_utf8).await.error()["code"], json!(-32700));
        assert_eq!((server.sent(), server.store.receipts().len()), (0, 0));
    }
}

#[tokio::test]
async fn a_body_has_its_bound() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let got = client
        .keyed("send", "k", json!({"to": "x".repeat(1 << 20)}))
        .await;
    assert_eq!(got.status, 413);
    assert_eq!(server.sent(), 0);
}

#[tokio::test]
async fn ids_come_back_as_they_were_spelled() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    for id in [
        "7",
        "-1",
        "00000000000000000001",
        "123456789012345678901234567890",
        r#""a\u0062\/""#,
        r#""""#,
    ] {
        let got = client
            .raw(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#))
            .await;
        if id.starts_with("00") {
            // That is no JSON number.
            assert_eq!(got.error()["code"], json!(-32700));
        } else {
            assert_eq!(
                got.text,
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
            );
        }
    }
}

#[test]
fn params_stay_as_they_were_spelled() {
    let text = r#"{"params": {"n": 1.00,  "a":"\u0041"}, "id": "x", "jsonrpc":"2.0", "extra": [1], "method":"tools\/call"}"#;
    let Ok(Incoming::Single(Message::Request(request))) =
        read(text.as_bytes(), FramingLimits::default())
    else {
        panic!("no request");
    };
    assert_eq!(request.method, "tools/call");
    assert_eq!(request.id, Id::from_json(r#""x""#).unwrap());
    assert_eq!(
        request.params.unwrap().get(),
        r#"{"n": 1.00,  "a":"\u0041"}"#
    );
    let response = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    assert!(matches!(
        read(response, FramingLimits::default()),
        Ok(Incoming::Single(Message::Response(_)))
    ));
}
