//! One request and what comes of it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use counterfoil_mcp::framing::Id;
use http::{HeaderMap, Method, Request, StatusCode, header::WWW_AUTHENTICATE};
use http_body_util::Full;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Upstream,
    answers::{self, Said},
    body::{self, Cut, Events},
    flights::Flight,
    headers::{self, SESSION_ID, Sent},
    session::Known,
    sse::Place,
};
use crate::wire::Failure;

/// Attempts to take up a stream again, without anything new in between.
const RESUMES_MAX: u32 = 3;
/// The wait before one if the server names none, and the longest that it may name.
const RESUME_AFTER: Duration = Duration::from_secs(1);
const RESUME_AFTER_MAX: Duration = Duration::from_secs(60);
/// How long the end of a stream is waited for after the answer, so that its connection can be used
/// again.
const END_FOR: Duration = Duration::from_secs(1);
/// Longest text taken from a header into a failure, in characters.
const CHALLENGE_MAX: usize = 200;

/// The wait before a stream is taken up again.
pub(super) fn resume_after(place: &Place) -> Duration {
    place.retry.unwrap_or(RESUME_AFTER).min(RESUME_AFTER_MAX)
}

/// An answer, and what came behind it.
struct Answered {
    text: Bytes,
    after: Vec<Bytes>,
    stream: Option<Events>,
}

/// Sends a request and says what became of it, once.
pub(super) async fn run(
    upstream: Arc<Upstream>,
    flight: Flight,
    request: Request<Full<Bytes>>,
    sent: Sent,
    room: OwnedSemaphorePermit,
) {
    let outcome = tokio::select! {
        biased;
        () = flight.end.cancelled() => {
            Err(Failure::Lost("the connection was closed before an answer came".to_owned()))
        }
        outcome = exchange(&upstream, &flight.id, request, &sent) => outcome,
    };
    if flight.claim() {
        match outcome {
            Ok(answered) => {
                upstream.tell(answered.text, Some(&flight.id)).await;
                let rest = rest(&upstream, answered.after, answered.stream);
                tokio::select! {
                    () = upstream.closed.cancelled() => {}
                    _ = tokio::time::timeout(END_FOR, rest) => {}
                }
            }
            Err(why) => upstream.fail(&flight.id, why),
        }
    }
    drop(room);
}

/// What comes behind the answer. It belongs to no request any more.
async fn rest(upstream: &Upstream, after: Vec<Bytes>, stream: Option<Events>) {
    for text in after {
        pass(upstream, text).await;
    }
    let Some(mut stream) = stream else {
        return;
    };
    while let Ok(Some(event)) = stream.next().await {
        for text in answers::messages(&event) {
            pass(upstream, text).await;
        }
    }
}

async fn pass(upstream: &Upstream, text: Bytes) {
    match answers::judge(text, None) {
        Said::Other(text) => upstream.tell(text, None).await,
        Said::Answer(_) | Said::Foreign(..) | Said::Unreadable => {}
    }
}

async fn exchange(
    upstream: &Upstream,
    id: &Id,
    request: Request<Full<Bytes>>,
    sent: &Sent,
) -> Result<Answered, Failure> {
    let response = upstream.client.send(request).await?;
    let status = response.status();
    if sent.is_handshake && status.is_success() {
        let given = response.headers().get(SESSION_ID);
        upstream.session.issued(sent.epoch, given);
    }
    if status == StatusCode::NOT_FOUND && sent.in_session {
        upstream.session.expire(sent.epoch);
        // Whatever its body says: it is about the session, and no judgement of the call.
        return Err(Failure::Lost("HTTP 404: the session has ended".to_owned()));
    }
    if let Some(why) = without_an_answer(status) {
        return Err(Failure::Lost(why));
    }
    if status.is_success() && body::is_stream(response.headers()) {
        let stream = Events::new(response, upstream.message_bytes_max, Place::default());
        return follow(upstream, id, stream, sent).await;
    }
    let challenge = challenge(response.headers());
    let body = body::whole(response.into_body(), upstream.message_bytes_max).await;
    let is_refusal = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let body = match body {
        Ok(body) => body,
        Err(_) if is_refusal => Bytes::new(),
        Err(why) => return Err(Failure::Lost(format!("HTTP {}: {why}", status.as_u16()))),
    };
    if let Some((text, after)) = sift(upstream, id, &body).await {
        return Ok(Answered {
            text,
            after,
            stream: None,
        });
    }
    if is_refusal {
        return Err(Failure::Unauthorized(format!(
            "HTTP {}{challenge}",
            status.as_u16()
        )));
    }
    if status == StatusCode::BAD_REQUEST && sent.in_session && answers::speaks_of_session(&body) {
        upstream.session.expire(sent.epoch);
    }
    let code = answers::error_code(&body).map_or_else(String::new, |code| {
        format!(", with the JSON-RPC error {code}")
    });
    Err(Failure::Lost(format!(
        "HTTP {} without an answer to the request{code}",
        status.as_u16()
    )))
}

/// Statuses that leave the outcome open, whatever else is said.
fn without_an_answer(status: StatusCode) -> Option<String> {
    let code = status.as_u16();
    match code {
        202 => Some("HTTP 202, which is no answer to a request".to_owned()),
        300..=399 => Some(format!(
            "HTTP {code}; redirects are not followed: configure the address that it leads to"
        )),
        408 | 500.. => Some(format!("HTTP {code}")),
        _ => None,
    }
}

