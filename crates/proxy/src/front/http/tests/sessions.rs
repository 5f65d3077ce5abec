//! Sessions: whose they are, how they begin, and how they end.

use std::{sync::Arc, time::Duration};

use counterfoil_core::PrincipalId;
use http::{Method, Request};
use serde_json::{Value, json};

use super::support::{
    Connection, Event, MODERN, Message, Proxy, delete, front, get, modern, plain, post,
    post_modern, request, settings,
};
use crate::wire::Handed;

fn list(id: u64) -> Value {
    request(id, "tools/list", json!({}))
}

async fn answered(
    proxy: &mut Proxy,
    connection: &mut Connection,
    request: Request<axum::body::Body>,
) -> Message {
    connection.ready().await;
    let pending = connection.send(request);
    let message = proxy.message().await;
    message.result(json!({})).await;
    assert_eq!(pending.got().await.status, 200);
    message
}

#[tokio::test]
async fn each_handshake_opens_a_session_of_its_own() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let (one, first) = proxy.initialize(&mut connection).await;
    connection.ready().await;
    let (two, second) = proxy.initialize(&mut connection).await;
    assert_ne!(first, second);
    assert_ne!(one, two);
    assert_eq!(one.len(), 32);
    for (name, number) in [(&one, first), (&two, second), (&one, first)] {
        for version in ["2025-11-25", "2026-01-15"] {
            let headers = [
                ("mcp-session-id", name.as_str()),
                ("mcp-protocol-version", version),
            ];
            let message = answered(&mut proxy, &mut connection, post(&headers, &list(5))).await;
            assert_eq!(message.conversation, number);
            let note = json!({"jsonrpc": "2.0", "method": "notifications/x"});
            assert_eq!(connection.ask(post(&headers, &note)).await.status, 202);
            assert_eq!(proxy.message().await.conversation, number);
        }
    }
    // Another handshake in a session is another session.
    let headers = [("mcp-session-id", one.as_str())];
    let again = post(&headers, &request(1, "initialize", json!({})));
    let message = answered(&mut proxy, &mut connection, again).await;
    assert_eq!(message.conversation, 2);
}

#[tokio::test]
async fn outside_of_sessions_a_principal_has_one_conversation() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let (name, _) = proxy.initialize(&mut connection).await;
    let session = ("mcp-session-id", name.as_str());
    let unknown = ("mcp-session-id", "unknown");
    let newer = modern(1, "tools/list", json!({}));
    for request in [
        post_modern(&[], &newer),
        // The newer era knows no sessions, whatever it is told of them.
        post_modern(&[session], &newer),
        post_modern(&[unknown], &newer),
        post(&[], &list(1)),
        post(&[], &request(1, "server/discover", json!({}))),
    ] {
        let message = answered(&mut proxy, &mut connection, request).await;
        assert_eq!(
            (message.principal.as_str(), message.conversation),
            ("local", 1)
        );
    }
    let other = post_modern(&[("authorization", "Bearer b")], &newer);
    let message = answered(&mut proxy, &mut connection, other).await;
    assert_eq!(message.conversation, 2);
}

#[tokio::test]
async fn i4_a_session_is_found_by_its_own_principal_only() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let (name, number) = proxy.initialize(&mut connection).await;
    let own = ("mcp-session-id", name.as_str());
    let eve = ("authorization", "Bearer eve");
    for headers in [
        &[own, eve][..],
        &[("mcp-session-id", "0")],
        &[("mcp-session-id", "")],
    ] {
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let got = connection
                .ask(plain(method, headers, list(1).to_string().into()))
                .await;
            assert_eq!(got.status, 404, "{headers:?}");
            assert_eq!(got.json()["error"]["data"]["code"], json!("not_found"));
        }
        let note = json!({"jsonrpc": "2.0", "method": "notifications/x"});
        assert_eq!(connection.ask(post(headers, &note)).await.status, 404);
        assert_eq!(
            connection.ask(post(headers, &json!([note]))).await.status,
            404
        );
    }
    proxy.assert_quiet();
    let message = answered(&mut proxy, &mut connection, post(&[own], &list(1))).await;
    assert_eq!(message.conversation, number);
}

