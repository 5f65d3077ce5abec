//! Which protocol a request speaks. Decided for every request by itself.

use base64::Engine as _;
use counterfoil_core::Json;
use serde_json::json;

use crate::framing::{RpcError, codes};

/// The revision without a handshake.
pub const MODERN: &str = "2026-07-28";
/// The revisions with one, the newest first.
pub const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The `_meta` key of the revision that a request speaks.
pub const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// The `_meta` key of what its client can do.
pub const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// The two ways to speak MCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    /// 2025-11-25 and older: `initialize` first.
    Legacy,
    /// 2026-07-28: every request says all there is to know.
    Modern,
}

/// What the headers of an HTTP request say about its body.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderFacts {
    pub(crate) version: Option<String>,
    pub(crate) method: Option<String>,
    pub(crate) name: Option<String>,
    /// Where outside the body a key was found. MCP has none there.
    pub(crate) key: Option<&'static str>,
    /// `Mcp-Param-*`, names in lower case.
    pub(crate) params: Vec<(String, String)>,
    pub(crate) session: Option<String>,
}

fn mismatch(message: String) -> RpcError {
    RpcError::new(codes::HEADER_MISMATCH, message).with_http_status(400)
}

pub(crate) fn unsupported(requested: &str) -> RpcError {
    RpcError::new(codes::UNSUPPORTED_VERSION, "Unsupported protocol version")
        .with_data(json!({"supported": [MODERN], "requested": requested}))
        .with_http_status(400)
}

/// The era of a request.
///
/// # Errors
/// Parameters without what the revision demands (-32602), an unknown version (-32022), headers
/// that say something else than the body (-32020).
pub(crate) fn of(
    method: &str,
    params: &Json,
    headers: Option<&HeaderFacts>,
) -> Result<Era, RpcError> {
    let meta = params.get("_meta");
    let version = meta.and_then(|meta| meta.get(VERSION_KEY));
    let capabilities = meta.and_then(|meta| meta.get(CAPABILITIES_KEY));
    let header = headers.and_then(|headers| headers.version.as_deref());
    let modern = version.is_some()
        || capabilities.is_some()
        || method == "server/discover"
        || header == Some(MODERN);
    if !modern {
        return match header {
            Some(other) if !LEGACY.contains(&other) && method != "initialize" => {
                Err(unsupported(other))
            }
            Some(_) | None => Ok(Era::Legacy),
        };
    }
    let missing = |key: &str| {
        RpcError::new(
            codes::INVALID_PARAMS,
            format!("Invalid params: `_meta` must hold `{key}`"),
        )
        .with_http_status(400)
    };
    let Some(Json::String(version)) = version else {
        return Err(missing(VERSION_KEY));
    };
    if let Some(headers) = headers {
        check_version(headers.version.as_deref(), version)?;
    }
    if version != MODERN {
        return Err(unsupported(version));
    }
    let Some(Json::Object(_)) = capabilities else {
        return Err(missing(CAPABILITIES_KEY));
    };
    if let Some(headers) = headers {
        let subject = match subject_of(method).and_then(|member| params.get(member)) {
            Some(Json::String(subject)) => Some(subject.as_str()),
            Some(_) | None => None,
        };
        check_method(headers.method.as_deref(), method)?;
        check_name(headers.name.as_deref(), subject)?;
    }
    Ok(Era::Modern)
}

/// The member of the parameters that `Mcp-Name` says as well.
#[must_use]
pub fn subject_of(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        _ => None,
    }
}

/// Whether `MCP-Protocol-Version` says what the body says.
///
/// # Errors
/// -32020 (400) if it says something else, or nothing.
pub fn check_version(header: Option<&str>, version: &str) -> Result<(), RpcError> {
    match header {
        Some(header) if header == version => Ok(()),
        Some(header) => Err(mismatch(format!(
            "Header mismatch: MCP-Protocol-Version is '{header}', the body says '{version}'"
        ))),
        None => Err(mismatch(
            "Header mismatch: MCP-Protocol-Version is missing".to_owned(),
        )),
    }
}

/// Whether `Mcp-Method` says what the body says.
///
/// # Errors
/// -32020 (400) if it says something else, or nothing.
pub fn check_method(header: Option<&str>, method: &str) -> Result<(), RpcError> {
    match header {
        Some(header) if header == method => Ok(()),
        Some(header) => Err(mismatch(format!(
            "Header mismatch: Mcp-Method is '{header}', the body says '{method}'"
        ))),
        None => Err(mismatch(
            "Header mismatch: Mcp-Method is missing".to_owned(),
        )),
    }
}

