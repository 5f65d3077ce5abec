//! JSON as a fingerprint needs it: read strictly, numbers kept as they were spelled, one canonical
//! text for one value.

mod canonical;
mod number;
mod read;

pub use read::{JsonLimits, Malformed, parse_json};

use crate::Pointer;
use number::Decimal;

/// A JSON value that keeps what a fingerprint needs: every number as it was spelled.
///
/// [`parse_json`] makes values no deeper than [`JsonLimits::DEPTH_CEILING`]; whoever builds one by
/// hand keeps to that, because walking a value uses the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number, as it was spelled.
    Number(String),
    /// A string, decoded.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object, in the order of the text; no key twice.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The member `key` of an object; `None` if there is none or this is no object.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members
                .iter()
                .find_map(|(name, value)| (name == key).then_some(value)),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    /// A copy without what the pointers name: fields that do not count, the idempotency key among
    /// the arguments. All pointers are read against this value, so removing one element of an
    /// array does not move what another pointer names. What is not there is not missed; the empty
    /// pointer leaves `null`.
    #[must_use]
    pub fn without(&self, pointers: &[Pointer]) -> Self {
        let paths: Vec<Vec<String>> = pointers.iter().map(|p| p.tokens().collect()).collect();
        let paths: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
        self.without_paths(&paths).unwrap_or(Self::Null)
    }

    fn without_paths(&self, paths: &[&[String]]) -> Option<Self> {
        if paths.iter().any(|path| path.is_empty()) {
            return None;
        }
        if paths.is_empty() {
            return Some(self.clone());
        }
        let below = |name: &str| -> Vec<&[String]> {
            paths
                .iter()
                .filter_map(|path| path.split_first())
                .filter_map(|(first, rest)| (first == name).then_some(rest))
                .collect()
        };
        Some(match self {
            Self::Object(members) => Self::Object(
                members
                    .iter()
                    .filter_map(|(name, value)| {
                        let kept = value.without_paths(&below(name))?;
                        Some((name.clone(), kept))
                    })
                    .collect(),
            ),
            Self::Array(elements) => Self::Array(
                elements
                    .iter()
                    .enumerate()
                    .filter_map(|(index, value)| value.without_paths(&below(&index.to_string())))
                    .collect(),
            ),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) => self.clone(),
        })
    }

    /// The value for a handler. What the fingerprint holds equal looks the same here: a number
    /// that is an integer and fits `i64` or `u64` is that integer however it was spelled (`1.0`,
    /// `1e0`, `-0`), every other one the nearest double. A number beyond the doubles, which only a
    /// value built by hand can hold, becomes `null`.
    #[must_use]
    pub fn to_value(&self) -> serde_json::Value {
        use serde_json::Value;
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(literal) => number_value(literal),
            Self::String(text) => Value::String(text.clone()),
            Self::Array(elements) => elements.iter().map(Self::to_value).collect(),
            Self::Object(members) => Value::Object(
                members
                    .iter()
                    .map(|(name, value)| (name.clone(), value.to_value()))
                    .collect(),
            ),
        }
    }
}

fn number_value(literal: &str) -> serde_json::Value {
    use serde_json::{Number, Value};
    let integer = Decimal::read(literal).and_then(|decimal| decimal.to_integer());
    let integer = integer.and_then(|wide| {
        let signed = i64::try_from(wide).map(Number::from);
        signed
            .or_else(|_| u64::try_from(wide).map(Number::from))
            .ok()
    });
    let double = || literal.parse().ok().and_then(Number::from_f64);
    integer.or_else(double).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Json {
        parse_json(text.as_bytes(), JsonLimits::default()).unwrap()
    }

    fn without(text: &str, pointers: &[&str]) -> String {
        let pointers: Vec<_> = pointers.iter().map(|p| Pointer::new(*p).unwrap()).collect();
        String::from_utf8(read(text).without(&pointers).canonical()).unwrap()
    }

    #[test]
    fn get_finds_members_of_objects_only() {
        let value = read(r#"{"a": 1, "": [2]}"#);
        assert_eq!(value.get("a"), Some(&Json::Number("1".to_owned())));
        assert_eq!(value.get(""), Some(&read("[2]")));
        assert_eq!(value.get("b"), None);
        assert_eq!(read("[1]").get("0"), None);
    }

    #[test]
    fn without_leaves_the_named_members_out() {
        let text = r#"{"idempotency_key": "k", "a": {"b": 1, "c": 2}, "x/y": 3, "m~n": 4}"#;
        assert_eq!(
            without(text, &["/idempotency_key", "/a/b", "/x~1y", "/m~0n"]),
            r#"{"a":{"c":2}}"#
        );
        assert_eq!(
            without(text, &["/a/b/c", "/nowhere", "/a/0"]),
            without(text, &[])
        );
        assert_eq!(without(text, &[""]), "null");
        assert_eq!(without(r#"{"": 1, "a": 2}"#, &["/"]), r#"{"a":2}"#);
    }

    #[test]
    fn without_reads_every_pointer_against_the_original() {
        assert_eq!(without("[10, 20, 30]", &["/0", "/1"]), "[3e1]");
        assert_eq!(without("[[1, 2], 3]", &["/0/1", "/0/0"]), "[[],3]");
        // `-`, leading zeros and signs name no element.
        assert_eq!(without("[1, 2]", &["/-", "/00", "/+1", "/2"]), "[1,2]");
    }

    #[test]
    fn equal_numbers_reach_a_handler_as_one_value() {
        for one in ["1", "1.0", "1e0", "10e-1", "0.1E+1"] {
            assert_eq!(read(one).to_value(), json!(1), "{one}");
        }
        for zero in ["0", "-0", "0.0", "-0.0e5", "0e999999999999999999999"] {
            assert_eq!(read(zero).to_value(), json!(0), "{zero}");
        }
        assert_eq!(read("1e2").to_value(), json!(100));
        assert_eq!(read("1.5").to_value(), json!(1.5));
        assert_eq!(read("9223372036854775807").to_value(), json!(i64::MAX));
        assert_eq!(read("-9223372036854775808").to_value(), json!(i64::MIN));
        assert_eq!(read("18446744073709551615").to_value(), json!(u64::MAX));
        assert_eq!(
            read("18446744073709551616").to_value(),
            json!(18_446_744_073_709_551_616.0)
        );
        assert_eq!(
            read("-9223372036854775809").to_value(),
            json!(-9_223_372_036_854_775_809.0)
        );
        assert_eq!(read("1e-400").to_value(), json!(0.0));
        assert_eq!(Json::Number("1e400".to_owned()).to_value(), json!(null));
    }

    #[test]
    fn to_value_keeps_structure() {
        let text = r#"{"a": [null, true, "ß", {"b": []}], "z": {}}"#;
        let plain: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(read(text).to_value(), plain);
    }
}
