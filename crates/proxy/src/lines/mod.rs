//! Lines of a stream, in and out: what both ends of a stdio connection are made of.
//!
//! Tuned for many small messages. Input is read in chunks of 64 KiB and cut up; what is put into
//! an [`Outbox`] while its task does not run leaves in one write. Neither side costs a task, a
//! timer or a system call per message.

mod outbox;
mod reader;
#[cfg(test)]
mod tests;

pub(crate) use outbox::{Bounds, Ended, Entry, Outbox, Refused, Tag, Why};
pub(crate) use reader::{Line, Lines};

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

/// How much is read, and put together for a write, at once.
const CHUNK_BYTES: usize = 64 << 10;

/// The message as one line. A line end inside of JSON is always between its parts, where a space
/// says the same.
pub(crate) fn one_line(text: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &text).is_none() {
        return text;
    }
    let mut text = Vec::from(text);
    for byte in &mut text {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    Bytes::from(text)
}

/// Whether a line is JSON, and of a kind that can be a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// An object or an array: it may be a message, or a batch of them.
    Message,
    /// JSON, but neither object nor array.
    Scalar,
    /// No JSON.
    Other,
}

impl Shape {
    /// Of a line. Looks at all of it: half a message is no JSON.
    pub(crate) fn of(text: &[u8]) -> Self {
        let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
        // A server's log line rarely gets past the first byte.
        let might = first.is_some_and(|byte| {
            matches!(
                byte,
                b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'
            )
        });
        let json = |text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        if !might || !std::str::from_utf8(text).is_ok_and(json) {
            return Self::Other;
        }
        match first {
            Some(b'{' | b'[') => Self::Message,
            _ => Self::Scalar,
        }
    }
}

/// Counts something that may happen often, and says now and then how often.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<(u64, Option<Instant>)>);

impl Seldom {
    /// Between two reports.
    const EVERY: Duration = Duration::from_secs(10);

    /// It happened once more. `Some`: how often since the last report, and it is time for one.
    pub(crate) fn again(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        let now = Instant::now();
        if state.1.is_some_and(|last| now - last < Self::EVERY) {
            return None;
        }
        state.1 = Some(now);
        Some(std::mem::take(&mut state.0))
    }
}
