use serde_json::Value;

/// A JSON Pointer (RFC 6901) to a value that must not be stored, or that does not count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer(String);

/// Text that is no JSON Pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no JSON Pointer: it must be empty or start with `/`, and `~` only stands in `~0` or `~1`"
)]
pub struct InvalidPointer(String);

impl Pointer {
    /// Checks the form: a pointer that could never name anything would redact nothing, unseen.
    ///
    /// # Errors
    /// [`InvalidPointer`] if the text is neither empty nor starts with `/`, or holds a `~` that is
    /// followed by neither `0` nor `1`.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidPointer> {
        let text = text.into();
        let escapes = text.split('~').skip(1);
        let escaped = escapes.into_iter().all(|rest| rest.starts_with(['0', '1']));
        if (text.is_empty() || text.starts_with('/')) && escaped {
            Ok(Self(text))
        } else {
            Err(InvalidPointer(text))
        }
    }

    /// The pointer as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its reference tokens, unescaped; none for the whole document.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = String> + '_ {
        let tokens = self.0.split('/').skip(1);
        // In this order, so that `~01` is `~1` and not `/`.
        tokens.map(|token| token.replace("~1", "/").replace("~0", "~"))
    }
}

/// Nulls what the pointers name, where it is there. Works on the domain result, before any text
/// is rendered from it.
pub fn redact(value: &mut Value, pointers: &[Pointer]) {
    for pointer in pointers {
        if let Some(found) = value.pointer_mut(pointer.as_str()) {
            *found = Value::Null;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn redacted(mut value: Value, pointers: &[&str]) -> Value {
        let pointers: Vec<_> = pointers.iter().map(|p| Pointer::new(*p).unwrap()).collect();
        redact(&mut value, &pointers);
        value
    }

    #[test]
    fn pointers_have_their_form() {
        for good in ["", "/", "/a", "/a~0b/c~1d", "/~01", "//"] {
            assert_eq!(Pointer::new(good).unwrap().as_str(), good);
        }
        for bad in ["a", "#/a", "/a~", "/~2", "/a~b", " /a", "~0"] {
            assert!(Pointer::new(bad).is_err(), "{bad}");
        }
        let tokens = |text| Pointer::new(text).unwrap().tokens().collect::<Vec<_>>();
        assert_eq!(tokens(""), Vec::<String>::new());
        assert_eq!(tokens("/"), [""]);
        assert_eq!(tokens("/~01/a~1b"), ["~1", "a/b"]);
    }

    #[test]
    fn field_09_redaction_nulls_what_is_named_and_nothing_else() {
        let value =
            json!({"id": "k", "key": "secret", "list": [{"key": "s"}, 2], "a/b": {"m~n": 1}});
        assert_eq!(
            redacted(value.clone(), &["/key", "/list/0/key", "/a~1b/m~0n"]),
            json!({"id": "k", "key": null, "list": [{"key": null}, 2], "a/b": {"m~n": null}})
        );
        assert_eq!(
            redacted(value.clone(), &["/nowhere", "/list/7", "/id/x"]),
            value
        );
        assert_eq!(redacted(value.clone(), &[""]), Value::Null);
        assert_eq!(
            redacted(value, &["/list", "/list/0/key"])["list"],
            Value::Null
        );
    }
}
