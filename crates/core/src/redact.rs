use serde_json::Value;

/// A JSON Pointer (RFC 6901) to a value that must not be stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer(String);

/// Text that is no JSON Pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no JSON Pointer: it must be empty or start with `/`")]
pub struct InvalidPointer(String);

impl Pointer {
    /// Checks the form.
    ///
    /// # Errors
    /// [`InvalidPointer`] if the text is neither empty nor starts with `/`.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidPointer> {
        let text = text.into();
        if text.is_empty() || text.starts_with('/') {
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
