//! What may follow the `?` of a PostgreSQL URL.

use std::net::IpAddr;

use crate::config::nearest;

/// What the value of a parameter is.
#[derive(Clone, Copy, Debug)]
enum Value {
    /// Anything, and so perhaps a secret: never shown.
    Hidden,
    /// Anything, and harmless.
    Name,
    Words(&'static [&'static str]),
    Number,
    Ports,
    Addresses,
}

/// Every name that the driver (`tokio_postgres::Config`) knows.
const PARAMETERS: [(&str, Value); 19] = [
    ("user", Value::Hidden),
    ("password", Value::Hidden),
    ("dbname", Value::Hidden),
    ("options", Value::Hidden),
    ("host", Value::Hidden),
    ("application_name", Value::Name),
    ("sslmode", Value::Words(&["disable", "prefer", "require"])),
    ("sslnegotiation", Value::Words(&["postgres", "direct"])),
    ("hostaddr", Value::Addresses),
    ("port", Value::Ports),
    ("connect_timeout", Value::Number),
    ("tcp_user_timeout", Value::Number),
    ("keepalives", Value::Number),
    ("keepalives_idle", Value::Number),
    ("keepalives_interval", Value::Number),
    ("keepalives_retries", Value::Number),
    (
        "target_session_attrs",
        Value::Words(&["any", "read-write", "read-only"]),
    ),
    (
        "channel_binding",
        Value::Words(&["disable", "prefer", "require"]),
    ),
    ("load_balance_hosts", Value::Words(&["disable", "random"])),
];

/// What stands for what is not shown.
const HIDDEN: &str = "…";

/// Checks all that follows the `?`. What is wrong quotes neither a value nor an unknown name: with
/// an & in it, a password goes on as a name.
pub(super) fn check(all: &str) -> Result<(), String> {
    if all.is_empty() {
        return Ok(());
    }
    for (index, part) in all.split('&').enumerate() {
        let nth = index + 1;
        let Some((name, value)) = part.split_once('=') else {
            return Err(format!(
                "has no = in parameter {nth} after the ?; write name=value, and %26 for an & in a value"
            ));
        };
        let name = decoded(name);
        let Some((known, kind)) = known(&name) else {
            let names = || PARAMETERS.map(|(name, _)| name);
            let what = match nearest(&name.to_ascii_lowercase(), names().into_iter()) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("what there is: {}", names().join(", ")),
            };
            return Err(format!(
                "has an unknown name in parameter {nth} after the ?; {what}"
            ));
        };
        if let Err(form) = fits(kind, &decoded(value)) {
            let more = match known {
                "sslmode" => {
                    "; require verifies the certificate and the name in it, as verify-full does elsewhere"
                }
                _ => "",
            };
            return Err(format!("has a wrong {known}: it must be {form}{more}"));
        }
    }
    Ok(())
}

/// The parameters as they may be shown, without those that are passwords.
pub(super) fn shown(all: &str) -> Option<String> {
    let parts: Vec<String> = each(all)
        .filter(|part| !names_password(part))
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match known(&decoded(name)) {
                Some((name, kind)) if is_harmless(kind, &decoded(value)) => {
                    format!("{name}={value}")
                }
                Some((name, _)) => format!("{name}={HIDDEN}"),
                None => HIDDEN.to_owned(),
            }
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("&"))
}

/// Whether one of them is a password.
pub(super) fn hold_password(all: &str) -> bool {
    each(all).any(names_password)
}

fn each(all: &str) -> impl Iterator<Item = &str> {
    all.split('&').filter(|part| !part.is_empty())
}

fn known(name: &str) -> Option<(&'static str, Value)> {
    PARAMETERS.into_iter().find(|(known, _)| *known == name)
}

fn is_harmless(kind: Value, value: &str) -> bool {
    !matches!(kind, Value::Hidden) && fits(kind, value).is_ok()
}

/// Whether a value is what it should be; if not, what that is.
fn fits(kind: Value, value: &str) -> Result<(), String> {
    let (fits, form) = match kind {
        Value::Hidden | Value::Name => return Ok(()),
        Value::Words(words) => {
            let (last, others) = words.split_last().unwrap_or((&"", &[]));
            let form = format!("{} or {last}", others.join(", "));
            return if words.contains(&value) {
                Ok(())
            } else {
                Err(form)
            };
        }
        Value::Number => (value.parse::<i64>().is_ok(), "a whole number"),
        Value::Ports => (
            value
                .split(',')
                .all(|port| port.is_empty() || is_port(port)),
            "a number from 1 to 65535, or several with commas between",
        ),
        Value::Addresses => (
            value.split(',').all(|one| one.parse::<IpAddr>().is_ok()),
            "an IP address, or several with commas between",
        ),
    };
    if fits { Ok(()) } else { Err(form.to_owned()) }
}

pub(super) fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Whether a parameter is a password, however its name is spelled.
fn names_password(parameter: &str) -> bool {
    let name = parameter.split('=').next().unwrap_or_default();
    decoded(name).to_ascii_lowercase().ends_with("password")
}

/// The text that a part of a URL stands for. A % that begins nothing stays one.
fn decoded(text: &str) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digit = |index: usize| {
            let digit = after
                .get(index)
                .and_then(|byte| char::from(*byte).to_digit(16));
            digit.and_then(|digit| u8::try_from(digit).ok())
        };
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                plain.push(high * 16 + low);
                rest = &after[2..];
            }
            _ => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}
