//! Reading what comes: a body within its bound, or a stream of events.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

use super::{
    client::error_text,
    sse::{Place, Reader, TooLarge},
};

/// Why nothing more comes, in words.
pub(super) type Cut = String;

/// It is a stream of events.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let given = headers
        .get(CONTENT_TYPE)
        .map_or(b"".as_slice(), |value| value.as_bytes());
    let essence = given.split(|byte| *byte == b';').next().unwrap_or_default();
    essence
        .trim_ascii()
        .eq_ignore_ascii_case(b"text/event-stream")
}

/// A body, to its end.
///
/// # Errors
/// It was cut, or is larger than `bytes_max`.
pub(super) async fn whole(mut body: Incoming, bytes_max: usize) -> Result<Bytes, Cut> {
    let too_large = || format!("the answer is larger than {bytes_max} bytes");
    let announced = body.size_hint().lower();
    if usize::try_from(announced).map_or(true, |bytes| bytes > bytes_max) {
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(chunk) = next_chunk(&mut body).await? {
        if whole.len() + chunk.len() > bytes_max {
            return Err(too_large());
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, Cut> {
    while let Some(frame) = body.frame().await {
        // Trailers say nothing here.
        if let Ok(chunk) = frame.map_err(|error| error_text(&error))?.into_data() {
            return Ok(Some(chunk));
        }
    }
    Ok(None)
}

/// A stream of events. The connection is closed when it is dropped before its end.
pub(super) struct Events {
    body: Incoming,
    reader: Reader,
    ready: VecDeque<Bytes>,
    broken: Option<Cut>,
    bytes_max: usize,
}

impl Events {
    /// A stream that goes on at `place`, with events of at most `bytes_max` bytes.
    pub(super) fn new(response: Response<Incoming>, bytes_max: usize, place: Place) -> Self {
        Self {
            body: response.into_body(),
            reader: Reader::new(bytes_max, place),
            ready: VecDeque::new(),
            broken: None,
            bytes_max,
        }
    }

    pub(super) const fn place(&self) -> &Place {
        self.reader.place()
    }

    /// The data of the next message; `None` at an orderly end.
    ///
    /// # Errors
    /// The stream was cut, or an event is larger than allowed.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Cut> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if let Some(why) = self.broken.take() {
                return Err(why);
            }
            let Some(chunk) = next_chunk(&mut self.body).await? else {
                return Ok(None);
            };
            if let Err(TooLarge) = self.reader.feed(&chunk, &mut self.ready) {
                self.broken = Some(format!("an event is larger than {} bytes", self.bytes_max));
            }
        }
    }
}
