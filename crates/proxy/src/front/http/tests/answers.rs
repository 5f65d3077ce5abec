use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::Method;
use serde_json::{Value, json};

use super::support::{Proxy, modern, plain, post, post_modern, request};
use crate::wire::Handed;

const PROGRESS: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":0.50}}"#;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// One request of either era.
fn either(is_modern: bool, id: u64, method: &str) -> http::Request<Body> {
    if is_modern {
        post_modern(&[], &modern(id, method, json!({})))
    } else {
        post(&[], &request(id, method, json!({})))
    }
}

#[tokio::test]
async fn an_answer_is_one_document_as_it_was_spelled() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    for is_modern in [false, true] {
        connection.ready().await;
        let pending = connection.send(either(is_modern, 7, "tools/list"));
        let message = proxy.message().await;
        assert_eq!(message.json()["method"], "tools/list");
        let text = r#"{ "result" : {"n":1.0e0, "x":"ä"}, "id":7, "jsonrpc":"2.0" }"#;
        assert_eq!(message.answer_text(text).await, Handed::Over);
        let got = pending.got().await;
        assert_eq!((got.status.as_u16(), got.text.as_str()), (200, text));
        assert_eq!(got.headers["content-type"], "application/json");
        assert_eq!(got.headers["content-length"], text.len().to_string());
        assert!(!got.headers.contains_key("mcp-session-id"));
    }
    proxy.assert_quiet();
}

#[tokio::test]
async fn what_comes_before_the_answer_makes_it_a_stream() {
    let mut proxy = Proxy::start().await;
    for is_modern in [false, true] {
        let mut connection = proxy.connect().await;
        let pending = connection.send(either(is_modern, 7, "tools/call"));
        let message = proxy.message().await;
        message.tell(PROGRESS).await;
        let mut events = pending.stream().await;
        assert_eq!(events.next().await, Some(parsed(PROGRESS)));
        message.tell(PROGRESS).await;
        assert_eq!(events.next().await, Some(parsed(PROGRESS)));
        assert_eq!(message.result(json!({"ok": true})).await, Handed::Over);
        assert_eq!(events.next().await.unwrap()["result"]["ok"], json!(true));
        assert_eq!(events.next().await, None);
        // The connection goes on.
        connection.ready().await;
        let pending = connection.send(either(is_modern, 8, "tools/list"));
        proxy.message().await.result(json!({})).await;
        assert_eq!(pending.got().await.json()["id"], json!(8));
    }
    proxy.assert_quiet();
}

#[tokio::test]
async fn line_ends_between_tokens_do_not_break_an_event() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let accept = ("accept", "text/event-stream");
    let pending = connection.send(post(&[accept], &request(1, "tools/list", json!({}))));
    let message = proxy.message().await;
    let text = "{\n\"jsonrpc\": \"2.0\",\r\n\r\"id\": 1, \"result\": {\"a\":\n\n\"b\\nc\"}}";
    message.answer_text(text).await;
    let mut events = pending.stream().await;
    assert_eq!(events.next().await, Some(parsed(text)));
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn a_client_gets_no_form_that_it_does_not_take() {
    let mut proxy = Proxy::bounded(|bounds| bounds.quiet_for = Duration::ZERO).await;
    let mut connection = proxy.connect().await;
    for accept in ["application/json", "*/*"] {
        let list = post(&[("accept", accept)], &request(1, "tools/list", json!({})));
        connection.ready().await;
        let pending = connection.send(list);
        let message = proxy.message().await;
        message.tell(PROGRESS).await;
        message.result(json!({})).await;
        let got = pending.got().await;
        assert_eq!(got.headers["content-type"], "application/json");
        assert_eq!(got.json()["id"], json!(1));
    }
    let list = post(&[("accept", "text/html")], &request(1, "x", json!({})));
    assert_eq!(connection.ask(list).await.status, 406);
}

