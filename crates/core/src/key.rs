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

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> Result<Option<String>, InvalidKey> {
        let lines = lines.iter().map(|line| line.as_bytes());
        Key::from_headers(lines).map(|key| key.map(|key| key.as_str().to_owned()))
    }

    fn one(line: &str) -> Result<String, InvalidKey> {
        headers(&[line]).map(Option::unwrap)
    }

    #[test]
    fn one_to_two_hundred_characters() {
        for count in [1, 2, 199, 200] {
            assert!(Key::new("k".repeat(count)).is_ok(), "{count}");
            // Characters are counted, not bytes.
            assert!(Key::new("ü".repeat(count)).is_ok(), "{count}");
            assert!(Key::new("😀".repeat(count)).is_ok(), "{count}");
        }
        for chars in [0, 201, 100_000] {
            let wanted = Err(InvalidKey::Length { chars });
            assert_eq!(Key::new("k".repeat(chars)), wanted);
            assert_eq!(Key::new("😀".repeat(chars)), wanted);
        }
    }

    #[test]
    fn control_characters_are_refused_anywhere() {
        for control in [
            '\0', '\t', '\n', '\r', '\u{1f}', '\u{7f}', '\u{80}', '\u{9f}',
        ] {
            for text in [
                format!("{control}k"),
                format!("k{control}"),
                format!("k{control}k"),
            ] {
                assert_eq!(Key::new(text.clone()), Err(InvalidKey::Control), "{text:?}");
            }
        }
        assert!(Key::new("a b\u{a0}c").is_ok());
    }

    #[test]
    fn keys_are_compared_as_they_are() {
        assert_ne!(Key::new("a").unwrap(), Key::new("A").unwrap());
        assert_ne!(Key::new("a").unwrap(), Key::new("a ").unwrap());
        assert_ne!(Key::new("é").unwrap(), Key::new("e\u{301}").unwrap());
    }

    #[test]
    fn a_key_in_meta_is_128_printable_ascii_characters_at_most() {
        for good in ["k", " ", "~", "a b", &"k".repeat(128)] {
            assert_eq!(Key::from_meta(good).unwrap().as_str(), good);
        }
        for bad in ["", "é", "\u{7f}", "a\nb", "\t", &"k".repeat(129)] {
            assert_eq!(Key::from_meta(bad), Err(InvalidKey::Meta), "{bad:?}");
        }
    }

    #[test]
    fn bare_and_quoted_are_one_key() {
        assert_eq!(headers(&[]), Ok(None));
        assert_eq!(one("abc"), Ok("abc".to_owned()));
        assert_eq!(one("\"abc\""), Ok("abc".to_owned()));
        assert_eq!(one(" \t\"abc\" \t"), Ok("abc".to_owned()));
        assert_eq!(one("\"a\\\"b\\\\c\""), Ok("a\"b\\c".to_owned()));
        // Bare, a quote or a backslash inside is itself.
        assert_eq!(one("a\"b\\c"), Ok("a\"b\\c".to_owned()));
        assert_eq!(one("clé"), Ok("clé".to_owned()));
    }

    #[test]
    fn several_lines_must_agree() {
        assert_eq!(headers(&["a", "a"]), Ok(Some("a".to_owned())));
        assert_eq!(headers(&["a", "\"a\"", " a "]), Ok(Some("a".to_owned())));
        assert_eq!(headers(&["a", "b"]), Err(InvalidKey::Ambiguous));
        assert_eq!(headers(&["a", "a", "\"b\""]), Err(InvalidKey::Ambiguous));
        // Every line must be a key, whatever the others are.
        assert_eq!(headers(&["a", ""]), Err(InvalidKey::Length { chars: 0 }));
        assert_eq!(headers(&["a", "\"a"]), Err(InvalidKey::Quoting));
    }

    #[test]
    fn malformed_quoting_is_refused() {
        for bad in [
            "\"",
            "\"abc",
            "\"abc\\\"",
            "\"a\"b\"",
            "\"a\\b\"",
            "\"abc\";x=1",
            "\"abc\", \"abc\"",
            "\"clé\"",
        ] {
            assert_eq!(one(bad), Err(InvalidKey::Quoting), "{bad}");
        }
    }

    #[test]
    fn the_rules_hold_inside_quotes_and_for_headers() {
        assert_eq!(one("\"\""), Err(InvalidKey::Length { chars: 0 }));
        assert_eq!(one(""), Err(InvalidKey::Length { chars: 0 }));
        assert_eq!(one("  \t "), Err(InvalidKey::Length { chars: 0 }));
        let quoted = |count: usize| format!("\"{}\"", "k".repeat(count));
        assert!(one(&quoted(200)).is_ok());
        assert_eq!(one(&quoted(201)), Err(InvalidKey::Length { chars: 201 }));
        assert_eq!(one("\"a\u{7f}\""), Err(InvalidKey::Control));
        assert_eq!(one("a\u{1}b"), Err(InvalidKey::Control));
        assert_eq!(Key::from_headers([&b"\xff"[..]]), Err(InvalidKey::NotText));
    }

    #[test]
    fn debug_never_shows_the_key() {
        let shown = format!("{:?}", Key::new("pay-invoice-7").unwrap());
        assert_eq!(shown, "Key(13 bytes)");
    }
}
