use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::CHUNK_BYTES;

/// A line at least this long is handed out in the memory it was read into; a shorter one is
/// copied, so that it does not keep a whole chunk in memory for as long as it lives.
const SHARED_BYTES_MIN: usize = 32 << 10;

/// One line of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Its bytes without the line end. Never empty or all white space: such lines are skipped.
    Text(Bytes),
    /// It was longer than the limit; it was read to its end and thrown away.
    TooLong,
}

/// Reads lines of bounded length.
///
/// ```text
/// loop {
///     while let Some(line) = lines.at_hand() { … }
///     if !lines.fill().await? { break }
/// }
/// ```
pub(crate) struct Lines<R> {
    reader: R,
    buffer: BytesMut,
    /// So many bytes of the buffer have been looked through: there is no line end in them.
    seen: usize,
    /// In the middle of a line that is too long.
    skipping: bool,
    /// A line was handed out since the last read.
    handed: bool,
    ended: bool,
    bytes_max: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Lines of `reader` of at most `bytes_max` bytes each.
    pub(crate) fn new(reader: R, bytes_max: usize) -> Self {
        Self {
            reader,
            buffer: BytesMut::new(),
            seen: 0,
            skipping: false,
            handed: false,
            ended: false,
            bytes_max,
        }
    }

    /// The next line, if it was read already. A last line without a line end counts.
    pub(crate) fn at_hand(&mut self) -> Option<Line> {
        loop {
            let rest = self.buffer.get(self.seen..).unwrap_or_default();
            let (end, used) = match memchr::memchr(b'\n', rest) {
                Some(at) => (self.seen + at, self.seen + at + 1),
                None if self.ended && (self.skipping || !self.buffer.is_empty()) => {
                    (self.buffer.len(), self.buffer.len())
                }
                None => {
                    self.seen = self.buffer.len();
                    // One more for the carriage return that may belong to the line's end.
                    if self.skipping || self.buffer.len() > self.bytes_max.saturating_add(1) {
                        self.skipping = true;
                        self.throw_away();
                    }
                    return None;
                }
            };
            self.seen = 0;
            if let Some(line) = self.cut(end, used) {
                self.handed = true;
                return Some(line);
            }
        }
    }

    /// Takes `used` bytes from the buffer, of which the line is `end`. `None`: it is empty.
    fn cut(&mut self, end: usize, used: usize) -> Option<Line> {
        if std::mem::take(&mut self.skipping) {
            self.buffer.advance(used);
            return Some(Line::TooLong);
        }
        let line = self.buffer.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let bytes = line.len();
        if bytes > self.bytes_max {
            self.buffer.advance(used);
            return Some(Line::TooLong);
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            self.buffer.advance(used);
            return None;
        }
        if bytes < SHARED_BYTES_MIN {
            let text = Bytes::copy_from_slice(line);
            self.buffer.advance(used);
            return Some(Line::Text(text));
        }
        let mut text = self.buffer.split_to(used);
        text.truncate(bytes);
        Some(Line::Text(text.freeze()))
    }

    /// Reads once. `false`: there is no more, neither to read nor at hand. Nothing is lost when
    /// the future is dropped.
    ///
    /// # Errors
    /// What the stream says.
    pub(crate) async fn fill(&mut self) -> std::io::Result<bool> {
        if self.ended {
            return Ok(!self.buffer.is_empty() || self.skipping);
        }
        if std::mem::take(&mut self.handed) {
            // What was made of the lines so far gets on its way before more is read: a stream
            // that always has more would keep the task that writes from running.
            tokio::task::yield_now().await;
        }
        if self.buffer.capacity() - self.buffer.len() < CHUNK_BYTES / 2 {
            self.buffer.reserve(CHUNK_BYTES);
        }
        self.ended = self.reader.read_buf(&mut self.buffer).await? == 0;
        Ok(!self.ended || !self.buffer.is_empty() || self.skipping)
    }

    /// Memory held.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    fn throw_away(&mut self) {
        self.seen = 0;
        if self.buffer.capacity() > 4 * CHUNK_BYTES {
            self.buffer = BytesMut::new();
        } else {
            self.buffer.clear();
        }
    }
}
