use std::fmt;

/// Longest id, in bytes of JSON text.
const ID_BYTES_MAX: usize = 1024;

/// A request's id as it was spelled: a JSON string or integer. Echoed byte for byte.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Id(Box<str>);

impl Id {
    /// From JSON text; `None` if that is no string or integer, or too long.
    #[must_use]
    pub fn from_json(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // A lone surrogate in an id could not be echoed to a strict reader.
        let string = text.starts_with('"')
            && serde_json::from_str::<std::borrow::Cow<'_, str>>(text).is_ok();
        (text.len() <= ID_BYTES_MAX && (integer || string)).then(|| Self(text.into()))
    }

    /// A number.
    #[must_use]
    pub fn number(number: u64) -> Self {
        Self(number.to_string().into())
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