#[tokio::test]
async fn after_a_silence_the_stream_begins_and_shows_that_it_stands() {
    let mut proxy = Proxy::bounded(|bounds| {
        bounds.quiet_for = Duration::from_millis(20);
        bounds.beat_every = Duration::from_millis(20);
    })
    .await;
    let mut connection = proxy.connect().await;
    let pending = connection.send(either(true, 7, "tools/call"));
    let message = proxy.message().await;
    let mut events = pending.stream().await;
    for _ in 0..2 {
        assert!(events.block().await.unwrap().starts_with(": "));
    }
    assert_eq!(message.error(-32601).await, Handed::Over);
    assert_eq!(events.next().await.unwrap()["error"]["code"], json!(-32601));
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn errors_have_their_status_in_the_newer_era_only() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    for (code, status) in [
        (-32601, 404),
        (-32020, 400),
        (-32021, 400),
        (-32022, 400),
        (-32600, 400),
        (-32700, 400),
        (-32602, 200),
        (-32603, 200),
        (-31001, 200),
    ] {
        for (is_modern, status) in [(true, status), (false, 200)] {
            connection.ready().await;
            let pending = connection.send(either(is_modern, 7, "tools/call"));
            proxy.message().await.error(code).await;
            assert_eq!(pending.got().await.refusal(), (status, code));
        }
    }
    // What the revision demands was not there.
    let bare = request(7, "tools/list", json!({}));
    let list = post_modern(&[], &bare);
    connection.ready().await;
    let pending = connection.send(list);
    proxy.message().await.error(-32602).await;
    assert_eq!(pending.got().await.refusal(), (400, -32602));
}

#[tokio::test]
async fn what_wants_no_answer_is_accepted() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    for body in [
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": "s-1", "result": {"roots": []}}),
        json!({"jsonrpc": "2.0", "id": 3, "error": {"code": -1, "message": "no"}}),
    ] {
        let got = connection.ask(post(&[], &body)).await;
        assert_eq!((got.status.as_u16(), got.text.as_str()), (202, ""));
        assert_eq!(proxy.message().await.json(), body);
    }
}

#[tokio::test]
async fn a_cancelled_request_hears_nothing_more() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let pending = connection.send(either(false, 7, "tools/call"));
    let message = proxy.message().await;
    message.client.silence(message.ticket);
    let got = pending.got().await;
    assert_eq!((got.status.as_u16(), got.text.as_str()), (202, ""));
    assert_eq!(message.result(json!({})).await, Handed::Gone);

    connection.ready().await;
    let pending = connection.send(either(false, 8, "tools/call"));
    let message = proxy.message().await;
    message.tell(PROGRESS).await;
    let mut events = pending.stream().await;
    message.client.silence(message.ticket);
    message.tell(PROGRESS).await;
    assert_eq!(events.next().await, Some(parsed(PROGRESS)));
    assert_eq!(events.next().await, None);
    // Nobody went away.
    proxy.assert_quiet();
}

#[tokio::test]
async fn batches_belong_to_one_revision_and_are_answered_together() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/x"});
    let batch = json!([
        request(1, "a", json!({})),
        note,
        {"jsonrpc": "1.0"},
        request(2, "b", json!({})),
    ]);
    for headers in [&[][..], &[("mcp-protocol-version", "2025-03-26")]] {
        connection.ready().await;
        let pending = connection.send(post(headers, &batch));
        let first = proxy.message().await;
        assert_eq!(first.json(), batch[0]);
        assert_eq!(proxy.message().await.json(), note);
        let second = proxy.message().await;
        assert_eq!(second.json(), batch[3]);
        // Both are handed over with the response, which waits for both.
        let (second, first) = tokio::join!(second.result(json!(2)), first.result(json!(1)));
        assert_eq!((first, second), (Handed::Over, Handed::Over));
        let got = pending.got().await;
        assert_eq!(got.status, 200);
        let answers = got.json();
        let answers = answers.as_array().unwrap();
        assert_eq!(answers.len(), 3);
        assert_eq!(answers[0]["error"]["code"], json!(-32600));
        for id in [1, 2] {
            let answer = answers.iter().find(|answer| answer["id"] == json!(id));
            assert_eq!(answer.unwrap()["result"], json!(id));
        }
    }
    let got = connection.ask(post(&[], &json!([note]))).await;
    assert_eq!(got.status, 202);
    assert_eq!(proxy.message().await.json(), note);
    for (headers, body) in [
        (&[("mcp-protocol-version", "2025-06-18")][..], batch.clone()),
        (&[("mcp-protocol-version", "2026-07-28")], batch),
        (&[], json!([])),
        (&[], Value::Array(vec![note.clone(); 33])),
    ] {
        let got = connection.ask(post(headers, &body)).await;
        assert_eq!(got.refusal(), (400, -32600));
    }
    proxy.assert_quiet();
}

