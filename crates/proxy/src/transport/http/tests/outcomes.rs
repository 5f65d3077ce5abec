//! What each answer of a server's means.

use super::{
    server::{Act, Server, Told, json, response, stream},
    *,
};

const ERROR: &str = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"no"}}"#;
const NOBODYS: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"s3cret"}}"#;

#[tokio::test]
async fn an_answer_is_an_answer_under_any_status_but_those_that_leave_it_open() {
    for status in [200, 201, 400, 401, 403, 404, 409, 413, 429] {
        assert_eq!(
            outcome_of(json(status, ANSWER)).await,
            answered(),
            "{status}"
        );
        let told = outcome_of(json(status, ERROR)).await;
        assert_eq!(
            told,
            Told::Message(ERROR.to_owned(), Some(id("7"))),
            "{status}"
        );
    }
    for status in [202, 301, 302, 303, 307, 308, 408, 500, 502, 503, 504, 599] {
        let told = outcome_of(json(status, ANSWER)).await;
        assert!(why_lost(&told).contains(&status.to_string()), "{told:?}");
    }
}

#[tokio::test]
async fn i3_field_17_a_404_after_the_effect_is_a_lost_answer() {
    for body in ["", "not found", "<html>", NOBODYS, "{}", "[]"] {
        for status in [200, 204, 400, 404, 405, 429] {
            let told = outcome_of(json(status, body)).await;
            let why = why_lost(&told);
            assert!(why.contains(&status.to_string()), "{why}");
            assert!(!why.contains("s3cret"), "{why}");
        }
    }
    let told = outcome_of(json(404, NOBODYS)).await;
    assert!(why_lost(&told).contains("-32000"), "{told:?}");
}

#[tokio::test]
async fn a_refusal_of_the_credentials_tells_where_they_are_to_be_had() {
    let challenge = "WWW-Authenticate: Bearer realm=\"mail\", token=\"s3cret\", \
        resource_metadata=\"https://a.test/.well-known/oauth-protected-resource\"\r\n";
    for status in [401, 403] {
        for body in ["", "no", NOBODYS] {
            let Told::Failed(_, Failure::Unauthorized(why)) =
                outcome_of(response(status, challenge, body)).await
            else {
                panic!("{status}")
            };
            assert_eq!(
                why,
                format!(
                    "HTTP {status}, realm mail, resource_metadata \
                     https://a.test/.well-known/oauth-protected-resource"
                )
            );
        }
        // Whatever its body turns out to be: the request was not looked at.
        let cut = format!("HTTP/1.1 {status} No\r\nContent-Length: 100\r\n\r\n");
        let told = outcome_of(cut.into_bytes()).await;
        assert!(
            matches!(told, Told::Failed(_, Failure::Unauthorized(_))),
            "{told:?}"
        );
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::start(|_| vec![Act::Send(json(200, ANSWER))]).await;
    let there = elsewhere.url();
    for status in [301, 302, 303, 307, 308] {
        let location = format!("Location: {there}\r\n");
        let told = outcome_of(response(status, &location, "")).await;
        assert!(
            why_lost(&told).contains("redirects are not followed"),
            "{told:?}"
        );
    }
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn an_array_is_its_messages_and_line_ends_do_not_come_through() {
    let body = format!("[\n{PROGRESS},\n{ANSWER} ,{PROGRESS}\n]\n");
    let server = Server::start(move |_| vec![Act::Send(json(200, &body))]).await;
    let told = Line::to(&server.url()).told(request(Some(OLDER))).await;
    assert_eq!(
        told,
        [
            Told::Message(PROGRESS.to_owned(), Some(id("7"))),
            answered(),
            Told::Message(PROGRESS.to_owned(), None),
        ]
    );
    let pretty = "{\r\n  \"jsonrpc\": \"2.0\",\n  \"id\": 7,\n  \"result\": {}\n}\n";
    assert_eq!(
        outcome_of(json(200, pretty)).await,
        Told::Message(
            "{    \"jsonrpc\": \"2.0\",   \"id\": 7,   \"result\": {} }".to_owned(),
            Some(id("7"))
        )
    );
}

#[tokio::test]
async fn i3_the_answer_to_another_request_answers_nothing() {
    let other = ANSWER.replace("\"id\":7", "\"id\":8");
    assert!(why_lost(&outcome_of(json(200, &other)).await).contains("without an answer"));
    let both = format!("data: {other}\n\ndata: {ANSWER}\n\n");
    assert_eq!(
        outcome_of([stream(), both.into_bytes()].concat()).await,
        answered()
    );
}

#[tokio::test]
async fn an_answer_larger_than_allowed_is_lost() {
    let result = "x".repeat(BYTES_MAX);
    let long = format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{result}"}}"#);
    assert!(why_lost(&outcome_of(json(200, &long)).await).contains("larger than 2000 bytes"));
    // Without a length that announces it.
    let endless = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{long}");
    assert!(why_lost(&outcome_of(endless.into_bytes()).await).contains("larger than 2000 bytes"));
    let event = [stream(), format!("data: {long}\n\n").into_bytes()].concat();
    assert!(why_lost(&outcome_of(event).await).contains("larger than 2000 bytes"));
    // One that just fits.
    let fits = long.replacen(&"x".repeat(long.len() - BYTES_MAX), "", 1);
    assert_eq!(
        outcome_of(json(200, &fits)).await,
        Told::Message(fits.clone(), Some(id("7")))
    );
    let event = [stream(), format!("data: {fits}\n\n").into_bytes()].concat();
    assert_eq!(outcome_of(event).await, Told::Message(fits, Some(id("7"))));
}

#[tokio::test]
async fn a_notification_that_is_not_taken_is_an_error() {
    let server = Server::start(|seen| {
        let status = seen.body.split('"').rev().nth(1).unwrap().parse().unwrap();
        vec![Act::Send(response(status, "", ""))]
    })
    .await;
    let line = Line::to(&server.url());
    for status in ["200", "202", "204"] {
        assert_eq!(line.transport.send(notification(status)).await, Ok(()));
    }
    for status in ["302", "400", "404", "500"] {
        let why = line.transport.send(notification(status)).await.unwrap_err();
        assert_eq!(why, Failure::Lost(format!("HTTP {status}")));
    }
    let why = line.transport.send(notification("401")).await.unwrap_err();
    assert_eq!(why, Failure::Unauthorized("HTTP 401".to_owned()));
    let mut answer = notification("202");
    answer.kind = Kind::Response;
    assert_eq!(line.transport.send(answer).await, Ok(()));
    assert_eq!(line.ear.rest(), []);
}
