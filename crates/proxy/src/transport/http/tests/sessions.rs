//! Sessions of the older era.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    server::{Act, Server, Told, json, response},
    *,
};

const NOT_FOUND: &str =
    r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32001,"message":"no session"}}"#;

/// A server that gives out the sessions `s-0`, `s-1` …, and knows the last one only.
async fn with_sessions(not_found: &'static str) -> Server {
    let sessions = AtomicUsize::new(0);
    Server::start(move |seen| {
        if seen.body.contains("\"initialize\"") {
            let number = sessions.fetch_add(1, Ordering::SeqCst);
            let headers = format!("Mcp-Session-Id: s-{number}\r\n");
            let answer = ANSWER.replace("\"id\":7", "\"id\":0");
            return vec![Act::Send(response(200, &headers, &answer))];
        }
        let last = format!("s-{}", sessions.load(Ordering::SeqCst) - 1);
        if seen.header("mcp-session-id") != Some(&last) || seen.body.contains("\"end\"") {
            return vec![Act::Send(json(404, not_found))];
        }
        match seen.method.as_str() {
            "GET" => vec![Act::Send(server::stream()), Act::Hang],
            _ if seen.body.contains("\"id\":") => vec![Act::Send(json(200, ANSWER))],
            _ => vec![Act::Send(response(202, "", ""))],
        }
    })
    .await
}

async fn open(line: &Line) {
    line.told(initialize()).await;
    line.transport.negotiated(OLDER);
}

#[tokio::test]
async fn a_session_is_kept_from_the_handshake_to_its_end() {
    let server = with_sessions("").await;
    let line = Line::to(&server.url());
    open(&line).await;
    line.send(notification("notifications/initialized")).await;
    assert_eq!(line.outcome(request(None)).await, answered());
    let mut answer = notification("a");
    answer.kind = Kind::Response;
    line.send(answer).await;
    soon(line.transport.close()).await;
    // The stream was listened to, and ended before the session.
    server.hung_up().await;

    let mut seen = server.seen();
    seen.sort_by_key(|seen| seen.method != "GET");
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["GET", "POST", "POST", "POST", "POST", "DELETE"]);
    assert_eq!(seen[1].header("mcp-session-id"), None);
    assert_eq!(seen[1].header("mcp-protocol-version"), None);
    for seen in seen
        .iter()
        .filter(|seen| !seen.body.contains("\"initialize\""))
    {
        assert_eq!(seen.header("mcp-session-id"), Some("s-0"));
        assert_eq!(seen.header("mcp-protocol-version"), Some(OLDER));
    }
}

#[tokio::test]
async fn i3_field_17_a_session_that_ended_is_noticed_and_the_request_lost() {
    let server = with_sessions("").await;
    let line = Line::to(&server.url());
    open(&line).await;
    assert!(!line.transport.is_expired());
    // Somebody else's handshake ends this session.
    open(&Line::to(&server.url())).await;
    why_lost(&line.outcome(request(None)).await);
    assert!(line.transport.is_expired());

    line.transport.renew();
    assert!(!line.transport.is_expired());
    open(&line).await;
    assert_eq!(line.outcome(request(None)).await, answered());
    let last = server.seen().pop().unwrap();
    assert_eq!(last.header("mcp-session-id"), Some("s-2"));
    let again = server.seen().into_iter().rev().nth(1).unwrap();
    assert_eq!(
        again.header("mcp-session-id"),
        None,
        "the handshake is without a session"
    );
    assert_eq!(again.header("mcp-protocol-version"), None);
}

#[tokio::test]
async fn a_second_handshake_is_without_the_session_of_the_first() {
    let server = with_sessions("").await;
    let line = Line::to(&server.url());
    open(&line).await;
    open(&line).await;
    assert_eq!(server.seen()[1].header("mcp-session-id"), None);
    assert_eq!(server.seen()[1].header("mcp-protocol-version"), None);
    assert_eq!(line.outcome(request(None)).await, answered());
    assert_eq!(server.seen()[2].header("mcp-session-id"), Some("s-1"));
}

#[tokio::test]
async fn a_404_is_about_the_session_whatever_it_says() {
    let server = with_sessions(NOT_FOUND).await;
    let line = Line::to(&server.url());
    open(&line).await;
    open(&Line::to(&server.url())).await;
    let told = line.outcome(request(None)).await;
    assert!(
        matches!(told, Told::Failed(_, Failure::Lost(_))),
        "{told:?}"
    );
    assert!(line.transport.is_expired());
}

