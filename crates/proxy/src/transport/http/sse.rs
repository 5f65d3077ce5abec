//! A reader of server-sent events, as the HTML standard has them, that keeps bounded memory.
//!
//! Fields it does not know, lines without a colon and repeated fields are no errors: an answer
//! must not be lost because something harmless stands beside it.

use std::time::Duration;

use bytes::Bytes;

/// What a line may hold beside its value: the longest field's name, a colon, a space, the mark at
/// the beginning of the stream.
const NAME_BYTES_MAX: usize = 16;

/// An event is larger than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Where in a stream its reader is: what it takes to go on after a cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The last id that came, and not an empty one.
    pub(super) last_event_id: Option<String>,
    /// How long the server wants to be left alone before the stream is taken up again.
    pub(super) retry: Option<Duration>,
}

/// Takes bytes, cut anywhere, and gives the `data` of events of the type `message`.
pub(super) struct Reader {
    bytes_max: usize,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed now belongs to it.
    after_return: bool,
    /// The first line was seen.
    begun: bool,
    /// The event's lines of data, each with a line feed.
    data: Vec<u8>,
    /// The event is of a type that means nothing here.
    is_foreign: bool,
    /// The id as of this line; it counts from the end of the event on.
    id: Option<String>,
    place: Place,
}

impl Reader {
    /// For events of at most `bytes_max` bytes of data.
    pub(super) fn new(bytes_max: usize, place: Place) -> Self {
        Self {
            bytes_max,
            line: Vec::new(),
            after_return: false,
            begun: false,
            data: Vec::new(),
            is_foreign: false,
            id: place.last_event_id.clone(),
            place,
        }
    }

    /// Where it is.
    pub(super) const fn place(&self) -> &Place {
        &self.place
    }

