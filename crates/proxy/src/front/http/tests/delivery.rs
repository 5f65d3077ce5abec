//! Whether an answer reached its client, and what proves it.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::support::{Connection, Message, Proxy, modern, post, post_modern, request};
use crate::wire::Handed;

const PROGRESS: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#;

fn call(id: u64) -> Value {
    request(id, "tools/call", json!({"name": "send"}))
}

async fn called(proxy: &mut Proxy, connection: &mut Connection) -> Message {
    connection.send(post(&[], &call(1)));
    proxy.message().await
}

#[tokio::test]
async fn i5_an_answer_whose_client_left_before_it_is_gone() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let message = called(&mut proxy, &mut connection).await;
    connection.close().await;
    assert_eq!(proxy.disconnected().await, message.ticket);
    assert_eq!(message.result(json!({})).await, Handed::Gone);

    // The same on a stream.
    let mut connection = proxy.connect().await;
    let body = modern(1, "tools/call", json!({"name": "send"}));
    let pending = connection.send(post_modern(&[], &body));
    let message = proxy.message().await;
    message.tell(PROGRESS).await;
    let mut events = pending.stream().await;
    assert!(events.next().await.is_some());
    connection.close().await;
    assert_eq!(proxy.disconnected().await, message.ticket);
    assert_eq!(message.result(json!({})).await, Handed::Gone);
    proxy.assert_quiet();
}

#[tokio::test]
async fn i5_an_answer_that_was_taken_is_over_whatever_comes_then() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let pending = connection.send(post(&[], &call(1)));
    let message = proxy.message().await;
    assert_eq!(message.result(json!({})).await, Handed::Over);
    assert_eq!(pending.got().await.status, 200);
    connection.close().await;
    // A second answer finds nobody, and nobody left before the first.
    assert_eq!(message.result(json!({})).await, Handed::Gone);
    let mut other = proxy.connect().await;
    let pending = other.send(post(&[], &call(2)));
    proxy.message().await.result(json!({})).await;
    assert_eq!(pending.got().await.status, 200);
    proxy.assert_quiet();
}

#[tokio::test]
async fn i5_a_large_answer_that_breaks_off_in_the_middle_is_gone() {
    let mut proxy = Proxy::start().await;
    for accept in ["application/json", "text/event-stream"] {
        let mut connection = proxy.connect().await;
        let pending = connection.send(post(&[("accept", accept)], &call(1)));
        let message = proxy.message().await;
        // More than any buffer on the way holds.
        let answer = tokio::spawn(async move {
            let large = "x".repeat(16 << 20);
            message.result(json!({"text": large})).await
        });
        let response = pending.response().await;
        assert_eq!(response.status(), 200);
        drop(response);
        connection.close().await;
        assert_eq!(answer.await.unwrap(), Handed::Gone, "{accept}");
    }
}

#[tokio::test]
async fn i5_a_large_answer_that_is_read_is_over() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let pending = connection.send(post(&[], &call(1)));
    let message = proxy.message().await;
    let large = json!("x".repeat(3 << 20));
    let (handed, got) = tokio::join!(message.result(large.clone()), pending.got());
    assert_eq!(handed, Handed::Over);
    assert_eq!(got.json()["result"], large);
}

#[tokio::test]
async fn i5_requests_of_one_connection_share_a_channel_and_no_others_do() {
    let mut proxy = Proxy::start().await;
    let mut channels = HashSet::new();
    for _ in 0..3 {
        let mut connection = proxy.connect().await;
        let mut own = HashSet::new();
        for id in 0..3 {
            connection.ready().await;
            let pending = connection.send(post(&[], &call(id)));
            let message = proxy.message().await;
            own.insert(message.channel);
            message.result(json!({})).await;
            assert_eq!(pending.got().await.status, 200);
        }
        assert_eq!(own.len(), 1);
        channels.extend(own);
        connection.close().await;
    }
    assert_eq!(channels.len(), 3);
}