#[tokio::test]
async fn a_session_ends_when_its_client_says_so_and_its_answers_still_come() {
    let mut proxy = Proxy::start().await;
    let (mut one, mut two) = (proxy.connect().await, proxy.connect().await);
    let (name, number) = proxy.initialize(&mut one).await;
    let headers = [("mcp-session-id", name.as_str())];
    one.ready().await;
    let pending = one.send(post(&headers, &list(1)));
    let message = proxy.message().await;
    proxy.may_end.forget_permits(1);
    let got = two.ask(delete(&headers)).await;
    assert_eq!((got.status.as_u16(), got.text.as_str()), (204, ""));
    assert_eq!(proxy.ended().await, number);
    assert_eq!(two.ask(post(&headers, &list(2))).await.status, 404);
    assert_eq!(two.ask(delete(&headers)).await.status, 404);
    assert_eq!(two.ask(get(&name)).await.status, 404);
    assert_eq!(message.result(json!({})).await, Handed::Over);
    assert_eq!(pending.got().await.status, 200);

    assert_eq!(two.ask(delete(&[])).await.status, 400);
    let newer = [headers[0], ("mcp-protocol-version", MODERN)];
    let got = two.ask(delete(&newer)).await;
    assert_eq!(
        (got.status.as_u16(), &got.headers["allow"]),
        (405, &"POST".parse().unwrap())
    );
    proxy.assert_quiet();
}

#[tokio::test]
async fn who_waits_when_a_session_is_over_is_told_so() {
    let mut proxy = Proxy::start().await;
    let (mut one, mut two) = (proxy.connect().await, proxy.connect().await);
    let (name, number) = proxy.initialize(&mut one).await;
    let headers = [("mcp-session-id", name.as_str())];
    one.ready().await;
    let pending = one.send(post(&headers, &list(2)));
    let message = proxy.message().await;
    assert_eq!(two.ask(delete(&headers)).await.status, 204);
    assert_eq!(proxy.ended().await, number);
    let got = pending.got().await;
    assert_eq!(
        (got.refusal(), &got.json()["id"]),
        ((200, -32603), &json!(2))
    );
    assert_eq!(message.result(json!({})).await, Handed::Gone);
    // Its client did not go away.
    proxy.assert_quiet();
}

#[tokio::test]
async fn a_handshake_that_fails_leaves_no_session() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let initialize = || post(&[], &request(1, "initialize", json!({})));
    let pending = connection.send(initialize());
    proxy.message().await.error(-32602).await;
    let got = pending.got().await;
    assert_eq!(got.refusal(), (200, -32602));
    assert!(!got.headers.contains_key("mcp-session-id"));
    assert_eq!(proxy.ended().await, 0);

    // Nor does one whose client is gone.
    connection.ready().await;
    connection.send(initialize());
    let message = proxy.message().await;
    connection.close().await;
    let mut ended = Vec::new();
    for _ in 0..2 {
        match proxy.event().await {
            Event::Ended(number) => ended.push(number),
            Event::Disconnected(ticket) => assert_eq!(ticket, message.ticket),
            Event::Received(message) => panic!("{}", message.json()),
        }
    }
    assert_eq!(ended, [1]);
    assert_eq!(proxy.front.shared.seats.len(), 0);
}

#[tokio::test]
async fn a_handshake_may_be_a_stream() {
    let mut proxy = Proxy::bounded(|bounds| bounds.quiet_for = Duration::ZERO).await;
    let mut connection = proxy.connect().await;
    let pending = connection.send(post(&[], &request(1, "initialize", json!({}))));
    let message = proxy.message().await;
    let response = pending.response().await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let name = response.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(message.result(json!({})).await, Handed::Over);
    drop(response);
    connection.close().await;
    let mut other = proxy.connect().await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/x"});
    let headers = [("mcp-session-id", name.as_str())];
    assert_eq!(other.ask(post(&headers, &note)).await.status, 202);
    assert_eq!(proxy.message().await.conversation, message.conversation);
}

