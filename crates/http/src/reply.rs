use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{body::Body, response::Response};
use bytes::{Bytes, BytesMut};
use counterfoil_core::Reply;
use counterfoil_engine::Outcome;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;

use crate::Problem;

/// What an answer's status says (contract §4, "Which answers are kept").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// 2xx and 3xx: kept.
    Success,
    /// A definite error answer, such as 404, 409 or 422: kept.
    Judgement,
    /// 401, 402, 403, 407: the caller was not let in, nothing was applied (RFC 9110 §15.5). Never
    /// kept.
    NotLetIn,
    /// 5xx, 408, 425, 429, and what is no final answer: proves nothing by itself.
    Failure,
}

pub(crate) fn class_of(status: StatusCode) -> Class {
    match status.as_u16() {
        200..=399 => Class::Success,
        401 | 402 | 403 | 407 => Class::NotLetIn,
        408 | 425 | 429 => Class::Failure,
        400..=499 => Class::Judgement,
        _ => Class::Failure,
    }
}

/// Says afterwards that a response was larger than what is held in memory.
#[derive(Clone, Default)]
pub(crate) struct Overflow(Arc<AtomicBool>);

impl Overflow {
    pub(crate) fn happened(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Reads a handler's response whole, and says what it proves. Beyond `bytes_max` the rest is not
/// read: the engine then leaves a marker (the bound is above the largest stored result), and
/// `overflow` tells the front end that the answer cannot be handed over.
pub(crate) async fn outcome_of(
    response: Response,
    bytes_max: usize,
    overflow: Overflow,
) -> Outcome {
    let (parts, body) = response.into_parts();
    let Some(body) = read(body, bytes_max, &overflow).await else {
        // Its answer broke off: what it did is not known.
        return Outcome::Lost { timed_out: false };
    };
    let mut reply = reply_of(parts.status, &parts.headers, body);
    if let Some(problem) = parts.extensions.get::<Problem>()
        && problem.body() == reply.body
    {
        // Said before it was known that it is kept.
        let Reply { body, headers, .. } = problem.clone().into();
        let waits =
            |headers: &[(String, String)]| headers.iter().any(|(name, _)| name == "retry-after");
        if !waits(&headers) {
            reply.headers.retain(|(name, _)| name != "retry-after");
        }
        reply.body = body;
    }
    match class_of(parts.status) {
        Class::Success => Outcome::Succeeded(reply),
        Class::Judgement => Outcome::Refused {
            reply,
            effect_none: false,
        },
        Class::NotLetIn => Outcome::NotApplied(reply),
        Class::Failure => Outcome::Failed(reply),
    }
}

async fn read(mut body: Body, bytes_max: usize, overflow: &Overflow) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(part) = frame.ok()?.into_data() else {
            continue; // Trailers are hop-by-hop.
        };
        if part.len() > bytes_max.saturating_sub(whole.len()) {
            let room = bytes_max.saturating_sub(whole.len());
            whole.extend_from_slice(part.get(..room).unwrap_or(&part));
            overflow.0.store(true, Ordering::Release);
            break;
        }
        whole.extend_from_slice(&part);
    }
    Some(whole.freeze())
}

/// The answer as the engine takes it. Cookies stay in it for the first caller; the engine strips
/// them before it stores.
fn reply_of(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Reply {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let mut others = Vec::new();
    for (name, value) in headers {
        if name == header::CONTENT_TYPE || is_of_the_connection(name) {
            continue;
        }
        match text(value) {
            Some(value) => others.push((name.as_str().to_owned(), value)),
            None => {
                tracing::warn!(header = %name, "a response header that is not ASCII is left out")
            }
        }
    }
    Reply {
        status: status.as_u16(),
        content_type: headers.get(header::CONTENT_TYPE).and_then(text),
        headers: others,
        body,
    }
}

/// Belongs to one connection or one framing: the HTTP server writes it anew for every answer.
fn is_of_the_connection(name: &HeaderName) -> bool {
    [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ]
    .contains(name)
        || name == "keep-alive"
}

/// The response of an answer; `None` if it is no HTTP answer (a damaged row).
pub(crate) fn response_of(reply: Reply) -> Option<Response> {
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() = StatusCode::from_u16(reply.status).ok()?;
    let headers = response.headers_mut();
    for (name, value) in reply.headers {
        let name = HeaderName::try_from(name).ok()?;
        if !is_of_the_connection(&name) {
            headers.append(name, HeaderValue::try_from(value).ok()?);
        }
    }
    if let Some(content_type) = reply.content_type {
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::try_from(content_type).ok()?,
        );
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_class() {
        let of = |status: u16| class_of(StatusCode::from_u16(status).unwrap());
        for status in [200, 201, 202, 204, 301, 303, 304] {
            assert_eq!(of(status), Class::Success, "{status}");
        }
        for status in [400, 404, 405, 409, 410, 412, 413, 415, 418, 422, 451] {
            assert_eq!(of(status), Class::Judgement, "{status}");
        }
        for status in [401, 402, 403, 407] {
            assert_eq!(of(status), Class::NotLetIn, "{status}");
        }
        for status in [101, 408, 425, 429, 500, 501, 502, 503, 504, 507, 599, 600] {
            assert_eq!(of(status), Class::Failure, "{status}");
        }
    }
}
