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
/// `true` on an answer that could not be recorded: a retry gets no second copy of it.
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

/// The key of a request, if it has one.
pub(crate) fn key_of(headers: &HeaderMap) -> Result<Option<Key>, Problem> {
    let lines = headers.get_all(IDEMPOTENCY_KEY);
    Key::from_headers(lines.iter().map(HeaderValue::as_bytes))
        .map_err(|why| Problem::new(Code::InvalidKey).detail(why.to_string()))
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