#[tokio::test]
async fn the_longest_idle_session_makes_room() {
    let mut proxy = Proxy::bounded(|bounds| bounds.sessions_max = 2).await;
    let (mut one, mut two) = (proxy.connect().await, proxy.connect().await);
    let (oldest, first) = proxy.initialize(&mut one).await;
    two.ready().await;
    let (_, second) = proxy.initialize(&mut two).await;
    let headers = [("mcp-session-id", oldest.as_str())];
    answered(&mut proxy, &mut one, post(&headers, &list(1))).await;
    // The second one has been idle for longer now, and the first has something under way.
    one.ready().await;
    let pending = one.send(post(&headers, &list(2)));
    let message = proxy.message().await;
    two.ready().await;
    let third = two.send(post_modern(&[], &modern(3, "tools/list", json!({}))));
    let (mut ended, mut received) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        match proxy.event().await {
            Event::Ended(number) => ended.push(number),
            Event::Received(message) => received.push(message),
            Event::Disconnected(ticket) => panic!("{ticket:?} was left"),
        }
    }
    assert_eq!(ended, [second]);
    let mut three = proxy.connect().await;
    let refused = three
        .ask(post(&[], &request(1, "initialize", json!({}))))
        .await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["data"]["code"], json!("busy"));
    assert_eq!(message.conversation, first);
    message.result(json!({})).await;
    received[0].result(json!({})).await;
    assert_eq!(pending.got().await.status, 200);
    assert_eq!(third.got().await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_end_unless_somebody_listens_or_waits() {
    let minutes = |n: u64| tokio::time::sleep(Duration::from_secs(60 * n));
    let (front, mut events, _) = front(&settings(), |_| {}).unwrap();
    let _routes = front.router();
    let seats = &front.shared.seats;
    let local = PrincipalId::new("local").unwrap();
    let (_, idle) = seats.named(&local).unwrap();
    let (_, listening) = seats.named(&local).unwrap();
    let (_, waiting) = seats.named(&local).unwrap();
    let (name, used) = seats.named(&local).unwrap();
    let (number, _, _said) = listening.seat().peer.listen().unwrap();
    let listens = Arc::clone(listening.seat());
    drop((idle, listening, used));
    minutes(29).await;
    assert_eq!(seats.len(), 4);
    drop(seats.find(&name, &local).unwrap());
    minutes(2).await;
    assert_eq!(seats.len(), 3);
    assert!(matches!(events.recv().await, Some(Event::Ended(0))));
    minutes(29).await;
    assert!(matches!(events.recv().await, Some(Event::Ended(3))));
    minutes(600).await;
    assert_eq!(seats.len(), 2);
    listens.peer.unlisten(number);
    drop(waiting);
    minutes(1).await;
    assert!(matches!(events.recv().await, Some(Event::Ended(1))));
    minutes(30).await;
    assert!(matches!(events.recv().await, Some(Event::Ended(2))));
    assert_eq!(seats.len(), 0);
}

#[tokio::test]
async fn a_front_that_stops_finishes_what_is_under_way_and_ends_every_session() {
    let mut proxy = Proxy::start().await;
    let (mut one, mut two) = (proxy.connect().await, proxy.connect().await);
    let (name, number) = proxy.initialize(&mut one).await;
    let mut stream = two.send(get(&name)).stream().await;
    let headers = [("mcp-session-id", name.as_str())];
    one.ready().await;
    let pending = one.send(post(&headers, &list(2)));
    let message = proxy.message().await;
    proxy.front.stop();
    assert_eq!(stream.next().await, None);
    let mut three = proxy.connect().await;
    let initialize = post(&[], &request(1, "initialize", json!({})));
    assert_eq!(three.ask(initialize).await.status, 503);
    assert_eq!(three.ask(get(&name)).await.status, 503);
    assert_eq!(message.result(json!({})).await, Handed::Over);
    assert_eq!(pending.got().await.status, 200);
    assert_eq!(proxy.stop().await.cut, 0);
    proxy.front.end().await;
    assert_eq!(proxy.ended().await, number);
    assert_eq!(proxy.front.shared.seats.len(), 0);
}
