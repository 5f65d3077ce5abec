use std::time::Duration;

use counterfoil_core::{Code, Key};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::Problem;

/// The caller's key.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// `true` on an answer that is a stored one.
pub(crate) const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// `true` on a stored answer that is a failure: trying again needs a new key.
pub(crate) const IDEMPOTENT_STORED_FAILURE: HeaderName =
    HeaderName::from_static("idempotent-stored-failure");
/// `true` on an answer that was not recorded in time: a retry may get no second copy of it.
pub(crate) const IDEMPOTENT_NOT_RECORDED: HeaderName =
    HeaderName::from_static("idempotent-not-recorded");
/// The handle of the operation.
pub(crate) const OPERATION_ID: HeaderName = HeaderName::from_static("operation-id");
const PREFER: HeaderName = HeaderName::from_static("prefer");
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The methods whose calls are kept when they carry a key.
pub(crate) fn is_mutation(method: &Method) -> bool {
    [Method::POST, Method::PATCH, Method::PUT, Method::DELETE].contains(method)
}

/// The key of a request, if it has one. A key in a place where none is taken is refused: ignored,
/// each retry would run again.
pub(crate) fn key_of(headers: &HeaderMap, query: &str) -> Result<Option<Key>, Problem> {
    if let Some(place) = misplaced_key(headers, query) {
        return Err(Problem::new(Code::InvalidKey)
            .title("The idempotency key is not in its place")
            .detail(format!(
                "There is a key in the {place}, where none is taken. It goes into the header Idempotency-Key."
            ))
            .next_action("Send the key in the header Idempotency-Key; nothing was done and the key is not used up"));
    }
    let lines = headers.get_all(IDEMPOTENCY_KEY);
    Key::from_headers(lines.iter().map(HeaderValue::as_bytes))
        .map_err(|why| Problem::new(Code::InvalidKey).detail(why.to_string()))
}

/// Where a key stands that is in no place where one is taken.
pub(crate) fn misplaced_key(headers: &HeaderMap, query: &str) -> Option<String> {
    let header = headers
        .keys()
        .find(|name| *name != IDEMPOTENCY_KEY && means_key(name.as_str()))
        .map(|name| format!("header {name}"));
    header.or_else(|| {
        query
            .split('&')
            .map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name))
            .any(|name| means_key(&decoded(name)))
            .then(|| "query".to_owned())
    })
}

/// Whether a name is one of the usual spellings of this key's: `X-Idempotency-Key`,
/// `idempotency_key`, `idempotencyKey`.
fn means_key(name: &str) -> bool {
    // Longer by a few separators at the most: nothing of what a caller made up is copied.
    if !(14..=24).contains(&name.len()) {
        return false;
    }
    let letters = name.chars().filter(|c| !matches!(c, '-' | '_' | '.'));
    let plain: String = letters.map(|c| c.to_ascii_lowercase()).collect();
    plain.strip_prefix('x').unwrap_or(&plain) == "idempotencykey"
}

/// A name of the query with `%5F` and the like resolved, as far as it is ASCII.
fn decoded(name: &str) -> String {
    let mut plain = String::new();
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('%') {
        plain.push_str(before);
        let byte = after
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) if byte.is_ascii() => {
                plain.push(char::from(byte));
                rest = after.get(2..).unwrap_or_default();
            }
            Some(_) | None => {
                plain.push('%');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

/// How long the caller prefers to wait (RFC 7240): the first `wait` preference counts, one that
/// is no whole number of seconds is ignored.
pub(crate) fn wait_of(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(PREFER);
    let texts = lines.iter().filter_map(|line| line.to_str().ok());
    texts
        .flat_map(|line| line.split(','))
        .find_map(|preference| {
            let (name, value) = preference.split(';').next()?.split_once('=')?;
            let named = name.trim().eq_ignore_ascii_case("wait");
            named.then(|| value.trim().trim_matches('"').trim())
        })
        .filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|value| value.parse().ok())
        .map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(lines: &[&'static str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PREFER, HeaderValue::from_static(line));
        }
        wait_of(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn field_16_a_key_under_another_name_is_seen() {
        let seen = |header: &'static str, query: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(
                HeaderName::from_static(header),
                HeaderValue::from_static("k"),
            );
            misplaced_key(&headers, query)
        };
        for header in [
            "x-idempotency-key",
            "idempotency_key",
            "idempotencykey",
            "x_idempotency_key",
        ] {
            assert_eq!(seen(header, ""), Some(format!("header {header}")));
        }
        for query in [
            "idempotency_key=u",
            "a=1&idempotencyKey=u",
            "Idempotency-Key",
            "idempotency%5fkey=u&b",
            "x-idempotency-key=",
            "a=%&%69dempotency_key=%zz",
        ] {
            assert_eq!(
                seen("idempotency-key", query).as_deref(),
                Some("query"),
                "{query}"
            );
        }
        for query in [
            "",
            "key=idempotency_key",
            "idempotency=1",
            "%E9dempotency_key=1",
            "idempotency_keys=1",
        ] {
            assert_eq!(seen("idempotency-key", query), None, "{query}");
        }
    }

    #[test]
    fn wait_is_found_among_other_preferences() {
        assert_eq!(wait(&[]), None);
        assert_eq!(wait(&["wait=10"]), Some(10));
        assert_eq!(wait(&["respond-async, WAIT = \"7\"; x=y"]), Some(7));
        assert_eq!(wait(&["respond-async", "wait=3, wait=9"]), Some(3));
        for nothing in ["wait", "wait=", "wait=-1", "wait=+1", "wait=1.5", "waits=4"] {
            assert_eq!(wait(&[nothing]), None, "{nothing}");
        }
        assert_eq!(wait(&["wait=99999999999999999999999"]), None);
    }
}
