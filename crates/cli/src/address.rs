use std::{fmt, path::PathBuf};

use crate::config::nearest;

/// Where the receipts are.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// In a SQLite file; `None`: the one in the data folder.
    Sqlite(Option<PathBuf>),
    /// In a PostgreSQL database, by its URL, which may hold a password.
    Postgres(String),
}

const POSTGRES: [&str; 2] = ["postgres://", "postgresql://"];
const SQLITE: &str = "sqlite:";
/// What stands before the first colon, for whoever mistypes it.
const SCHEMES: [&str; 3] = ["postgres", "postgresql", "sqlite"];

impl Address {
    /// Reads an address. What is wrong never quotes it: a password may be in it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::Sqlite(None));
        }
        if let Some(rest) = after_scheme(text) {
            check(rest)?;
            return Ok(Self::Postgres(text.to_owned()));
        }
        if let Some(path) = text.strip_prefix(SQLITE) {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err("must name a file after sqlite:".to_owned());
            }
            return Ok(Self::Sqlite(Some(PathBuf::from(path))));
        }
        // A word or a scheme that is nearly right must not become the name of a new, empty file.
        let word = text.split(':').next().unwrap_or(text);
        let is_path = text.contains(['/', '.']) && !text.contains("://") && !text.contains('=');
        if is_path && !SCHEMES.contains(&word) {
            return Ok(Self::Sqlite(Some(PathBuf::from(text))));
        }
        let meant = nearest(word, SCHEMES.into_iter()).map_or("", |near| match near {
            "sqlite" => "; did you mean sqlite:?",
            _ => "; did you mean postgres://?",
        });
        Err(format!(
            "must be postgres://user@host:5432/database, sqlite:FILE, or a path with a / or a . in it{meant}"
        ))
    }

    /// The same with a password that is kept elsewhere.
    pub(crate) fn with_password(self, password: &str) -> Self {
        match self {
            Self::Postgres(mut url) => {
                url.push(if url.contains('?') { '&' } else { '?' });
                url.push_str("password=");
                for byte in password.bytes() {
                    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                        url.push(char::from(byte));
                    } else {
                        url.push_str(&format!("%{byte:02X}"));
                    }
                }
                Self::Postgres(url)
            }
            Self::Sqlite(path) => Self::Sqlite(path),
        }
    }
}

/// As it may be shown: without a password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(None) => f.write_str("the SQLite file in the data folder"),
            Self::Sqlite(Some(path)) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&without_password(url)),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What follows the scheme of a PostgreSQL URL.
fn after_scheme(text: &str) -> Option<&str> {
    POSTGRES.iter().find_map(|scheme| text.strip_prefix(scheme))
}

fn check(rest: &str) -> Result<(), String> {
    if rest.is_empty() {
        return Err("must name a host after postgres://".to_owned());
    }
    let end = |text: &str| text.find(['/', '?']).unwrap_or(text.len());
    let place = rest.split_once('@').map_or(rest, |(_, place)| place);
    if place[..end(place)].contains('@') {
        return Err("has more than one @ before the database; write %40 in a password".to_owned());
    }
    Ok(())
}

/// Whether there is a password in it. Only a PostgreSQL URL can hold one, and what looks like
/// something else may be a mistyped one.
pub(crate) fn has_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else {
        return text.to_ascii_lowercase().contains("password=");
    };
    let inline = rest.split_once('@').is_some_and(|(credentials, _)| {
        credentials
            .split_once(':')
            .is_some_and(|(_, password)| !password.is_empty())
    });
    inline || parameters(rest).any(names_password)
}

/// The text of an address as it may be shown.
pub(crate) fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return if has_password(text) {
            "(not shown: it holds a password)".to_owned()
        } else {
            text.to_owned()
        };
    };
    // The last @ of all: where a password holds one by mistake, too little is shown, not too much.
    let rest = match rest.rsplit_once('@') {
        Some((credentials, place)) => {
            let user = credentials.split(':').next().unwrap_or_default();
            format!("{user}@{place}")
        }
        None => rest.to_owned(),
    };
    let kept: Vec<&str> = parameters(&rest)
        .filter(|part| !names_password(part))
        .collect();
    let place = rest.split('?').next().unwrap_or_default();
    if kept.is_empty() {
        format!("{scheme}://{place}")
    } else {
        format!("{scheme}://{place}?{}", kept.join("&"))
    }
}

