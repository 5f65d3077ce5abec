use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// One line of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Its bytes without the line end. May be empty.
    Text(Vec<u8>),
    /// It was longer than the limit; it was read to its end and thrown away.
    TooLong,
}

/// Reads lines of bounded length.
pub struct Lines<R> {
    reader: R,
    bytes_max: usize,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// Lines of `reader` of at most `bytes_max` bytes.
    pub const fn new(reader: R, bytes_max: usize) -> Self {
        Self { reader, bytes_max }
    }

    /// The next line; `None` at the end. A last line without a line end counts.
    ///
    /// # Errors
    /// What the stream says.
    pub async fn next(&mut self) -> std::io::Result<Option<Line>> {
        let mut text = Vec::new();
        let (mut too_long, mut anything) = (false, false);
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                break;
            }
            anything = true;
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            if text.len() + part.len() > self.bytes_max {
                too_long = true;
                text.clear();
            }
            if !too_long {
                text.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                break;
            }
        }
        if !anything {
            return Ok(None);
        }
        if text.last() == Some(&b'\r') {
            text.pop();
        }
        Ok(Some(if too_long {
            Line::TooLong
        } else {
            Line::Text(text)
        }))
    }
}
