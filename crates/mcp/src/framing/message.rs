use std::{borrow::Cow, fmt};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Id, RpcError, codes};

/// Bounds on messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramingLimits {
    /// Largest message, in bytes. Default 1 MiB.
    pub message_bytes_max: usize,
    /// Most messages in one batch (2025-03-26 only). Default 32.
    pub batch_max: usize,
    /// Most members of an envelope. Default 32.
    pub members_max: usize,
}

impl Default for FramingLimits {
    fn default() -> Self {
        Self {
            message_bytes_max: 1 << 20,
            batch_max: 32,
            members_max: 32,
        }
    }
}

/// One message, its inside as it was spelled.
#[derive(Clone, Debug)]
pub enum Message<'a> {
    /// It wants an answer.
    Request(Request<'a>),
    /// It wants none.
    Notification(Notification<'a>),
    /// The answer to a request of ours.
    Response(Response<'a>),
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Its id.
    pub id: Id,
    /// Where in the text the id stands.
    pub id_text: &'a str,
    /// Its method.
    pub method: Cow<'a, str>,
    /// Its parameters.
    pub params: Option<&'a RawValue>,
    /// Names of members that JSON-RPC does not have. They mean nothing here.
    pub others: Vec<String>,
}

/// A notification.
#[derive(Clone, Debug)]
pub struct Notification<'a> {
    /// Its method.
    pub method: Cow<'a, str>,
    /// Its parameters.
    pub params: Option<&'a RawValue>,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Response<'a> {
    /// Whose answer it is; `None` if that could not be read there.
    pub id: Option<Id>,
    /// Where in the text the id stands; empty if nowhere.
    pub id_text: &'a str,
    /// The result, or the error. If there are both, the result.
    pub outcome: Result<&'a RawValue, &'a RawValue>,
}

/// What came in one body or line.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// One message.
    Single(Message<'a>),
    /// A batch, as revision 2025-03-26 has it. Not empty.
    Batch(Vec<Result<Message<'a>, Unreadable>>),
}

/// A text that is no message, with the id if that could be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreadable {
    /// Whose answer this is.
    pub id: Option<Id>,
    /// What is wrong.
    pub error: RpcError,
}

impl Unreadable {
    fn parse(what: &str) -> Self {
        Self {
            id: None,
            error: RpcError::new(codes::PARSE, format!("Parse error: {what}"))
                .with_http_status(400),
        }
    }

    fn invalid(id: Option<Id>, what: &str) -> Self {
        Self {
            id,
            error: RpcError::new(codes::INVALID_REQUEST, format!("Invalid request: {what}"))
                .with_http_status(400),
        }
    }
}

/// Reads the envelope of what came in one body or line.
///
/// # Errors
/// [`Unreadable`] with -32700 for what is no JSON and -32600 for what is no message.
pub fn read(text: &[u8], limits: FramingLimits) -> Result<Incoming<'_>, Unreadable> {
    if text.len() > limits.message_bytes_max {
        let what = format!("larger than {} bytes", limits.message_bytes_max);
        let mut unreadable = Unreadable::invalid(None, &what);
        unreadable.error.http_status = 413;
        return Err(unreadable);
    }
    let text = std::str::from_utf8(text).map_err(|_| Unreadable::parse("not UTF-8"))?;
    if text.trim_start().starts_with('[') {
        return read_batch(text, limits).map(Incoming::Batch);
    }
    read_one(text, limits).map(Incoming::Single)
}

fn read_batch(
    text: &str,
    limits: FramingLimits,
) -> Result<Vec<Result<Message<'_>, Unreadable>>, Unreadable> {
    let parts: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|_| Unreadable::parse("not JSON"))?;
    if parts.is_empty() || parts.len() > limits.batch_max {
        let what = format!("a batch has 1 to {} messages", limits.batch_max);
        return Err(Unreadable::invalid(None, &what));
    }
    Ok(parts
        .into_iter()
        .map(|part| read_one(part.get(), limits))
        .collect())
}

fn read_one(text: &str, limits: FramingLimits) -> Result<Message<'_>, Unreadable> {
    let Envelope(members) = serde_json::from_str(text).map_err(|error| {
        if error.is_data() {
            Unreadable::invalid(
                None,
                "the message is no JSON object, or names a member twice",
            )
        } else {
            Unreadable::parse("not JSON")
        }
    })?;
    let find = |name: &str| members.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
    let id_text = find("id").map_or("", RawValue::get);
    let id = find("id").map(|raw| Id::from_json(raw.get()));
    let known = id.clone().flatten();
    if members.len() > limits.members_max {
        return Err(Unreadable::invalid(known, "too many members"));
    }
    if find("jsonrpc").is_none_or(|version| version.get() != "\"2.0\"") {
        return Err(Unreadable::invalid(known, "`jsonrpc` must be \"2.0\""));
    }
    let Some(method) = find("method") else {
        let outcome = match (find("result"), find("error")) {
            (Some(result), _) => Ok(result),
            (None, Some(error)) => Err(error),
            (None, None) => return Err(Unreadable::invalid(known, "no `method`")),
        };
        return Ok(Message::Response(Response {
            id: known,
            id_text,
            outcome,
        }));
    };
    let Ok(method) = serde_json::from_str::<Text<'_>>(method.get()) else {
        return Err(Unreadable::invalid(known, "`method` must be a string"));
    };
    let (method, params) = (method.0, find("params"));
    match id {
        None => Ok(Message::Notification(Notification { method, params })),
        Some(Some(id)) => Ok(Message::Request(Request {
            id,
            id_text,
            method,
            params,
            others: members
                .iter()
                .filter(|(name, _)| !matches!(&**name, "jsonrpc" | "id" | "method" | "params"))
                .map(|(name, _)| name.to_string())
                .collect(),
        })),
        Some(None) => Err(Unreadable::invalid(
            None,
            "`id` must be a string or an integer",
        )),
    }
}

/// A string, borrowed where nothing in it is escaped.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reads;
        impl<'de> Visitor<'de> for Reads {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Reads)
    }
}

/// The members of an object in their order, none twice.
struct Envelope<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Envelope<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Envelope<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some((Text(name), value)) = map.next_entry()? {
                    // Bounded, so that looking for a second one stays cheap.
                    if members.len() > 256 || members.iter().any(|(other, _)| *other == name) {
                        return Err(A::Error::custom("a member twice, or too many"));
                    }
                    members.push((name, value));
                }
                Ok(Envelope(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}