#[tokio::test]
async fn a_batch_whose_parts_have_news_becomes_a_stream() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let batch = json!([request(1, "a", json!({})), request(2, "b", json!({}))]);
    let pending = connection.send(post(&[], &batch));
    let first = proxy.message().await;
    let second = proxy.message().await;
    let answered = tokio::spawn(async move { first.result(json!(1)).await });
    second.tell(PROGRESS).await;
    let mut events = pending.stream().await;
    second.result(json!(2)).await;
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(event);
    }
    assert_eq!(answered.await.unwrap(), Handed::Over);
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(seen.last().unwrap()["id"], json!(2));
}

#[tokio::test]
async fn what_is_no_message_goes_no_further() {
    let mut proxy = Proxy::start().await;
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("7", -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#, -32600),
    ] {
        let mut connection = proxy.connect().await;
        let request = plain(Method::POST, &[], Body::from(body));
        assert_eq!(
            connection.ask(request).await.refusal(),
            (400, code),
            "{body}"
        );
    }
    let mut connection = proxy.connect().await;
    let text = plain(
        Method::POST,
        &[("content-type", "text/plain")],
        Body::from("{}"),
    );
    assert_eq!(connection.ask(text).await.status, 415);
    let put = plain(Method::PUT, &[], Body::from("{}"));
    assert_eq!(connection.ask(put).await.status, 405);
    proxy.assert_quiet();
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_time() {
    let mut proxy = Proxy::bounded(|bounds| {
        bounds.message_bytes_max = 1000;
        bounds.body_for = Duration::from_millis(50);
    })
    .await;
    for (filler, status) in [(500, 200), (1000, 413)] {
        let mut connection = proxy.connect().await;
        let params = json!({"filler": "x".repeat(filler)});
        let pending = connection.send(post(&[], &request(1, "x", params)));
        if status == 200 {
            proxy.message().await.result(json!({})).await;
        }
        assert_eq!(pending.got().await.status, status);
    }
    let begun = stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from_static(b"{"))]);
    let never = Body::from_stream(futures_util::StreamExt::chain(begun, stream::pending()));
    let mut connection = proxy.connect().await;
    let got = connection.ask(plain(Method::POST, &[], never)).await;
    assert_eq!(got.status, 408);
    proxy.assert_quiet();
}

#[tokio::test]
async fn requests_under_way_are_bounded() {
    let mut proxy = Proxy::bounded(|bounds| bounds.requests_max = 1).await;
    let (mut one, mut two) = (proxy.connect().await, proxy.connect().await);
    let pending = one.send(either(false, 1, "tools/call"));
    let message = proxy.message().await;
    let refused = two.ask(either(false, 2, "tools/call")).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["data"]["code"], json!("busy"));
    assert_eq!(refused.headers["retry-after"], "1");
    message.result(json!({})).await;
    assert_eq!(pending.got().await.status, 200);
    two.ready().await;
    let pending = two.send(either(false, 3, "tools/call"));
    proxy.message().await.result(json!({})).await;
    assert_eq!(pending.got().await.status, 200);
}
