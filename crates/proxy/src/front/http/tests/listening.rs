//! What the upstream says by itself.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use counterfoil_engine::SystemEntropy;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    super::{
        Bounds,
        names::Names,
        peer::{Form, Peer, Said},
    },
    support::{Events, MODERN, Message, Proxy, get, plain, post, request, settings},
};
use crate::wire::{Client as _, Handed};

fn note(number: u64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"n": number}})
}

fn question(id: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"})
}

/// A session's name, and a message by which it can be talked to.
async fn session(proxy: &mut Proxy) -> (String, Message) {
    let mut connection = proxy.connect().await;
    let (name, _) = proxy.initialize(&mut connection).await;
    let headers = [("mcp-session-id", name.as_str())];
    connection.ready().await;
    assert_eq!(connection.ask(post(&headers, &note(0))).await.status, 202);
    let message = proxy.message().await;
    (name, message)
}

#[tokio::test]
async fn what_nobody_asked_for_comes_on_the_stream_of_a_get() {
    let mut proxy = Proxy::start().await;
    let (name, upstream) = session(&mut proxy).await;
    // What came before is kept.
    upstream.tell_all(&note(1).to_string()).await;
    upstream.tell_all(&question("q-1").to_string()).await;
    let mut connection = proxy.connect().await;
    let mut stream = connection.send(get(&name)).stream().await;
    assert_eq!(stream.next().await, Some(note(1)));
    assert_eq!(stream.next().await, Some(question("q-1")));
    upstream.tell_all(&note(2).to_string()).await;
    assert_eq!(stream.next().await, Some(note(2)));
    proxy.assert_quiet();
}

#[tokio::test]
async fn the_stream_of_a_get_is_better_than_that_of_a_request_and_that_is_better_than_none() {
    let mut proxy = Proxy::start().await;
    let (name, upstream) = session(&mut proxy).await;
    let headers = [("mcp-session-id", name.as_str())];
    let call = request(1, "tools/call", json!({}));
    let mut older = proxy.connect().await;
    let older_answer = older.send(post(&headers, &call));
    let first = proxy.message().await;
    let mut newer = proxy.connect().await;
    let newer_answer = newer.send(post(&headers, &call));
    let second = proxy.message().await;
    // One that takes no stream is passed over.
    let mut plain_json = proxy.connect().await;
    let only_json = [headers[0], ("accept", "application/json")];
    let json_answer = plain_json.send(post(&only_json, &call));
    let third = proxy.message().await;
    upstream.tell_all(&note(1).to_string()).await;
    let mut stream = newer_answer.stream().await;
    assert_eq!(stream.next().await, Some(note(1)));

    let mut listener = proxy.connect().await;
    let mut listening = listener.send(get(&name)).stream().await;
    upstream.tell_all(&note(2).to_string()).await;
    assert_eq!(listening.next().await, Some(note(2)));
    for message in [&first, &second, &third] {
        message.result(json!({})).await;
    }
    assert_eq!(stream.next().await.unwrap()["result"], json!({}));
    assert_eq!(older_answer.got().await.json()["result"], json!({}));
    assert_eq!(json_answer.got().await.json()["result"], json!({}));
}

#[tokio::test]
async fn there_is_one_stream_to_a_session_the_newest() {
    let mut proxy = Proxy::start().await;
    let (name, upstream) = session(&mut proxy).await;
    let (mut one, mut two) = (proxy.connect().await, proxy.connect().await);
    let mut old = one.send(get(&name)).stream().await;
    let mut new = two.send(get(&name)).stream().await;
    assert_eq!(old.next().await, None);
    upstream.tell_all(&note(1).to_string()).await;
    assert_eq!(new.next().await, Some(note(1)));
}

#[tokio::test]
async fn a_get_needs_a_session_and_a_client_that_takes_events() {
    let mut proxy = Proxy::start().await;
    let (name, _) = session(&mut proxy).await;
    let session = ("mcp-session-id", name.as_str());
    let mut connection = proxy.connect().await;
    for (headers, status) in [
        (&[][..], 405),
        (&[("mcp-session-id", "unknown")], 404),
        (&[session, ("mcp-protocol-version", MODERN)], 405),
        (&[session, ("accept", "application/json")], 406),
    ] {
        let got = connection.ask(plain(Method::GET, headers, "".into())).await;
        assert_eq!(got.status, status, "{headers:?}");
    }
}

#[tokio::test]
async fn a_stream_without_news_shows_that_it_stands() {
    let mut proxy = Proxy::bounded(|bounds| bounds.beat_every = Duration::from_millis(10)).await;
    let (name, upstream) = session(&mut proxy).await;
    let mut connection = proxy.connect().await;
    let mut stream: Events = connection.send(get(&name)).stream().await;
    for _ in 0..2 {
        assert!(stream.block().await.unwrap().starts_with(": "));
    }
    upstream.tell_all(&note(1).to_string()).await;
    assert_eq!(stream.next().await, Some(note(1)));
}

#[tokio::test]
async fn a_question_that_reaches_nobody_is_refused_after_a_while() {
    let mut proxy = Proxy::bounded(|bounds| bounds.kept_for = Duration::from_millis(20)).await;
    let (name, upstream) = session(&mut proxy).await;
    upstream.tell_all(&note(1).to_string()).await;
    upstream.tell_all(&question("q-1").to_string()).await;
    let refusal = proxy.message().await;
    assert_eq!(refusal.conversation, upstream.conversation);
    assert_ne!(refusal.channel, upstream.channel);
    let refusal = refusal.json();
    assert_eq!(refusal["id"], json!("q-1"));
    assert_eq!(refusal["error"]["code"], json!(-32603));
    // It is not asked any more; the rest is still there.
    let mut connection = proxy.connect().await;
    let mut stream = connection.send(get(&name)).stream().await;
    assert_eq!(stream.next().await, Some(note(1)));
    upstream.tell_all(&note(2).to_string()).await;
    assert_eq!(stream.next().await, Some(note(2)));
}

