//! What came in a body or an event: the messages in it, and what each is to the request it came
//! for. Messages stay as they were spelled; only line ends between their parts become spaces,
//! since each goes on one line from here.

use bytes::{Bytes, BytesMut};
use counterfoil_mcp::framing::{FramingLimits, Id, Incoming, Message, read};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Most messages in one array.
const BATCH_MAX: usize = 1024;

/// What a message is to a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Said {
    /// Its answer. The id is spelled as in the request.
    Answer(Bytes),
    /// A notification, or a request of the server's.
    Other(Bytes),
    /// The answer to something else.
    Foreign(Option<Id>, Bytes),
    /// No message.
    Unreadable,
}

/// The messages in a text: itself, or the members of an array, each on one line.
pub(super) fn messages(text: &Bytes) -> Vec<Bytes> {
    let trimmed = text.trim_ascii();
    if trimmed.first() != Some(&b'[') {
        return vec![one_line(text.slice_ref(trimmed))];
    }
    let Ok(parts) = serde_json::from_slice::<Vec<&RawValue>>(trimmed) else {
        return Vec::new();
    };
    parts
        .into_iter()
        .take(BATCH_MAX)
        .map(|part| one_line(text.slice_ref(part.get().as_bytes())))
        .collect()
}

/// In JSON a line end only stands between parts.
fn one_line(text: Bytes) -> Bytes {
    if memchr::memchr2(b'\r', b'\n', &text).is_none() {
        return text;
    }
    let mut text = BytesMut::from(text);
    for byte in text.iter_mut() {
        if matches!(byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
    text.freeze()
}

/// What the message is to the request `id`.
pub(super) fn judge(text: Bytes, id: Option<&Id>) -> Said {
    let limits = FramingLimits {
        message_bytes_max: text.len(),
        batch_max: 1,
        members_max: usize::MAX,
    };
    let Ok(Incoming::Single(message)) = read(&text, limits) else {
        return Said::Unreadable;
    };
    match message {
        Message::Request(_) | Message::Notification(_) => Said::Other(text),
        Message::Response(response) => {
            let (Some(wanted), Some(found)) = (id, &response.id) else {
                return Said::Foreign(response.id, text);
            };
            if wanted == found {
                return Said::Answer(text);
            }
            if !is_same_string(wanted, found) {
                return Said::Foreign(response.id, text);
            }
            let at = response.id_text.as_ptr() as usize - text.as_ptr() as usize;
            let (before, after) = (&text[..at], &text[at + response.id_text.len()..]);
            Said::Answer(Bytes::from(
                [before, wanted.as_str().as_bytes(), after].concat(),
            ))
        }
    }
}

/// The same string with other escapes: a server that reads and writes JSON may change them.
fn is_same_string(one: &Id, other: &Id) -> bool {
    let read = |id: &Id| serde_json::from_str::<String>(id.as_str()).ok();
    read(one).is_some_and(|one| read(other) == Some(one))
}

/// The code of a JSON-RPC error, whoever it is meant for.
pub(super) fn error_code(text: &[u8]) -> Option<i64> {
    #[derive(Deserialize)]
    struct Envelope {
        error: Body,
    }
    #[derive(Deserialize)]
    struct Body {
        code: i64,
    }
    let envelope: Envelope = serde_json::from_slice(text).ok()?;
    Some(envelope.error.code)
}

/// Whether a JSON-RPC error speaks of the session. Servers that have lost theirs do not all say 404:
/// some answer 400, with an error that is meant for nobody.
pub(super) fn speaks_of_session(text: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Envelope {
        error: Body,
    }
    #[derive(Deserialize)]
    struct Body {
        message: String,
    }
    serde_json::from_slice::<Envelope>(text)
        .is_ok_and(|said| said.error.message.to_ascii_lowercase().contains("session"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Id {
        Id::from_json(text).unwrap()
    }

    #[test]
    fn members_of_an_array_come_one_by_one_and_on_one_line() {
        let text = Bytes::from_static(b" [ {\"a\":\r\n 1.0} ,\n{\"b\" : \"\\n\"}]\n");
        assert_eq!(messages(&text), ["{\"a\":   1.0}", "{\"b\" : \"\\n\"}"]);
        let text = Bytes::from_static(b"{\n  \"a\": 1\n}\n");
        assert_eq!(messages(&text), ["{   \"a\": 1 }"]);
        assert_eq!(messages(&Bytes::from_static(b"[1")), Vec::<Bytes>::new());
    }

    #[test]
    fn an_answer_is_known_by_its_id() {
        let judged = |text: &'static str, wanted: &str| {
            judge(Bytes::from_static(text.as_bytes()), Some(&id(wanted)))
        };
        let answer = r#"{"jsonrpc":"2.0","id":7,"result":{"x":1.50}}"#;
        assert_eq!(judged(answer, "7"), Said::Answer(Bytes::from(answer)));
        assert_eq!(
            judged(answer, "\"7\""),
            Said::Foreign(Some(id("7")), Bytes::from(answer))
        );
        let nobodys = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":""}}"#;
        assert_eq!(
            judged(nobodys, "7"),
            Said::Foreign(None, Bytes::from(nobodys))
        );
        let request = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
        assert_eq!(judged(request, "7"), Said::Other(Bytes::from(request)));
        assert_eq!(judged("<html>", "7"), Said::Unreadable);
    }

    #[test]
    fn an_id_with_other_escapes_is_put_back_as_it_was() {
        let came = Bytes::from_static(br#"{"jsonrpc":"2.0", "id": "a/b" ,"result":{}}"#);
        assert_eq!(
            judge(came, Some(&id(r#""a\/b""#))),
            Said::Answer(Bytes::from_static(
                br#"{"jsonrpc":"2.0", "id": "a\/b" ,"result":{}}"#
            ))
        );
    }

    #[test]
    fn a_server_that_lost_a_session_is_understood() {
        let error = |message: &str| {
            let said = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{{\"code\":-32000,\"message\":\"{message}\"}}}}"
            );
            speaks_of_session(said.as_bytes())
        };
        assert!(error("Bad Request: No valid session ID provided"));
        assert!(!error("Bad Request: unsupported protocol version"));
        assert!(!speaks_of_session(b"session"));
    }
}
