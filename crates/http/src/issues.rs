use counterfoil_core::{Code, Json, JsonLimits, parse_json};
use serde::{Serialize, de::DeserializeOwned};
use serde_path_to_error::Segment;

use crate::Problem;

/// Longest message of an issue, in characters: it may quote what the caller sent.
const MESSAGE_CHARS_MAX: usize = 300;

/// One field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Issue {
    /// Which field, as a JSON Pointer; empty for the whole body.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

impl Issue {
    /// A field and what is wrong with it. The message is cut after 300 characters.
    #[must_use]
    pub fn new(field: impl Into<String>, message: impl AsRef<str>) -> Self {
        Self {
            field: field.into(),
            message: message.as_ref().chars().take(MESSAGE_CHARS_MAX).collect(),
        }
    }
}

/// Reads a JSON body, one object, strictly, then into `T`. Give `T` the serde attribute
/// `deny_unknown_fields`: a field that is silently ignored is a promise that is not kept.
///
/// # Errors
/// 400 `malformed_request` for what is no JSON (duplicate keys, a lone surrogate, `1e400`, more
/// than 64 levels, not UTF-8); 422 `invalid` with an issue for what does not fit `T`.
pub fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let json = parse_json(body, JsonLimits::default()).map_err(|why| malformed(&why))?;
    // serde would take an array for a struct, field by field.
    if !matches!(json, Json::Object(_)) {
        return Err(Problem::invalid([Issue::new(
            "",
            "the body must be one JSON object",
        )]));
    }
    serde_path_to_error::deserialize(json.to_value())
        .map_err(|error| Problem::invalid([issue(&error)]))
}

pub(crate) fn malformed(why: &counterfoil_core::Malformed) -> Problem {
    Problem::new(Code::MalformedRequest).detail(format!("The body is not valid JSON: {why}"))
}

fn issue(error: &serde_path_to_error::Error<serde_json::Error>) -> Issue {
    let message = error.inner().to_string();
    let mut field = String::new();
    for segment in error.path() {
        match segment {
            Segment::Seq { index } => push(&mut field, &index.to_string()),
            Segment::Map { key } => push(&mut field, key),
            Segment::Enum { variant } => push(&mut field, variant),
            Segment::Unknown => {}
        }
    }
    // serde reports a missing field at its object, and names it in the message only.
    let named = message.strip_prefix("missing field `");
    if let Some((name, _)) = named.and_then(|rest| rest.split_once('`')) {
        push(&mut field, name);
    }
    let unknown = message.strip_prefix("unknown field `");
    if let Some((name, _)) = unknown.and_then(|rest| rest.split_once('`')) {
        let token = token(name);
        if field.rsplit('/').next() != Some(token.as_str()) {
            push(&mut field, name);
        }
    }
    Issue::new(field, message)
}

fn push(pointer: &mut String, name: &str) {
    pointer.push('/');
    pointer.push_str(&token(name));
}

fn token(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Note {
        body: String,
        #[serde(default)]
        tags: Vec<Tag>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Tag {
        name: String,
    }

    fn refused(body: &[u8]) -> Problem {
        read_json::<Note>(body).unwrap_err()
    }

    #[test]
    fn a_fitting_body_is_read() {
        let note: Note = read_json(br#"{"body": "x", "tags": [{"name": "t"}]}"#).unwrap();
        assert_eq!(note.body, "x");
        assert_eq!(note.tags[0].name, "t");
    }

    #[test]
    fn what_is_no_json_is_malformed() {
        let deep = "[".repeat(65) + &"]".repeat(65);
        let texts: [&[u8]; 7] = [
            b"",
            br#"{"body": "x", "body": "y"}"#,
            br#"{"body": "\ud800"}"#,
            br#"{"body": 1e400}"#,
            deep.as_bytes(),
            b"{\"body\": \"\xff\"}",
            b"{} {}",
        ];
        for text in texts {
            let problem = refused(text);
            assert_eq!(problem.code(), "malformed_request", "{text:?}");
            assert_eq!(problem.status_code(), 400);
        }
    }

    #[test]
    fn what_does_not_fit_names_the_field() {
        let cases: [(&[u8], &str); 5] = [
            (br#"{}"#, "/body"),
            (br#"{"body": 1}"#, "/body"),
            (br#"{"body": "x", "bdy": 1}"#, "/bdy"),
            (
                br#"{"body": "x", "tags": [{"name": "a"}, {}]}"#,
                "/tags/1/name",
            ),
            (br#"[]"#, ""),
        ];
        for (body, field) in cases {
            let problem = refused(body);
            assert_eq!(problem.code(), "invalid");
            assert_eq!(problem.status_code(), 422);
            assert_eq!(problem.issues()[0].field, field, "{body:?}");
        }
    }

    #[test]
    fn messages_are_bounded() {
        let long = format!(r#"{{"body": "x", "tags": "{}"}}"#, "y".repeat(5000));
        let problem = refused(long.as_bytes());
        assert!(problem.issues()[0].message.chars().count() <= MESSAGE_CHARS_MAX);
    }
}
