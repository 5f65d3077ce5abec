//! Which headers go with a message.

use base64::Engine as _;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, CONTENT_TYPE, USER_AGENT},
};

use super::session::Known;
use crate::wire::{Failure, Kind, Outbound};

/// The first revision without a handshake.
const MODERN: &str = "2026-07-28";

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const PARAMETER: &str = "mcp-param-";

/// What is HTTP's own, or says how the body is written.
const NOT_CONFIGURABLE: [&str; 10] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// How a message is sent.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) headers: HeaderMap,
    /// It is of 2026-07-28 or later.
    pub(super) is_modern: bool,
    /// The session's id is with it.
    pub(super) in_session: bool,
    /// It opens a session.
    pub(super) is_handshake: bool,
    /// See [`Known::epoch`].
    pub(super) epoch: u64,
}

/// The configured headers, which go with everything.
///
/// # Errors
/// [`Failure::NotSent`] names the one that cannot be sent, without its value.
pub(super) fn configured(given: &[(String, String)]) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let (name, mut value) = header(name, value)?;
        if NOT_CONFIGURABLE.contains(&name.as_str()) {
            return Err(Failure::NotSent(format!(
                "the header `{name}` is the proxy's own; take it out of the configuration"
            )));
        }
        value.set_sensitive(true);
        headers.append(name, value);
    }
    let own = HeaderValue::from_static(concat!("counterfoil/", env!("CARGO_PKG_VERSION")));
    headers.entry(USER_AGENT).or_insert(own);
    Ok(headers)
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let unfit = || {
        let name: String = name.escape_default().take(64).collect();
        Failure::NotSent(format!("the header `{name}` cannot be sent"))
    };
    let given = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unfit())?;
    let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| unfit())?;
    Ok((given, value))
}

/// The headers of a message. Of the client's own only `Mcp-Param-*` are passed on, never its
/// credentials.
///
/// # Errors
/// [`Failure::NotSent`] names a header that cannot be sent.
pub(super) fn of(
    configured: &HeaderMap,
    outbound: &Outbound,
    known: &Known,
) -> Result<Sent, Failure> {
    let (method, name) = match &outbound.kind {
        Kind::Request { method, name, .. } => (Some(method.as_str()), name.as_deref()),
        Kind::Notification { method } => (Some(method.as_str()), None),
        Kind::Response => (None, None),
    };
    // Whoever speaks a revision without a handshake is told so by the server, as by itself.
    let is_handshake = method == Some("initialize") && !is_modern(outbound.version.as_deref());
    let client = outbound.http.iter().flat_map(|facts| &facts.headers);
    let from_client = client
        .clone()
        .find(|(name, _)| name == VERSION.as_str())
        .map(|(_, value)| value.as_str());
    let version = if is_handshake {
        // It is what is to be agreed on.
        None
    } else {
        let agreed = known.version.as_deref();
        outbound.version.as_deref().or(agreed).or(from_client)
    };
    let is_modern = is_modern(version);

    let mut headers = configured.clone();
    if is_modern {
        for (name, value) in client.filter(|(name, _)| name.starts_with(PARAMETER)) {
            let (name, value) = header(name, value)?;
            headers.insert(name, value);
        }
    }
    for (name, value) in &outbound.headers {
        let (name, value) = header(name, value)?;
        headers.insert(name, value);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        ACCEPT,
        HeaderValue::from_static("application/json, text/event-stream"),
    );
    put(&mut headers, VERSION, version)?;
    put(&mut headers, METHOD, method.filter(|_| is_modern))?;
    let name = name.filter(|_| is_modern).map(wrapped);
    put(&mut headers, NAME, name.as_deref())?;
    let session = known.id.as_ref().filter(|_| !is_modern && !is_handshake);
    headers.remove(SESSION_ID);
    if let Some(id) = session {
        headers.insert(SESSION_ID, id.clone());
    }
    Ok(Sent {
        headers,
        is_modern,
        in_session: session.is_some(),
        is_handshake,
        epoch: known.epoch,
    })
}

/// The headers of a GET, which reads a stream, or of a DELETE.
pub(super) fn without_body(
    configured: &HeaderMap,
    known: &Known,
    last_event_id: Option<&str>,
) -> HeaderMap {
    let mut headers = configured.clone();
    headers.remove(CONTENT_TYPE);
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    let values = [
        (VERSION, known.version.as_deref()),
        (LAST_EVENT_ID, last_event_id),
    ];
    for (name, value) in values {
        headers.remove(&name);
        if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok())
        {
            headers.insert(name, value);
        }
    }
    headers.remove(SESSION_ID);
    if let Some(id) = &known.id {
        headers.insert(SESSION_ID, id.clone());
    }
    headers
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: Option<&str>) -> Result<(), Failure> {
    headers.remove(&name);
    if let Some(value) = value {
        let (name, value) = header(name.as_str(), value)?;
        headers.insert(name, value);
    }
    Ok(())
}

/// Revisions are named by their day. What is named otherwise is a draft of a later one.
fn is_modern(version: Option<&str>) -> bool {
    version.is_some_and(|version| version >= MODERN)
}

/// A name as it may stand in a header: in base64 between marks if it is not plain visible ASCII,
/// or would be read as such.
fn wrapped(name: &str) -> String {
    let is_plain = name.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && name.trim_matches(' ') == name
        && !(name.starts_with("=?base64?") && name.ends_with("?="));
    if is_plain {
        return name.to_owned();
    }
    let inner = base64::engine::general_purpose::STANDARD.encode(name);
    format!("=?base64?{inner}?=")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_wrapped_where_a_header_cannot_carry_them() {
        assert_eq!(wrapped("get_weather"), "get_weather");
        assert_eq!(wrapped("file:///a b.json"), "file:///a b.json");
        assert_eq!(wrapped("Hello, 世界"), "=?base64?SGVsbG8sIOS4lueVjA==?=");
        assert_eq!(wrapped(" padded "), "=?base64?IHBhZGRlZCA=?=");
        assert_eq!(wrapped("line1\nline2"), "=?base64?bGluZTEKbGluZTI=?=");
        assert_eq!(
            wrapped("=?base64?literal?="),
            "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="
        );
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_named_and_its_value_kept_back() {
        let refused = |name: &str, value: &str| {
            configured(&[(name.to_owned(), value.to_owned())])
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            refused("X-Key", "secret\n"),
            "nothing was sent: the header `X-Key` cannot be sent"
        );
        assert!(refused("a b", "secret").contains("`a b`"));
        assert!(refused("Transfer-Encoding", "chunked").contains("`transfer-encoding`"));
    }
}
