mod parameters;

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
        if let Some(rest) = text.strip_prefix(SQLITE) {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if path.is_empty() {
                return Err("must name a file after sqlite:".to_owned());
            }
            let names_host = path.len() < rest.len() && !path.starts_with('/');
            if path.contains("://") || (names_host && path.contains('@')) {
                return Err("must name a file after sqlite:, not a host or a URL".to_owned());
            }
            return Ok(Self::Sqlite(Some(PathBuf::from(path))));
        }
        // A word or a scheme that is nearly right must not become the name of a new, empty file,
        // which is shown.
        let lower = text.to_ascii_lowercase();
        let word = lower.split([':', '/']).next().unwrap_or_default();
        let near = nearest(word, SCHEMES.into_iter());
        let is_url = text.contains("://")
            || text.contains(['@', '='])
            || lower.starts_with("postgre")
            || (lower.starts_with(&format!("{word}:")) && near.is_some());
        if text.contains(['/', '.']) && !is_url {
            return Ok(Self::Sqlite(Some(PathBuf::from(text))));
        }
        let meant = near.map_or("", |near| match near {
            "sqlite" => "; did you mean sqlite:?",
            _ => "; did you mean postgres://?",
        });
        Err(format!(
            "must be postgres://user@host:5432/database, sqlite:FILE, or a path with a / or a . in it (with sqlite: in front if it begins with postgres, or has an @ or a = in it){meant}"
        ))
    }

    /// The same with a password that is kept elsewhere.
    pub(crate) fn with_password(self, password: &str) -> Self {
        match self {
            Self::Postgres(mut url) => {
                match url.split_once('?') {
                    None => url.push('?'),
                    Some((_, "")) => {}
                    Some(_) => url.push('&'),
                }
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

/// As it may be shown: without a password, and without values that may hold one.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(None) => f.write_str("the SQLite file in the data folder"),
            Self::Sqlite(Some(path)) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&shown(url)),
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

/// Refuses what the driver would not understand, or would understand otherwise than it is shown.
fn check(rest: &str) -> Result<(), String> {
    if rest.is_empty() {
        return Err("must name a host after postgres://".to_owned());
    }
    let (credentials, place) = rest.split_once('@').unwrap_or(("", rest));
    if place.contains('@') {
        return Err(
            "has more than one @; write %40 for all but the one before the host".to_owned(),
        );
    }
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let begins_parameters = |(_, after): (&str, &str)| after.contains('=');
    if user.contains(['/', '?', '=']) || password.split_once('?').is_some_and(begins_parameters) {
        return Err(
            "has an @ after the host; write %40 for it, and %3F for a ? in a password".to_owned(),
        );
    }
    let (place, parameters) = place.split_once('?').unwrap_or((place, ""));
    if place.contains('=') {
        return Err("has a = before any ?; it looks like postgres://user@host:5432/database?sslmode=require".to_owned());
    }
    let hosts = place.split('/').next().unwrap_or_default();
    if !hosts.split(',').all(has_port_or_none) {
        return Err("has no port after the : of its host; write a number there, or an @ between a password and the host".to_owned());
    }
    parameters::check(parameters)
}

/// Whether what follows the colon of a host, if there is one, is a port.
fn has_port_or_none(host: &str) -> bool {
    let after = match host.strip_prefix('[') {
        Some(literal) => literal.split_once(']').map(|(_, after)| after),
        None => host.find(':').map(|colon| &host[colon..]).or(Some("")),
    };
    after.is_some_and(|after| match after.strip_prefix(':') {
        Some(port) => port.is_empty() || parameters::is_port(port),
        None => after.is_empty(),
    })
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
    let parameters = rest.split_once('?').map_or("", |(_, all)| all);
    inline || parameters::hold_password(parameters)
}

/// The text of an address as it may be shown. What is no address may be anything.
pub(crate) fn without_password(text: &str) -> String {
    match Address::parse(text) {
        Ok(Address::Postgres(url)) => shown(&url),
        Ok(Address::Sqlite(_)) if !has_password(text) => text.to_owned(),
        Ok(Address::Sqlite(_)) => "(not shown: it holds a password)".to_owned(),
        Err(_) => "(not shown: it is no address)".to_owned(),
    }
}

/// A PostgreSQL URL that was found right, as it may be shown.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let (user, place) = match rest.split_once('@') {
        Some((credentials, place)) => {
            let user = credentials.split(':').next().unwrap_or_default();
            (format!("{user}@"), place)
        }
        None => (String::new(), rest),
    };
    let (place, all) = place.split_once('?').unwrap_or((place, ""));
    let parameters = parameters::shown(all).map_or_else(String::new, |shown| format!("?{shown}"));
    format!("{scheme}://{user}{place}{parameters}")
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
            ("posts/receipts.db", Some("posts/receipts.db")),
            ("sqlite:postgres/me@home.db", Some("postgres/me@home.db")),
        ] {
            let expected = Address::Sqlite(file.map(PathBuf::from));
            assert_eq!(Address::parse(text), Ok(expected), "{text}");
        }
        for url in [
            "postgres://u@h/d",
            "postgresql://u:p@h:1/d?sslmode=require",
            "postgres://%2Frun%2Fpostgresql/d",
            "postgres://?host=/run/postgresql&dbname=d",
            "postgres://u:hun/ter2=@h:1,[::1]:2,[::2],i:/d?port=1,,2&hostaddr=::1,127.0.0.1",
            "postgres://u@h/d?sslmode=prefer&target_session_attrs=read-write&options=-c%20a=b",
            "postgres://u@h/d?",
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
    fn what_is_no_address_is_no_path() {
        for (text, part) in [
            ("postgres//u:hunter2@h/d", "did you mean postgres://?"),
            ("Postgresql//u:hunter2/d", "did you mean postgres://?"),
            ("postgres.hunter2", "with sqlite: in front"),
            ("postgers:/hunter2/d", "did you mean postgres://?"),
            ("POSTGRES://u:hunter2@h/d", "did you mean postgres://?"),
            ("//u:hunter2@h/d", "must be postgres://"),
            ("u:hunter2@h.example/d", "must be postgres://"),
            ("./hunter2@h", "with sqlite: in front"),
            ("https://h/hunter2", "must be postgres://"),
            ("sqlite:postgres://u:hunter2@h/d", "not a host or a URL"),
            ("sqlite://u:hunter2@h/d", "not a host or a URL"),
        ] {
            let said = Address::parse(text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
            assert!(said.contains("must "), "{text}: {said}");
            assert!(!said.contains("hunter2"), "{text}: {said}");
            assert!(!without_password(text).contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_postgres_url_is_read_as_it_is_shown_or_refused_without_its_values() {
        for (rest, part) in [
            ("u@h/d?passwd=hunter2", "did you mean password?"),
            ("u@h/d?passwor=hunter2", "did you mean password?"),
            ("u@h/d?PASSWORD=hunter2", "did you mean password?"),
            ("u@h/d?sslmode=require&pass%77d=hunter2", "parameter 2"),
            ("u@h/d?ssl_mode=hunter2", "did you mean sslmode?"),
            ("u@h/d?zz=hunter2", "what there is: user, password,"),
            ("u@h/d?password=a&hunter2=b", "parameter 2"),
            ("u@h/d?password=a&hunter2", "%26"),
            ("u@h/d?&port=1", "parameter 1"),
            ("u@h/d?passwd=hun@hunter2", "more than one @"),
            ("h/d?passwd=hun@hunter2", "%40"),
            ("h:1/d?passwd=hun@hunter2", "%40"),
            ("u:hunter2/h/d", "an @ between"),
            ("u:hunter2%40h/d", "an @ between"),
            ("[::1]hunter2/d", "port"),
            ("[hunter2/d", "port"),
            ("h:0/d?application_name=hunter2", "port"),
            ("u@h/d&password=hunter2", "before any ?"),
            ("user=u;password=hunter2@h/d", "%40"),
            ("u@h/d?port=hunter2", "port: it must be a number"),
            ("u@h/d?hostaddr=hunter2", "an IP address"),
            ("u@h/d?keepalives=hunter2", "a whole number"),
            (
                "u@h/d?target_session_attrs=hunter2",
                "read-write or read-only",
            ),
        ] {
            let text = format!("postgres://{rest}");
            let said = Address::parse(&text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
            assert!(!said.contains("hunter2"), "{text}: {said}");
            assert!(!without_password(&text).contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn require_is_said_to_verify() {
        for mode in ["verify-full", "verify-ca", "allow", ""] {
            let said = Address::parse(&format!("postgres://h/d?sslmode={mode}")).unwrap_err();
            assert!(said.contains("disable, prefer or require;"), "{said}");
            assert!(said.contains("require verifies the certificate"), "{said}");
        }
    }

    #[test]
    fn no_password_is_ever_shown() {
        for (text, shown) in [
            ("postgres://u:hunter2@h:1/d", "postgres://u@h:1/d"),
            (
                "postgres://u:hunter2@h/d?application_name=b",
                "postgres://u@h/d?application_name=b",
            ),
            ("postgres://u@h/d?password=hunter2", "postgres://u@h/d"),
            (
                "postgres://h/d?sslmode=require&pass%77ord=hunter2&port=1",
                "postgres://h/d?sslmode=require&port=1",
            ),
            (
                "postgres://h/d?options=hunter2&password=p&user=hunter2",
                "postgres://h/d?options=…&user=…",
            ),
            ("postgres://u:hun/ter2@h/d", "postgres://u@h/d"),
            ("postgres://u:hun?ter2@h/d", "postgres://u@h/d"),
            (
                "postgres://u:hunter2@ter2@h/d",
                "(not shown: it is no address)",
            ),
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
        for (before, after) in [("", "?"), ("?", ""), ("?port=1", "&")] {
            let url = format!("postgres://h{before}");
            let expected = Address::Postgres(format!("{url}{after}password=p"));
            assert_eq!(Address::Postgres(url).with_password("p"), expected);
            assert_eq!(
                Address::parse(match &expected {
                    Address::Postgres(url) => url,
                    Address::Sqlite(_) => "",
                }),
                Ok(expected.clone())
            );
        }
        assert_eq!(
            format!("{address:?} {address}"),
            "postgres://u@h/d postgres://u@h/d"
        );
    }
}