#[tokio::test]
async fn i5_requests_of_one_session_share_a_channel_whatever_their_connections() {
    let mut proxy = Proxy::start().await;
    let mut channels = HashSet::new();
    for sessions in 1..=2 {
        let mut connection = proxy.connect().await;
        let (name, _) = proxy.initialize(&mut connection).await;
        for id in 0..2 {
            let mut connection = proxy.connect().await;
            let session = [("mcp-session-id", name.as_str())];
            let pending = connection.send(post(&session, &call(id)));
            let message = proxy.message().await;
            channels.insert(message.channel);
            message.result(json!({})).await;
            assert_eq!(pending.got().await.status, 200);
            connection.close().await;
        }
        assert_eq!(channels.len(), sessions);
    }
}

#[tokio::test]
async fn i5_where_a_later_request_proves_nothing_each_has_a_channel_of_its_own() {
    let mut proxy = Proxy::start().await;
    let mut channels = HashSet::new();
    let mut connection = proxy.connect().await;
    for name in ["forwarded", "via", "x-forwarded-for", "x-real-ip"] {
        for id in 0..2 {
            connection.ready().await;
            let pending = connection.send(post(&[(name, "1.1 somebody")], &call(id)));
            let message = proxy.message().await;
            channels.insert(message.channel);
            message.result(json!({})).await;
            assert_eq!(pending.got().await.status, 200);
        }
    }
    assert_eq!(channels.len(), 8);

    let mut multiplexed = proxy.connect_h2().await;
    for id in 0..2 {
        let mut request = post(&[], &call(id));
        *request.uri_mut() = "http://localhost/mcp".parse().unwrap();
        multiplexed.ready().await.unwrap();
        let pending = tokio::spawn(multiplexed.send_request(request));
        let message = proxy.message().await;
        channels.insert(message.channel);
        assert_eq!(message.result(json!({})).await, Handed::Over);
        assert_eq!(pending.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(channels.len(), 10);
}

#[tokio::test]
async fn i5_a_request_that_is_given_up_on_a_living_connection_has_gone() {
    let mut proxy = Proxy::start().await;
    let mut multiplexed = proxy.connect_h2().await;
    let mut request = post(&[], &call(1));
    *request.uri_mut() = "http://localhost/mcp".parse().unwrap();
    let pending = tokio::spawn(multiplexed.send_request(request));
    let message = proxy.message().await;
    pending.abort();
    assert_eq!(proxy.disconnected().await, message.ticket);
    assert_eq!(message.result(json!({})).await, Handed::Gone);
}

#[tokio::test]
async fn a_batch_whose_client_leaves_is_left_as_a_whole() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    connection.send(post(&[], &json!([call(1), call(2)])));
    let (first, second) = (proxy.message().await, proxy.message().await);
    let answered = {
        let client = std::sync::Arc::clone(&first.client);
        let ticket = first.ticket;
        let text = json!({"jsonrpc": "2.0", "id": 1, "result": {}}).to_string();
        tokio::spawn(async move { client.answer(ticket, text.into()).await })
    };
    // It is not handed over alone.
    connection.close().await;
    let mut left = HashSet::from([proxy.disconnected().await]);
    if !left.contains(&second.ticket) {
        left.insert(proxy.disconnected().await);
    }
    assert!(left.contains(&second.ticket));
    assert_eq!(answered.await.unwrap(), Handed::Gone);
    assert_eq!(second.result(json!({})).await, Handed::Gone);
}

#[tokio::test]
async fn credentials_stay_here() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let headers = [
        ("authorization", "Bearer secret-1"),
        ("cookie", "secret-2"),
        ("idempotency-key", "secret-3"),
        ("mcp-param-region", "=?base64?esO8cmljaA==?="),
        ("mcp-param-n", "4"),
        ("mcp-session-id", "secret-4"),
    ];
    let body = modern(1, "tools/call", json!({"name": "send"}));
    connection.send(post_modern(&headers, &body));
    let message = proxy.message().await;
    assert!(message.principal.starts_with("bearer-"));
    let expected = [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "send"),
        ("mcp-param-region", "=?base64?esO8cmljaA==?="),
        ("mcp-param-n", "4"),
    ];
    let got = message.headers.iter();
    let got: Vec<_> = got.map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(got, expected);
}
