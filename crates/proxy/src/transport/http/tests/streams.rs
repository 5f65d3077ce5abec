//! Streams of events: those of requests, across cuts, and the one beside them.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::{
    server::{Act, Seen, Server, Told, chunk, chunked_stream, json, response, stream},
    *,
};

fn event(text: &str) -> Vec<u8> {
    format!("data: {text}\n\n").into_bytes()
}

fn told(text: &str) -> Told {
    Told::Message(text.to_owned(), Some(id("7")))
}

#[tokio::test]
async fn what_comes_before_the_answer_is_told_with_its_request_and_at_once() {
    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let server = Server::start(move |_| {
        vec![
            Act::Send(
                [
                    stream(),
                    b"retry: 5\n\nid: 1\ndata:\n\n".to_vec(),
                    event(PROGRESS),
                ]
                .concat(),
            ),
            Act::Wait(Arc::clone(&wait)),
            Act::Send([event(ANSWER), event(PROGRESS), event(ANSWER)].concat()),
            Act::Close,
        ]
    })
    .await;
    let line = Line::to(&server.url());
    line.send(request(Some(OLDER))).await;
    assert_eq!(line.ear.next().await, told(PROGRESS));
    go.notify_one();
    assert_eq!(line.ear.next().await, answered());
    line.quiet().await;
    // What comes behind it belongs to nobody; a second answer is none.
    assert_eq!(line.ear.rest(), [Told::Message(PROGRESS.to_owned(), None)]);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_connection_whose_stream_ended_in_order_is_used_again() {
    let server = Server::start(|_| {
        let text = format!("data: {ANSWER}\n\n");
        vec![Act::Send(
            [chunked_stream(), chunk(&text), b"0\r\n\r\n".to_vec()].concat(),
        )]
    })
    .await;
    let line = Line::to(&server.url());
    for _ in 0..3 {
        assert_eq!(line.outcome(request(Some(MODERN))).await, answered());
    }
    assert!(server.seen().iter().all(|seen| seen.connection == 0));
}

#[tokio::test]
async fn a_stream_that_stays_open_after_the_answer_is_closed() {
    let server =
        Server::start(|_| vec![Act::Send([stream(), event(ANSWER)].concat()), Act::Hang]).await;
    let line = Line::to(&server.url());
    assert_eq!(line.outcome(request(Some(OLDER))).await, answered());
    server.hung_up().await;
}

#[tokio::test]
async fn a_request_that_is_forgotten_closes_its_connection_and_says_nothing() {
    for beginning in [Vec::new(), stream(), [stream(), event(PROGRESS)].concat()] {
        let is_silent = !beginning.ends_with(b"\n\n") || beginning == stream();
        let server = Server::start(move |_| vec![Act::Send(beginning.clone()), Act::Hang]).await;
        let line = Line::to(&server.url());
        line.send(request(Some(MODERN))).await;
        server.arrival().await;
        if !is_silent {
            assert_eq!(line.ear.next().await, told(PROGRESS));
        }
        line.transport.forget(&id("7"));
        server.hung_up().await;
        line.quiet().await;
        assert_eq!(line.ear.rest(), []);
        // The id is free again.
        line.send(request(Some(MODERN))).await;
    }
}

/// POST is cut after event 1; each GET is answered by the next of `answers`.
async fn resuming(
    version: &str,
    first: &'static str,
    answers: Vec<Vec<Act>>,
) -> (Server, Line, Told) {
    let answers = std::sync::Mutex::new(answers.into_iter());
    let server = Server::start(move |seen| {
        if seen.method == "POST" {
            return vec![
                Act::Send([stream(), first.as_bytes().to_vec()].concat()),
                Act::Close,
            ];
        }
        answers
            .lock()
            .unwrap()
            .next()
            .unwrap_or_else(|| vec![Act::Close])
    })
    .await;
    let line = Line::to(&server.url());
    line.transport.negotiated(version);
    let told = line.outcome(request(None)).await;
    (server, line, told)
}

fn methods(server: &Server) -> Vec<String> {
    server.seen().into_iter().map(|seen| seen.method).collect()
}

const CUT: &str = "retry: 1\nid: one\ndata:\n\n";

#[tokio::test]
async fn field_13_a_cut_stream_of_the_older_era_is_resumed_and_the_request_not_sent_again() {
    let rest = [stream(), b"id: two\n".to_vec(), event(ANSWER)].concat();
    let answers = vec![
        vec![Act::Close],
        vec![Act::Send(response(503, "", ""))],
        vec![Act::Send(rest), Act::Close],
    ];
    let (server, _line, told) = resuming(OLDER, CUT, answers).await;
    assert_eq!(told, answered());
    assert_eq!(methods(&server), ["POST", "GET", "GET", "GET"]);
    for seen in &server.seen()[1..] {
        assert_eq!(seen.header("last-event-id"), Some("one"));
        assert_eq!(seen.header("accept"), Some("text/event-stream"));
        assert_eq!(seen.header("mcp-protocol-version"), Some(OLDER));
        assert_eq!(seen.header("content-type"), None);
        assert_eq!(seen.body, "");
    }
}

#[tokio::test]
async fn i3_a_stream_that_cannot_be_resumed_is_lost() {
    // Three attempts without anything new.
    let (server, _line, told) = resuming(OLDER, CUT, Vec::new()).await;
    why_lost(&told);
    assert_eq!(methods(&server), ["POST", "GET", "GET", "GET"]);
    // A stream without anything new is no progress.
    let empty = || vec![Act::Send(stream()), Act::Close];
    let answers = std::iter::repeat_with(empty).take(9).collect();
    let (server, _line, told) = resuming(OLDER, CUT, answers).await;
    why_lost(&told);
    assert_eq!(methods(&server), ["POST", "GET", "GET", "GET"]);
    // The server does not have it.
    for status in [400, 404, 405] {
        let answers = vec![vec![Act::Send(response(status, "", ""))]];
        let (server, _line, told) = resuming(OLDER, CUT, answers).await;
        assert!(why_lost(&told).contains(&status.to_string()), "{told:?}");
        assert_eq!(methods(&server), ["POST", "GET"]);
    }
    // Nothing to resume from, or an era that does not have it.
    let without = "retry: 1\ndata: {}\n\n";
    for (version, first) in [(OLDER, without), (MODERN, CUT)] {
        let (server, _line, told) = resuming(version, first, Vec::new()).await;
        why_lost(&told);
        assert_eq!(methods(&server), ["POST"]);
    }
}

#[tokio::test]
async fn a_server_that_lets_itself_be_asked_again_and_again_is() {
    let polls = (2..12).map(|number| {
        let text = format!("retry: 1\nid: {number}\ndata:\n\n");
        vec![
            Act::Send([stream(), text.into_bytes()].concat()),
            Act::Close,
        ]
    });
    let last = vec![Act::Send([stream(), event(ANSWER)].concat()), Act::Close];
    let answers = polls.chain([last]).collect();
    let (server, _line, told) = resuming(OLDER, CUT, answers).await;
    assert_eq!(told, answered());
    let asked: Vec<_> = server.seen()[1..]
        .iter()
        .map(|seen| seen.header("last-event-id").unwrap().to_owned())
        .collect();
    assert_eq!(
        asked,
        ["one", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]
    );
}

/// Whether a server is listened to, once it has taken `notifications/initialized`.
async fn listened(
    script: impl Fn(&Seen, usize) -> Vec<Act> + Send + Sync + 'static,
) -> (Server, Line) {
    let gets = AtomicUsize::new(0);
    let server = Server::start(move |seen| match seen.method.as_str() {
        "GET" => script(seen, gets.fetch_add(1, Ordering::SeqCst)),
        _ if seen.body.contains("\"id\":") => vec![Act::Send(json(200, ANSWER))],
        _ => vec![Act::Send(response(202, "", ""))],
    })
    .await;
    let line = Line::to(&server.url());
    line.transport.negotiated(OLDER);
    line.send(notification("notifications/initialized")).await;
    assert_eq!(server.arrival().await.method, "POST");
    (server, line)
}

#[tokio::test]
async fn the_stream_beside_the_requests_is_listened_to_and_taken_up_again() {
    let (server, line) = listened(|_, count| match count {
        0 => vec![
            Act::Send([stream(), b"retry: 1\nid: a\n".to_vec(), event(PROGRESS)].concat()),
            Act::Close,
        ],
        1 => vec![Act::Send(response(503, "", ""))],
        _ => vec![Act::Send([stream(), event(PROGRESS)].concat()), Act::Hang],
    })
    .await;
    for _ in 0..2 {
        assert_eq!(
            line.ear.next().await,
            Told::Message(PROGRESS.to_owned(), None)
        );
    }
    let gets: Vec<_> = server.seen().into_iter().skip(1).collect();
    let asked: Vec<_> = gets
        .iter()
        .map(|seen| seen.header("last-event-id"))
        .collect();
    assert_eq!(asked, [None, Some("a"), Some("a")]);
    assert!(
        gets.iter()
            .all(|seen| seen.header("mcp-protocol-version") == Some(OLDER))
    );
    soon(line.transport.close()).await;
    server.hung_up().await;
}

#[tokio::test]
async fn a_server_without_such_a_stream_is_not_asked_again() {
    for status in [404, 405, 401] {
        let (server, line) = listened(move |_, _| vec![Act::Send(response(status, "", ""))]).await;
        assert_eq!(server.arrival().await.method, "GET");
        // Whatever else follows, no other GET does.
        assert_eq!(line.outcome(request(None)).await, answered());
        line.send(notification("notifications/initialized")).await;
        line.idle().await;
        assert_eq!(methods(&server), ["POST", "GET", "POST", "POST"]);
    }
}

#[tokio::test]
async fn i3_an_answer_on_the_wrong_stream_is_told_once() {
    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let server = Server::start(move |seen| match seen.method.as_str() {
        "GET" => vec![
            Act::Send(stream()),
            Act::Wait(Arc::clone(&wait)),
            Act::Send([event(ANSWER), event(ANSWER), event(PROGRESS)].concat()),
            Act::Hang,
        ],
        _ if seen.body.contains("\"id\":") => vec![Act::Hang],
        _ => vec![Act::Send(response(202, "", ""))],
    })
    .await;
    let line = Line::to(&server.url());
    line.transport.negotiated(OLDER);
    line.send(notification("notifications/initialized")).await;
    line.send(request(None)).await;
    for _ in 0..3 {
        server.arrival().await;
    }
    go.notify_one();
    assert_eq!(
        line.ear.next().await,
        Told::Message(ANSWER.to_owned(), None)
    );
    assert_eq!(
        line.ear.next().await,
        Told::Message(PROGRESS.to_owned(), None)
    );
    line.quiet().await;
    assert_eq!(line.ear.rest(), []);
}

#[tokio::test]
async fn a_server_of_2026_07_28_is_not_asked_for_such_a_stream() {
    let server = Server::start(|_| vec![Act::Send(response(202, "", ""))]).await;
    let line = Line::to(&server.url());
    line.transport.negotiated(MODERN);
    line.send(notification("notifications/initialized")).await;
    line.send(notification("notifications/roots/list_changed"))
        .await;
    assert_eq!(methods(&server), ["POST", "POST"]);
}
