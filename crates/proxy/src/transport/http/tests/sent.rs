//! What the server gets to see.

use crate::wire::HttpFacts;

use super::{
    server::{Act, Seen, Server, json, response},
    *,
};

async fn seen_of(headers: &[(&str, &str)], message: Outbound) -> Seen {
    let server = Server::start(|_| vec![Act::Send(json(200, ANSWER))]).await;
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let headers: Vec<_> = headers.iter().map(owned).collect();
    let line = Line::with_headers(&server.url(), &headers);
    line.send(message).await;
    server.arrival().await
}

fn facts(headers: &[(&str, &str)]) -> Option<Arc<HttpFacts>> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Some(Arc::new(HttpFacts {
        headers: headers.iter().map(owned).collect(),
    }))
}

#[tokio::test]
async fn a_message_is_posted_as_it_is_with_the_configured_headers() {
    let configured = [
        ("Authorization", "Bearer configured"),
        ("X-A", "1"),
        ("X-A", "2"),
    ];
    let seen = seen_of(&configured, request(None)).await;
    assert_eq!(seen.method, "POST");
    assert_eq!(seen.body.as_bytes(), request(None).text);
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(
        seen.header("accept"),
        Some("application/json, text/event-stream")
    );
    assert_eq!(seen.header("authorization"), Some("Bearer configured"));
    let both: Vec<_> = seen.headers.get_all("x-a").iter().collect();
    assert_eq!(both, ["1", "2"]);
    assert!(
        seen.header("user-agent")
            .unwrap()
            .starts_with("counterfoil/")
    );
    // Nothing is known yet of revision and session, and nothing is made up.
    for name in [
        "mcp-protocol-version",
        "mcp-session-id",
        "mcp-method",
        "mcp-name",
        "cookie",
        "accept-encoding",
    ] {
        assert_eq!(seen.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn a_request_of_2026_07_28_says_in_headers_what_it_is() {
    let seen = seen_of(&[("Mcp-Name", "configured")], request(Some(MODERN))).await;
    assert_eq!(seen.header("mcp-protocol-version"), Some(MODERN));
    assert_eq!(seen.header("mcp-method"), Some("tools/call"));
    assert_eq!(seen.header("mcp-name"), Some("pay"));

    let mut message = request(Some(MODERN));
    message.kind = Kind::Request {
        id: id("7"),
        method: "resources/read".to_owned(),
        name: Some("file:///ä".to_owned()),
    };
    let seen = seen_of(&[], message).await;
    assert_eq!(seen.header("mcp-method"), Some("resources/read"));
    assert_eq!(seen.header("mcp-name"), Some("=?base64?ZmlsZTovLy/DpA==?="));

    let mut message = request(Some(MODERN));
    message.kind = Kind::Request {
        id: id("7"),
        method: "tools/list".to_owned(),
        name: None,
    };
    let seen = seen_of(&[("Mcp-Name", "configured")], message).await;
    assert_eq!(seen.header("mcp-method"), Some("tools/list"));
    assert_eq!(seen.header("mcp-name"), None);

    // There is no handshake any more, but the server is to say so.
    let mut message = request(Some(MODERN));
    message.kind = Kind::Request {
        id: id("7"),
        method: "initialize".to_owned(),
        name: None,
    };
    let seen = seen_of(&[], message).await;
    assert_eq!(seen.header("mcp-protocol-version"), Some(MODERN));
    assert_eq!(seen.header("mcp-method"), Some("initialize"));

    let seen = seen_of(&[("Mcp-Method", "configured")], request(Some(OLDER))).await;
    assert_eq!(seen.header("mcp-protocol-version"), Some(OLDER));
    assert_eq!(seen.header("mcp-method"), None);
    assert_eq!(seen.header("mcp-name"), None);
}

#[tokio::test]
async fn of_the_clients_headers_only_parameters_are_passed_on() {
    let mut message = request(Some(MODERN));
    message.http = facts(&[
        ("mcp-param-region", "=?base64?w6Q=?="),
        ("mcp-param-unknown", "as it came"),
        ("mcp-param-both", "the client's"),
        ("mcp-method", "tools/list"),
        ("mcp-name", "other"),
        ("mcp-protocol-version", "2099-01-01"),
        ("authorization", "Bearer client"),
        ("cookie", "a=b"),
        ("mcp-session-id", "client"),
    ]);
    message.headers = vec![
        ("Mcp-Param-Both".to_owned(), "ours".to_owned()),
        ("X-Provider-Key".to_owned(), "op-1".to_owned()),
    ];
    let seen = seen_of(&[], message.clone()).await;
    assert_eq!(seen.header("mcp-param-region"), Some("=?base64?w6Q=?="));
    assert_eq!(seen.header("mcp-param-unknown"), Some("as it came"));
    assert_eq!(seen.header("mcp-param-both"), Some("ours"));
    assert_eq!(seen.header("x-provider-key"), Some("op-1"));
    assert_eq!(seen.header("mcp-method"), Some("tools/call"));
    assert_eq!(seen.header("mcp-name"), Some("pay"));
    assert_eq!(seen.header("mcp-protocol-version"), Some(MODERN));
    for name in ["authorization", "cookie", "mcp-session-id"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    // The configured credentials are the only ones.
    let seen = seen_of(&[("authorization", "Bearer configured")], message).await;
    assert_eq!(seen.header("authorization"), Some("Bearer configured"));
}

#[tokio::test]
async fn a_header_that_cannot_be_sent_sends_nothing() {
    let server = Server::start(|_| vec![Act::Send(json(200, ANSWER))]).await;
    let line = Line::to(&server.url());
    let mut message = request(None);
    message.headers = vec![("X-Key".to_owned(), "a\r\nB: c".to_owned())];
    let why = line.transport.send(message).await.unwrap_err();
    assert_eq!(
        why,
        Failure::NotSent("the header `X-Key` cannot be sent".to_owned())
    );
    // It is not under way any more.
    assert_eq!(line.outcome(request(None)).await, answered());
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn two_requests_under_one_id_are_not_under_way_at_once() {
    let server = Server::start(|_| vec![Act::Hang]).await;
    let line = Line::to(&server.url());
    line.send(request(None)).await;
    let why = line.transport.send(request(None)).await.unwrap_err();
    assert!(matches!(why, Failure::NotSent(_)), "{why}");
}

#[tokio::test]
async fn beyond_the_bound_a_request_waits_for_room() {
    let server = Server::start(|_| vec![Act::Send(response(200, "", ANSWER))]).await;
    let line = Line::to(&server.url());
    let all = u32::try_from(UNDER_WAY_MAX).unwrap();
    let full = line
        .transport
        .upstream
        .room
        .acquire_many(all)
        .await
        .unwrap();
    let mut waiting = line.transport.send(request(None));
    assert!(futures_util::FutureExt::now_or_never(&mut waiting).is_none());
    // One that is given up while it waits is not sent.
    let mut given_up = line.transport.send(request_as("8", None));
    assert!(futures_util::FutureExt::now_or_never(&mut given_up).is_none());
    line.transport.forget(&id("8"));
    assert_eq!(soon(given_up).await, Ok(()));
    // One whose sender goes away is not under way any more.
    let mut dropped = line.transport.send(request_as("9", None));
    assert!(futures_util::FutureExt::now_or_never(&mut dropped).is_none());
    drop(dropped);
    assert!(server.seen().is_empty());
    drop(full);
    soon(waiting).await.unwrap();
    assert_eq!(line.ear.next().await, answered());
    line.quiet().await;
    assert_eq!(server.seen().len(), 1);
    assert_eq!(line.ear.rest(), []);
    assert!(!line.transport.upstream.flights.take(&id("9")));
}
