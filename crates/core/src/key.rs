use std::fmt;

/// Longest key, in characters.
pub const KEY_CHARS_MAX: usize = 200;
/// Longest key in `_meta`, in characters (all ASCII).
pub const META_KEY_CHARS_MAX: usize = 128;

/// An idempotency key: 1 to 200 characters, no control characters. Chosen by the caller when it
/// forms the intention, reused for every retry of that intention.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// Why a key is refused, before any work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// Not 1 to 200 characters.
    #[error("an idempotency key has 1 to {KEY_CHARS_MAX} characters, this one has {chars}")]
    Length {
        /// How many it has.
        chars: usize,
    },
    /// A control character.
    #[error("an idempotency key holds no control characters")]
    Control,
    /// Not UTF-8.
    #[error("an idempotency key is UTF-8 text")]
    NotText,
    /// Opens with a quote and is no structured-field string.
    #[error("a quoted idempotency key is one structured-field string, such as \"abc\"")]
    Quoting,
    /// Two different keys in one request.
    #[error("the request carries two different idempotency keys")]
    Ambiguous,
    /// In `_meta`: not 1 to 128 printable ASCII characters.
    #[error("a key in _meta has 1 to {META_KEY_CHARS_MAX} printable ASCII characters")]
    Meta,
}

impl Key {
    /// Checks a key given as plain text (an argument, a library call).
    ///
    /// # Errors
    /// [`InvalidKey`] says which rule it breaks.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidKey> {
        let text = text.into();
        let chars = text.chars().count();
        if !(1..=KEY_CHARS_MAX).contains(&chars) {
            return Err(InvalidKey::Length { chars });
        }
        if text.chars().any(char::is_control) {
            return Err(InvalidKey::Control);
        }
        Ok(Self(text))
    }

    /// Checks a key found in `_meta`: 1 to 128 printable ASCII characters.
    ///
    /// # Errors
    /// [`InvalidKey::Meta`] for anything else.
    pub fn from_meta(text: &str) -> Result<Self, InvalidKey> {
        let printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
        if text.is_empty() || text.len() > META_KEY_CHARS_MAX || !printable {
            return Err(InvalidKey::Meta);
        }
        Ok(Self(text.to_owned()))
    }

    /// The key of the `Idempotency-Key` header lines of one request, if there is any. The bare
    /// form and the structured-field string form are one key.
    ///
    /// # Errors
    /// [`InvalidKey`] if one is malformed, or two differ.
    pub fn from_headers<'a>(
        lines: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Option<Self>, InvalidKey> {
        let mut found: Option<Self> = None;
        for line in lines {
            let key = Self::from_header(line)?;
            match &found {
                Some(earlier) if *earlier != key => return Err(InvalidKey::Ambiguous),
                Some(_) => {}
                None => found = Some(key),
            }
        }
        Ok(found)
    }

    fn from_header(line: &[u8]) -> Result<Self, InvalidKey> {
        let text = std::str::from_utf8(line).map_err(|_| InvalidKey::NotText)?;
        let text = text.trim_matches([' ', '\t']);
        match text.strip_prefix('"') {
            Some(rest) => Self::new(unquote(rest)?),
            None => Self::new(text),
        }
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The rest of a structured-field string (RFC 9651 §3.3.3) after its opening quote.
fn unquote(rest: &str) -> Result<String, InvalidKey> {
    let inner = rest.strip_suffix('"').ok_or(InvalidKey::Quoting)?;
    let mut text = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => match chars.next() {
                Some(escaped @ ('"' | '\\')) => escaped,
                Some(_) | None => return Err(InvalidKey::Quoting),
            },
            '"' => return Err(InvalidKey::Quoting),
            other if other.is_ascii() => other,
            _ => return Err(InvalidKey::Quoting),
        };
        text.push(plain);
    }
    Ok(text)
}

impl fmt::Debug for Key {
    /// Never the key itself: it may say what a caller intends.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}
