use std::fmt;

/// The prefix of our own `_meta` keys, `dev.counterfoil/` unless configured.
#[derive(Clone, PartialEq, Eq)]
pub struct MetaPrefix(String);

/// Text that cannot be a `_meta` prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMetaPrefix {
    /// Not labels separated by dots.
    #[error(
        "`{0}` is no _meta prefix: it must be labels separated by dots, each a letter, then letters, digits or hyphens, ending with a letter or digit"
    )]
    Form(String),
    /// The second label is `mcp` or `modelcontextprotocol`.
    #[error(
        "`{0}` is reserved by MCP: the second label must not be `mcp` or `modelcontextprotocol`"
    )]
    Reserved(String),
}

impl MetaPrefix {
    /// Checks a prefix, given with or without its slash.
    ///
    /// # Errors
    /// [`InvalidMetaPrefix`] if it does not have the form, or is reserved by MCP.
    pub fn new(text: &str) -> Result<Self, InvalidMetaPrefix> {
        let bare = text.strip_suffix('/').unwrap_or(text);
        let label = |label: &str| {
            label.starts_with(|c: char| c.is_ascii_alphabetic())
                && label.ends_with(|c: char| c.is_ascii_alphanumeric())
                && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        if bare.len() > 128 || !bare.split('.').all(label) {
            return Err(InvalidMetaPrefix::Form(text.to_owned()));
        }
        if let Some("mcp" | "modelcontextprotocol") = bare.split('.').nth(1) {
            return Err(InvalidMetaPrefix::Reserved(text.to_owned()));
        }
        Ok(Self(format!("{bare}/")))
    }

    /// The `_meta` key `name` under this prefix, such as `dev.counterfoil/replayed`.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }
}

impl Default for MetaPrefix {
    fn default() -> Self {
        Self("dev.counterfoil/".to_owned())
    }
}

impl fmt::Display for MetaPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MetaPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MetaPrefix({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_their_form_and_reserved_ones_are_refused() {
        for (good, key) in [
            ("dev.counterfoil/", "dev.counterfoil/replayed"),
            ("assay", "assay/replayed"),
            ("com.example.mcp", "com.example.mcp/replayed"),
            ("mcp", "mcp/replayed"),
        ] {
            assert_eq!(MetaPrefix::new(good).unwrap().key("replayed"), key);
        }
        for reserved in ["dev.mcp", "io.modelcontextprotocol/", "com.mcp.tools"] {
            assert!(matches!(
                MetaPrefix::new(reserved),
                Err(InvalidMetaPrefix::Reserved(_))
            ));
        }
        for bad in ["", "/", "a..b", "1a", "a-", "a b", "ä", "a/b"] {
            assert!(
                matches!(MetaPrefix::new(bad), Err(InvalidMetaPrefix::Form(_))),
                "{bad}"
            );
        }
    }
}