/// Tells what came before the answer; the answer with what came behind it.
async fn sift(upstream: &Upstream, id: &Id, text: &Bytes) -> Option<(Bytes, Vec<Bytes>)> {
    let mut texts = answers::messages(text).into_iter();
    while let Some(text) = texts.next() {
        match answers::judge(text, Some(id)) {
            Said::Answer(text) => return Some((text, texts.collect())),
            Said::Other(text) => upstream.tell(text, Some(id)).await,
            Said::Foreign(..) => {
                tracing::debug!("the server answered a request with the answer to another one");
            }
            Said::Unreadable => {}
        }
    }
    None
}

/// Reads the stream of a request to its answer, also across cuts where the server can resume it.
async fn follow(
    upstream: &Upstream,
    id: &Id,
    mut stream: Events,
    sent: &Sent,
) -> Result<Answered, Failure> {
    let mut place = Place::default();
    let mut attempts = 0;
    loop {
        let cut: Cut = loop {
            match stream.next().await {
                Ok(Some(event)) => {
                    if let Some((text, after)) = sift(upstream, id, &event).await {
                        return Ok(Answered {
                            text,
                            after,
                            stream: Some(stream),
                        });
                    }
                }
                Ok(None) => break "the stream ended before the answer came".to_owned(),
                Err(why) => break format!("the stream was cut before the answer came: {why}"),
            }
        };
        if stream.place().last_event_id != place.last_event_id {
            attempts = 0;
        }
        place = stream.place().clone();
        let is_resumable = !sent.is_modern && place.last_event_id.is_some();
        if !is_resumable {
            return Err(Failure::Lost(cut));
        }
        stream = resume(upstream, &place, &mut attempts, cut).await?;
    }
}

/// Asks for the rest of a stream. The request itself is never sent again.
async fn resume(
    upstream: &Upstream,
    place: &Place,
    attempts: &mut u32,
    mut cut: Cut,
) -> Result<Events, Failure> {
    while *attempts < RESUMES_MAX {
        *attempts += 1;
        tokio::time::sleep(resume_after(place)).await;
        match open(upstream, &upstream.session.known(), place).await {
            Opened::Stream(stream) => return Ok(*stream),
            Opened::Refused(why) => return Err(Failure::Lost(format!("{cut}; {why}"))),
            Opened::NotNow(why) => cut = why,
        }
    }
    Err(Failure::Lost(cut))
}

/// What came of asking for a stream.
pub(super) enum Opened {
    Stream(Box<Events>),
    /// The server does not give it.
    Refused(Cut),
    /// It may later.
    NotNow(Cut),
}

/// Asks for a stream with GET: a new one, or the rest of one.
pub(super) async fn open(upstream: &Upstream, known: &Known, place: &Place) -> Opened {
    let headers = headers::without_body(&upstream.headers, known, place.last_event_id.as_deref());
    let request = upstream.request(Method::GET, headers, Bytes::new());
    let response = match upstream.client.send(request).await {
        Ok(response) => response,
        Err(why) => return Opened::NotNow(why.to_string()),
    };
    let status = response.status();
    // A 404 does not end the session here: some servers say so of a stream that they do not offer.
    // If the session is over, the next message finds out.
    if status == StatusCode::OK && body::is_stream(response.headers()) {
        let bytes_max = upstream.message_bytes_max;
        let stream = Events::new(response, bytes_max, place.clone());
        return Opened::Stream(Box::new(stream));
    }
    let why = format!("HTTP {} to the request for its stream", status.as_u16());
    match status.as_u16() {
        408 | 429 | 500.. => Opened::NotNow(why),
        _ => Opened::Refused(why),
    }
}

/// What a refusal names: for what, and where it says how to get in.
pub(super) fn challenge(headers: &HeaderMap) -> String {
    let mut found = String::new();
    let given = headers
        .get(WWW_AUTHENTICATE)
        .and_then(|value| value.to_str().ok());
    for name in ["realm", "resource_metadata"] {
        if let Some(value) = given.and_then(|given| parameter(given, name)) {
            let value: String = value.chars().take(CHALLENGE_MAX).collect();
            found.push_str(&format!(", {name} {value}"));
        }
    }
    found
}

/// A parameter of a challenge, `name="value"` or `name=value`.
fn parameter<'a>(challenge: &'a str, name: &str) -> Option<&'a str> {
    let value = challenge.split([',', ' ']).find_map(|part| {
        let (found, _) = part.split_once('=')?;
        let at = part.as_ptr() as usize - challenge.as_ptr() as usize + found.len() + 1;
        found.eq_ignore_ascii_case(name).then(|| &challenge[at..])
    })?;
    match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => value.split([',', ' ']).next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_told_by_its_realm_and_resource_only() {
        let mut headers = HeaderMap::new();
        assert_eq!(challenge(&headers), "");
        let given = r#"Bearer realm="the mail, all of it", error="invalid_token", token="s3cret", resource_metadata=https://a.test/.well-known/x"#;
        headers.insert(WWW_AUTHENTICATE, given.parse().unwrap());
        assert_eq!(
            challenge(&headers),
            ", realm the mail, all of it, resource_metadata https://a.test/.well-known/x"
        );
    }
}