#[tokio::test]
async fn what_is_kept_is_bounded() {
    let mut proxy = Proxy::bounded(|bounds| {
        bounds.kept_max = 2;
        bounds.kept_bytes_max = 1000;
    })
    .await;
    let (name, upstream) = session(&mut proxy).await;
    let large = json!({"jsonrpc": "2.0", "method": "notifications/x", "params": "x".repeat(1000)});
    upstream.tell_all(&large.to_string()).await;
    upstream.tell_all(&note(1).to_string()).await;
    upstream.tell_all(&note(2).to_string()).await;
    upstream.tell_all(&note(3).to_string()).await;
    upstream.tell_all(&question("q-1").to_string()).await;
    // There is no room for it, so it is told at once.
    assert_eq!(proxy.message().await.json()["id"], json!("q-1"));
    let mut connection = proxy.connect().await;
    let mut stream = connection.send(get(&name)).stream().await;
    assert_eq!(stream.next().await, Some(note(1)));
    assert_eq!(stream.next().await, Some(note(2)));
    upstream.tell_all(&note(4).to_string()).await;
    assert_eq!(stream.next().await, Some(note(4)));
}

#[tokio::test]
async fn nothing_is_kept_for_clients_that_cannot_listen() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let got = connection.ask(post(&[], &note(0))).await;
    assert_eq!(got.status, 202);
    let upstream = proxy.message().await;
    upstream.tell_all(&note(1).to_string()).await;
    upstream.tell_all(&question("q-1").to_string()).await;
    assert_eq!(proxy.message().await.json()["id"], json!("q-1"));
    proxy.assert_quiet();
}

#[tokio::test]
async fn a_question_of_a_request_whose_client_left_is_asked_elsewhere() {
    let mut proxy = Proxy::start().await;
    let (name, _) = session(&mut proxy).await;
    let headers = [("mcp-session-id", name.as_str())];
    let mut connection = proxy.connect().await;
    connection.send(post(&headers, &request(1, "tools/call", json!({}))));
    let call = proxy.message().await;
    connection.close().await;
    assert_eq!(proxy.disconnected().await, call.ticket);
    call.tell(&note(1).to_string()).await;
    call.tell(&question("q-1").to_string()).await;
    let mut listener = proxy.connect().await;
    let mut stream = listener.send(get(&name)).stream().await;
    // Its progress is nobody's.
    assert_eq!(stream.next().await, Some(question("q-1")));
}

fn peer() -> Arc<Peer> {
    let bounds = Arc::new(Bounds::of(&settings()));
    let names = Arc::new(Names::new(&SystemEntropy).unwrap());
    Peer::new(bounds, names, false)
}

const STREAM: Form = Form {
    streams: true,
    for_others: true,
};

fn text(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_holds_the_others_up_once() {
    let peer = peer();
    let room = Bounds::of(&settings()).room;
    let (tickets, mut said) = peer.expect(1, STREAM);
    let about = Some(tickets[0]);
    let begun = Instant::now();
    for number in 0..room {
        peer.tell(about, text(&note(number as u64))).await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    peer.tell(about, text(&note(100))).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    for _ in 0..3 {
        peer.tell(about, text(&note(101))).await;
    }
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    // Once it takes something, it is waited for again.
    assert!(said.recv().await.is_some());
    peer.tell(about, text(&note(102))).await;
    peer.tell(about, text(&note(103))).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
    let mut taken = Vec::new();
    while let Ok(Said::Message { text, .. }) = said.try_recv() {
        let message: Value = serde_json::from_slice(&text).unwrap();
        taken.push(message["params"]["n"].as_u64().unwrap());
    }
    let expected: Vec<u64> = (1..room as u64).chain([102]).collect();
    assert_eq!(taken, expected);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_said_although_nobody_takes_anything_or_asks_what_became_of_it() {
    let peer = peer();
    let room = Bounds::of(&settings()).room;
    let (tickets, mut said) = peer.expect(2, STREAM);
    for number in 0..room {
        let told = peer.tell(Some(tickets[0]), text(&note(number as u64)));
        drop(told);
    }
    drop(peer.answer(tickets[0], Bytes::from_static(b"1")));
    let answer = tokio::spawn({
        let (peer, ticket) = (Arc::clone(&peer), tickets[1]);
        async move { peer.answer(ticket, Bytes::from_static(b"2")).await }
    });
    for number in 0..room {
        let Some(Said::Message { text, .. }) = said.recv().await else {
            panic!("no message");
        };
        let message: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(message, note(number as u64));
    }
    for expected in ["1", "2"] {
        let Some(Said::Answer(text, handed)) = said.recv().await else {
            panic!("no answer");
        };
        assert_eq!(text, expected);
        drop(handed);
    }
    assert_eq!(answer.await.unwrap(), Handed::Gone);
    assert!(said.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_is_not_waited_for() {
    let peer = peer();
    let (tickets, said) = peer.expect(1, STREAM);
    for number in 0..Bounds::of(&settings()).room {
        peer.tell(Some(tickets[0]), text(&note(number as u64)))
            .await;
    }
    let begun = Instant::now();
    let told = tokio::spawn({
        let (peer, ticket) = (Arc::clone(&peer), tickets[0]);
        async move { peer.tell(Some(ticket), text(&note(100))).await }
    });
    tokio::task::yield_now().await;
    drop(said);
    told.await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
}
