//! Reading what comes: a body within its bound, or a stream of events.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header::CONTENT_TYPE};
use reqwest::Response;

use super::{
    client::error_text,
    sse::{Place, Reader, TooLarge},
};

/// Why nothing more comes, in words.
pub(super) type Cut = String;

/// It is a stream of events.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let given = headers.get(CONTENT_TYPE).map_or(b"".as_slice(), |value| value.as_bytes());
    let essence = given.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// A body, to its end.
///
/// # Errors
/// It was cut, or is larger than `bytes_max`.
pub(super) async fn whole(mut response: Response, bytes_max: usize) -> Result<Bytes, Cut> {
    let too_large = || format!("the answer is larger than {bytes_max} bytes");
    let announced = response.content_length().unwrap_or(0);
    if usize::try_from(announced).map_or(true, |bytes| bytes > bytes_max) {
        return Err(too_large());
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(error_text)? {
        if body.len() + chunk.len() > bytes_max {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// A stream of events. The connection is closed when it is dropped before its end.
pub(super) struct Events {
    response: Response,
    reader: Reader,
    ready: VecDeque<Bytes>,
    broken: Option<Cut>,
    bytes_max: usize,
}

impl Events {
    /// A stream that goes on at `place`, with events of at most `bytes_max` bytes.
    pub(super) fn new(response: Response, bytes_max: usize, place: Place) -> Self {
        Self {
            response,
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
            let Some(chunk) = self.response.chunk().await.map_err(error_text)? else {
                return Ok(None);
            };
            if let Err(TooLarge) = self.reader.feed(&chunk, &mut self.ready) {
                self.broken = Some(format!("an event is larger than {} bytes", self.bytes_max));
            }
        }
    }
}