fn parameters(rest: &str) -> impl Iterator<Item = &str> {
    let all = rest.split_once('?').map_or("", |(_, all)| all);
    all.split('&').filter(|part| !part.is_empty())
}

/// Whether a parameter is a password, however its name is spelled.
fn names_password(parameter: &str) -> bool {
    let name = parameter.split('=').next().unwrap_or_default();
    let mut plain = Vec::new();
    let mut bytes = name.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let pair = [bytes.next(), bytes.next()].map(|digit| {
                digit
                    .and_then(|digit| char::from(digit).to_digit(16))
                    .and_then(|digit| u8::try_from(digit).ok())
            });
            if let [Some(high), Some(low)] = pair {
                plain.push(high * 16 + low);
            }
        } else {
            plain.push(byte);
        }
    }
    plain.to_ascii_lowercase().ends_with(b"password")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        for (text, file) in [
            ("", None),
            ("sqlite:a", Some("a")),
            ("sqlite:/a/b.db", Some("/a/b.db")),
            ("sqlite:///a/b.db", Some("/a/b.db")),
            ("./a", Some("./a")),
            ("receipts.db", Some("receipts.db")),
        ] {
            let expected = Address::Sqlite(file.map(PathBuf::from));
            assert_eq!(Address::parse(text), Ok(expected), "{text}");
        }
        for url in [
            "postgres://u@h/d",
            "postgresql://u:p@h:1/d?sslmode=require",
            "postgres://%2Frun%2Fpostgresql/d",
        ] {
            assert_eq!(Address::parse(url), Ok(Address::Postgres(url.to_owned())));
        }
    }

    #[test]
    fn what_is_nearly_right_is_refused_without_being_quoted() {
        for (text, part) in [
            ("postgre://u:hunter2@h/d", "did you mean postgres://?"),
            ("postgres:/u:hunter2@h/d", "did you mean postgres://?"),
            ("sqllite:hunter2", "did you mean sqlite:?"),
            ("postgres", "did you mean postgres://?"),
            ("mysql://u:hunter2@h/d", "must be postgres://"),
            ("host=h password=hunter2", "must be postgres://"),
            ("hunter2", "must be postgres://"),
            ("postgres://", "must name a host"),
            ("sqlite:", "must name a file"),
            ("postgres://u:hunter2@x@h/d", "%40"),
        ] {
            let said = Address::parse(text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
            assert!(!said.contains("hunter2"), "{text}: {said}");
        }
    }

    #[test]
    fn no_password_is_ever_shown() {
        for (text, shown) in [
            ("postgres://u:hunter2@h:1/d", "postgres://u@h:1/d"),
            ("postgres://u:hunter2@h/d?a=b", "postgres://u@h/d?a=b"),
            ("postgres://u@h/d?password=hunter2", "postgres://u@h/d"),
            (
                "postgres://h/d?a=b&pass%77ord=hunter2&c=d",
                "postgres://h/d?a=b&c=d",
            ),
            ("postgres://u:hun/ter2@h/d", "postgres://u@h/d"),
            ("postgres://u:hun?ter2@h/d", "postgres://u@h/d"),
            ("postgres://u:hunter2@ter2@h/d", "postgres://u@h/d"),
        ] {
            assert_eq!(without_password(text), shown);
            assert!(has_password(text), "{text}");
            assert!(!has_password(shown), "{shown}");
        }
        assert_eq!(without_password("sqlite:a.db"), "sqlite:a.db");
        assert!(!without_password("host=h password=x").contains('x'));
        let address = Address::Postgres("postgres://u@h/d".to_owned()).with_password("a b&c/%");
        assert_eq!(
            address,
            Address::Postgres("postgres://u@h/d?password=a%20b%26c%2F%25".to_owned())
        );
        assert_eq!(
            format!("{address:?} {address}"),
            "postgres://u@h/d postgres://u@h/d"
        );
    }
}