    /// Takes the next bytes; what they complete is added to `events`.
    ///
    /// # Errors
    /// [`TooLarge`]; what was complete before that is in `events`. The stream is of no use then.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        events: &mut impl Extend<Bytes>,
    ) -> Result<(), TooLarge> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\r', b'\n', bytes) else {
                self.check(self.line.len() + bytes.len())?;
                self.line.extend_from_slice(bytes);
                return Ok(());
            };
            self.check(self.line.len() + end)?;
            self.after_return = bytes[end] == b'\r';
            let event = if self.line.is_empty() {
                self.take_line(&bytes[..end])?
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.take_line(&line)?
            };
            events.extend(event);
            bytes = &bytes[end + 1..];
        }
        Ok(())
    }

    const fn check(&self, line_bytes: usize) -> Result<(), TooLarge> {
        if line_bytes > self.bytes_max.saturating_add(NAME_BYTES_MAX) {
            return Err(TooLarge);
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8]) -> Result<Option<Bytes>, TooLarge> {
        let line = if std::mem::replace(&mut self.begun, true) {
            line
        } else {
            line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line)
        };
        if line.is_empty() {
            return Ok(self.end_event());
        }
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                if self.data.len() + value.len() > self.bytes_max {
                    return Err(TooLarge);
                }
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => self.is_foreign = !matches!(value, b"" | b"message"),
            b"id" => {
                if let Ok(id) = std::str::from_utf8(value)
                    && !id.contains('\0')
                {
                    self.id = (!id.is_empty()).then(|| id.to_owned());
                }
            }
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                // More digits than fit mean "very long".
                let millis = std::str::from_utf8(value).map_or(Ok(u64::MAX), str::parse);
                self.place.retry = Some(Duration::from_millis(millis.unwrap_or(u64::MAX)));
            }
            // A comment, or a field that means nothing here.
            _ => {}
        }
        Ok(None)
    }

    fn end_event(&mut self) -> Option<Bytes> {
        self.place.last_event_id.clone_from(&self.id);
        let mut data = std::mem::take(&mut self.data);
        let is_foreign = std::mem::take(&mut self.is_foreign);
        data.pop();
        // Without data it only says where the stream is.
        (!is_foreign && !data.is_empty()).then(|| Bytes::from(data))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]], bytes_max: usize) -> (Vec<String>, Place, Result<(), TooLarge>) {
        let mut reader = Reader::new(bytes_max, Place::default());
        let mut events: Vec<Bytes> = Vec::new();
        let mut outcome = Ok(());
        for chunk in chunks {
            outcome = reader.feed(chunk, &mut events);
            if outcome.is_err() {
                break;
            }
        }
        let events = events
            .iter()
            .map(|event| String::from_utf8_lossy(event).into_owned())
            .collect();
        (events, reader.place().clone(), outcome)
    }

    fn events(text: &str) -> Vec<String> {
        read(&[text.as_bytes()], 1000).0
    }

    #[test]
    fn data_of_messages_comes_out_whatever_ends_the_lines() {
        assert_eq!(events("data: {}\n\n"), ["{}"]);
        assert_eq!(
            events("data:{}\r\n\r\ndata: 1\r\rdata:  2\n\n"),
            ["{}", "1", " 2"]
        );
        assert_eq!(events("event: message\ndata: a\ndata: b\n\n"), ["a\nb"]);
        assert_eq!(events("\u{feff}data: a\n\n"), ["a"]);
        assert_eq!(events("\u{feff}\u{feff}data: a\n\n"), Vec::<String>::new());
    }

    #[test]
    fn what_means_nothing_is_passed_over() {
        assert_eq!(
            events(": hi\n:\nwhat: x\nodd\ndata: a\nid: 1\nid: 2\nretry: x\n\n"),
            ["a"]
        );
        assert_eq!(events("event: ping\ndata: a\n\ndata: b\n\n"), ["b"]);
        // Without a blank line an event is not complete, and an empty one says nothing.
        assert_eq!(events("data: a\n"), Vec::<String>::new());
        assert_eq!(events("data\n\ndata:\n\nid: 7\n\n"), Vec::<String>::new());
    }

    #[test]
    fn the_place_is_known_from_the_end_of_an_event_on() {
        let place = |text: &str| read(&[text.as_bytes()], 1000).1;
        assert_eq!(place("id: 7\ndata: a\n").last_event_id, None);
        assert_eq!(
            place("id: 7\ndata:\n\n").last_event_id,
            Some("7".to_owned())
        );
        assert_eq!(
            place("id: 7\n\ndata: a\n\n").last_event_id,
            Some("7".to_owned())
        );
        assert_eq!(
            place("id: 7\n\nid: a\0b\n\n").last_event_id,
            Some("7".to_owned())
        );
        assert_eq!(place("id: 7\n\nid\n\n").last_event_id, None);
        assert_eq!(
            place("event: ping\nid: 8\n\n").last_event_id,
            Some("8".to_owned())
        );
        assert_eq!(
            place("retry: 250\n").retry,
            Some(Duration::from_millis(250))
        );
        assert_eq!(place("retry: -1\nretry: 1x\nretry:\n").retry, None);
    }

    #[test]
    fn an_event_larger_than_allowed_ends_the_stream_after_what_came_before() {
        let long = format!("data: a\n\ndata: {}\n\n", "x".repeat(11));
        assert_eq!(
            (
                read(&[long.as_bytes()], 10).0,
                read(&[long.as_bytes()], 10).2
            ),
            (vec!["a".to_owned()], Err(TooLarge))
        );
        let fits = format!("data: {}\n\n", "x".repeat(10));
        assert_eq!(read(&[fits.as_bytes()], 10).0, ["x".repeat(10)]);
        let many = "data: xxxx\n".repeat(4);
        assert_eq!(read(&[many.as_bytes()], 10).2, Err(TooLarge));
        // A line that never ends is not kept for ever.
        let endless = [b"x".as_slice(); 100];
        assert_eq!(read(&endless, 10).2, Err(TooLarge));
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_cut_makes_no_difference(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "data: a", "data:b", "data", ":c", "id: 1", "id", "event: x", "event: message",
                    "retry: 5", "\r", "\n", "\r\n", "\n\n", "\r\r", "\r\n\r\n", "\u{feff}", "é", ": ",
                ]),
                0..40,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let text = parts.concat();
            let bytes = text.as_bytes();
            let whole = read(&[bytes], 1000);
            let mut cuts: Vec<usize> =
                cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> =
                cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
            prop_assert_eq!(read(&chunks, 1000), whole.clone());
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&single, 1000), whole);
        }
    }
}
