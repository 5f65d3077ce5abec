//! Answers as server-sent events: for calls whose client wants to hear of progress, and for
//! clients that take nothing else.

use axum::{body::Body, response::Response};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderValue, header};
use tokio::sync::mpsc;

use crate::{
    Endpoint,
    endpoint::{Context, Inbound, WaitKey},
    stdio::PROGRESS_MAX,
};

/// A message as an event. Its line ends can only be space between tokens; each begins a `data:`
/// line of its own, as an event has it.
#[must_use]
pub fn event(message: &[u8]) -> Bytes {
    let mut event = BytesMut::with_capacity(message.len() + 24);
    event.put_slice(b"event: message\n");
    for line in message.split(|byte| matches!(byte, b'\n' | b'\r')) {
        // A message without any line end is one line, even an empty one.
        if line.is_empty() && !message.is_empty() {
            continue;
        }
        event.put_slice(b"data: ");
        event.put_slice(line);
        event.put_slice(b"\n");
    }
    event.put_slice(b"\n");
    event.freeze()
}

/// A response whose body is events.
pub fn response(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    let fresh = HeaderValue::from_static("no-cache, no-transform");
    headers.insert(header::CACHE_CONTROL, fresh);
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// One message as a stream.
pub(super) fn single(message: &[u8]) -> Response {
    response(Body::from(event(message)))
}

/// Answers on a stream: progress first, then the result. The client going away stops only this.
/// So is a cancel: the stream then ends without an answer.
pub(super) fn serve(
    endpoint: Endpoint,
    inbound: Inbound,
    mut context: Context,
    wait_key: Option<WaitKey>,
) -> Response {
    let (tell, messages) = mpsc::channel::<Bytes>(PROGRESS_MAX);
    context.progress = Some(tell.clone());
    tokio::spawn(async move {
        let answer = endpoint.answer(inbound, context);
        let outgoing = match wait_key {
            None => Some(answer.await),
            Some(key) => {
                let (_open, stopped) = endpoint.inner.waits.open(key);
                tokio::select! {
                    biased;
                    Ok(()) = stopped => None,
                    outgoing = answer => Some(outgoing),
                }
            }
        };
        // Nothing at all is the end.
        let last = outgoing.map_or_else(Bytes::new, |outgoing| outgoing.text);
        let _ = tell.send(last).await;
    });
    let events = stream::unfold((messages, false), |(mut messages, over)| async move {
        if over {
            return None;
        }
        let message = messages
            .recv()
            .await
            .filter(|message| !message.is_empty())?;
        // A handler that goes on after its deadline still holds the other end: the answer is last.
        let over = !message.starts_with(PROGRESS_START);
        Some((
            Ok::<_, std::convert::Infallible>(event(&message)),
            (messages, over),
        ))
    });
    response(Body::from_stream(events))
}

/// How every notification of ours starts, and no response.
const PROGRESS_START: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":";
