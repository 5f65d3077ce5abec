use counterfoil_core::{Fingerprint, JsonLimits, Pointer, Rule, parse_json};

use crate::{Problem, issues::malformed};

/// What makes two requests the same one. The query always counts byte for byte; the content type
/// never counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FingerprintBy {
    /// The body byte for byte: another order of fields is another request. The default.
    #[default]
    RawBytes,
    /// The body as a JSON value: order of fields, white space and the spelling of numbers do not
    /// count. A body that is no JSON is refused; an empty one counts as raw bytes.
    CanonicalJson {
        /// Fields that do not count.
        except: Vec<Pointer>,
    },
}

impl FingerprintBy {
    /// The fingerprint of a request.
    ///
    /// # Errors
    /// 400 `malformed_request` if the body must be JSON and is none.
    pub fn of(&self, query: &str, body: &[u8]) -> Result<Fingerprint, Problem> {
        match self {
            Self::CanonicalJson { except } if !body.is_empty() => {
                let json =
                    parse_json(body, JsonLimits::default()).map_err(|why| malformed(&why))?;
                let counting = if except.is_empty() {
                    json
                } else {
                    json.without(except)
                };
                Ok(Fingerprint::canonical(query, &counting.canonical()))
            }
            Self::RawBytes | Self::CanonicalJson { .. } => Ok(Fingerprint::raw(query, body)),
        }
    }
}

/// The sentence that tells a caller by which rule its request was found different.
pub(crate) const fn rule_text(rule: Rule) -> &'static str {
    match rule {
        Rule::Raw1 => {
            "This route compares the body and the query byte for byte: the order of fields and white space count."
        }
        Rule::Canonical1 => {
            "This route compares the body as a JSON value and the query byte for byte: the order of fields, white space and the spelling of numbers do not count."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(except: &[&str]) -> FingerprintBy {
        let except = except.iter().map(|p| Pointer::new(*p).unwrap()).collect();
        FingerprintBy::CanonicalJson { except }
    }

    #[test]
    fn field_01_raw_bytes_count_the_order_of_fields_and_canonical_json_does_not() {
        let (one, other): (&[u8], &[u8]) = (br#"{"a":1,"b":2}"#, br#"{"b": 2.0, "a": 1}"#);
        let raw = FingerprintBy::RawBytes;
        assert_ne!(raw.of("", one).unwrap(), raw.of("", other).unwrap());
        let json = canonical(&[]);
        assert_eq!(json.of("", one).unwrap(), json.of("", other).unwrap());
        assert_ne!(json.of("", one).unwrap(), json.of("x=1", one).unwrap());
        assert_ne!(raw.of("", one).unwrap(), raw.of("x=1", one).unwrap());
    }

    #[test]
    fn fields_that_do_not_count_are_left_out() {
        let by = canonical(&["/sent_at"]);
        let of = |text: &str| by.of("", text.as_bytes()).unwrap();
        assert_eq!(of(r#"{"a":1,"sent_at":1}"#), of(r#"{"sent_at":2,"a":1}"#));
        assert_ne!(of(r#"{"a":1,"sent_at":1}"#), of(r#"{"sent_at":1,"a":2}"#));
    }

    #[test]
    fn a_body_that_must_be_json_and_is_none_is_refused_and_an_empty_one_is_not() {
        assert_eq!(
            canonical(&[]).of("", b"{").unwrap_err().code(),
            "malformed_request"
        );
        assert_eq!(canonical(&[]).of("", b"").unwrap().rule, Rule::Raw1);
    }
}