/// Whether `Mcp-Name` says what the body names; nothing is demanded if that names nothing.
///
/// # Errors
/// -32020 (400) if it says something else, or nothing.
pub fn check_name(header: Option<&str>, subject: Option<&str>) -> Result<(), RpcError> {
    let Some(subject) = subject else {
        return Ok(());
    };
    match header {
        Some(header) if decoded(header).as_deref() == Some(subject) => Ok(()),
        Some(_) => Err(mismatch(format!(
            "Header mismatch: Mcp-Name does not match the body's '{subject}'"
        ))),
        None => Err(mismatch("Header mismatch: Mcp-Name is missing".to_owned())),
    }
}

/// A header value as it was meant: plain, or in base64 between its markers.
pub(crate) fn decoded(header: &str) -> Option<String> {
    let wrapped = header
        .strip_prefix("=?base64?")
        .and_then(|rest| rest.strip_suffix("?="));
    match wrapped {
        None => Some(header.to_owned()),
        Some(inner) => {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(inner)
                .ok()?;
            String::from_utf8(bytes).ok()
        }
    }
}

/// A text as the value of an `Mcp-Name` or `Mcp-Param-*` header: as it is, or in base64 between its
/// markers if it is not plain ASCII, has space at an end, or looks like that itself.
#[must_use]
pub fn header_value(text: &str) -> String {
    let plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
        && text.trim_matches(' ').len() == text.len()
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    if plain {
        return text.to_owned();
    }
    let inner = base64::engine::general_purpose::STANDARD.encode(text);
    format!("=?base64?{inner}?=")
}

/// `Mcp-Param-*` headers of annotated arguments must be there and match.
pub(crate) fn check_params(
    annotated: &[(String, Vec<String>)],
    arguments: &Json,
    headers: &HeaderFacts,
) -> Result<(), RpcError> {
    for (name, path) in annotated {
        let value = path
            .iter()
            .try_fold(arguments, |value, step| value.get(step));
        let expected = match value {
            Some(Json::String(text)) => Some(text.clone()),
            Some(Json::Number(literal)) => Some(literal.clone()),
            Some(Json::Bool(flag)) => Some(flag.to_string()),
            Some(Json::Null | Json::Array(_) | Json::Object(_)) | None => None,
        };
        let given = headers.params.iter().find(|(header, _)| header == name);
        let given = given.map(|(_, value)| value.as_str());
        let is_number = matches!(value, Some(Json::Number(_)));
        check_param(name, given, expected.as_deref(), is_number)?;
    }
    Ok(())
}

/// Whether the `Mcp-Param-*` header `name` says what the argument says: `expected` is that as plain
/// text, `None` if it is absent or no plain value. Numbers are the same however they are written.
///
/// # Errors
/// -32020 (400) if it says something else, cannot be read, or only one of both is there.
pub fn check_param(
    name: &str,
    header: Option<&str>,
    expected: Option<&str>,
    is_number: bool,
) -> Result<(), RpcError> {
    let given = header.map(decoded);
    let fits = match (expected, &given) {
        (None, None) => true,
        (Some(expected), Some(Some(given))) => {
            given == expected
                || is_number && given.parse::<f64>().ok() == expected.parse::<f64>().ok()
        }
        (None, Some(_)) | (Some(_), None | Some(None)) => false,
    };
    if fits {
        return Ok(());
    }
    Err(mismatch(format!(
        "Header mismatch: {name} does not match the argument"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_value_is_read_as_it_was_meant() {
        assert_eq!(header_value("us-west 1"), "us-west 1");
        assert_eq!(header_value("zürich"), "=?base64?esO8cmljaA==?=");
        for text in [
            "",
            " a",
            "a ",
            "a\nb",
            "\t",
            "é",
            "=?base64?YQ==?=",
            "=?base64?",
            "a",
        ] {
            let value = header_value(text);
            assert!(value.bytes().all(|byte| (0x20..=0x7e).contains(&byte)));
            assert_eq!(value.trim_matches(' '), value);
            assert_eq!(decoded(&value).as_deref(), Some(text));
        }
    }
}