#[tokio::test]
async fn a_notification_notices_the_end_of_a_session_too() {
    let server = with_sessions("").await;
    let line = Line::to(&server.url());
    open(&line).await;
    line.transport.send(notification("end")).await.unwrap_err();
    assert!(line.transport.is_expired());
    // A session that is over is not ended again.
    soon(line.transport.close()).await;
    assert!(server.seen().iter().all(|seen| seen.method != "DELETE"));
}

#[tokio::test]
async fn what_is_heard_late_of_an_earlier_session_changes_nothing() {
    let go = Arc::new(tokio::sync::Notify::new());
    let wait = Arc::clone(&go);
    let server = Server::start(move |seen| match seen.body.contains("\"initialize\"") {
        true => {
            let answer = ANSWER.replace("\"id\":7", "\"id\":0");
            vec![Act::Send(response(200, "Mcp-Session-Id: s\r\n", &answer))]
        }
        false => vec![
            Act::Wait(Arc::clone(&wait)),
            Act::Send(response(404, "", "")),
        ],
    })
    .await;
    let line = Line::to(&server.url());
    open(&line).await;
    line.send(request(None)).await;
    for _ in 0..2 {
        server.arrival().await;
    }
    line.transport.renew();
    line.send(initialize()).await;
    assert!(matches!(line.ear.next().await, Told::Message(..)));
    go.notify_one();
    why_lost(&line.ear.next().await);
    assert!(!line.transport.is_expired());
}

#[tokio::test]
async fn a_404_to_the_request_for_a_stream_ends_no_session() {
    let server = Server::start(|seen| {
        let answer = ANSWER.replace("\"id\":7", "\"id\":0");
        vec![Act::Send(match seen.method.as_str() {
            "GET" => response(404, "", ""),
            _ if seen.body.contains("\"id\":0") => response(200, "Mcp-Session-Id: s\r\n", &answer),
            _ => response(202, "", ""),
        })]
    })
    .await;
    let line = Line::to(&server.url());
    open(&line).await;
    line.send(notification("notifications/initialized")).await;
    line.idle().await;
    assert_eq!(server.seen().last().unwrap().method, "GET");
    assert!(!line.transport.is_expired());
}

#[tokio::test]
async fn without_a_session_a_404_ends_none() {
    let server = Server::start(|_| vec![Act::Send(response(404, "", ""))]).await;
    let line = Line::to(&server.url());
    why_lost(&line.outcome(request(Some(OLDER))).await);
    assert!(!line.transport.is_expired());
    soon(line.transport.close()).await;
    assert_eq!(server.seen().len(), 1, "there is no session to end");
}

#[tokio::test]
async fn a_request_of_2026_07_28_is_in_no_session() {
    let server = with_sessions("").await;
    let line = Line::to(&server.url());
    open(&line).await;
    why_lost(&line.outcome(request(Some(MODERN))).await);
    assert_eq!(server.seen().pop().unwrap().header("mcp-session-id"), None);
    assert!(!line.transport.is_expired());
}

#[tokio::test]
async fn closing_ends_what_is_under_way_and_says_so() {
    let server = Server::start(|_| vec![Act::Hang]).await;
    let line = Line::to(&server.url());
    line.send(request(Some(OLDER))).await;
    server.arrival().await;
    soon(line.transport.close()).await;
    why_lost(&line.ear.next().await);
    server.hung_up().await;
    for message in [request(None), notification("a")] {
        let why = line.transport.send(message).await.unwrap_err();
        assert_eq!(why, Failure::NotSent("the connection is closed".to_owned()));
    }
    line.quiet().await;
    assert_eq!(line.ear.rest(), []);
}

#[tokio::test]
async fn a_server_that_does_not_answer_does_not_keep_the_end_waiting() {
    let server = Server::start(|seen| match seen.method.as_str() {
        "DELETE" => vec![Act::Hang],
        _ => vec![Act::Send(response(
            200,
            "Mcp-Session-Id: s\r\n",
            &ANSWER.replace("\"id\":7", "\"id\":0"),
        ))],
    })
    .await;
    let line = Line::to(&server.url());
    line.told(initialize()).await;
    soon(line.transport.close()).await;
    server.hung_up().await;
}
