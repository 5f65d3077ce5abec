//! Where a key is looked for, and which one counts (contract §5).

use counterfoil_core::{Code, Fingerprint, InvalidKey, Json, Key, Pointer, Target};
use serde_json::json;

use crate::{
    MetaPrefix,
    framing::{RpcError, codes},
    listing::Entry,
    say::shortened,
};

/// In whose words a call is answered: that of the place of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// A key among or beside the arguments.
    Argument,
    /// A key in `_meta`.
    Meta,
}

/// A call's key, and what it names.
pub(crate) struct Keyed {
    pub(crate) key: Key,
    pub(crate) dialect: Dialect,
    pub(crate) target: Target,
    pub(crate) fingerprint: Fingerprint,
}

/// Whether a name, whatever its prefix, is one under which keys turn up: `idempotency_key`,
/// `idempotencyKey`, `Idempotency-Key`, `assay/idempotency-key` and the like.
#[must_use]
pub fn names_a_key(name: &str) -> bool {
    let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
    let letters = last.bytes().filter(|byte| !matches!(byte, b'-' | b'_'));
    letters
        .map(|byte| byte.to_ascii_lowercase())
        .eq(*b"idempotencykey")
}

/// In whose words a call is answered that was not looked at any closer.
pub(crate) fn dialect(params: &Json, prefix: &MetaPrefix) -> Dialect {
    match in_meta(params, prefix) {
        Some(_) => Dialect::Meta,
        None => Dialect::Argument,
    }
}

fn in_meta<'a>(params: &'a Json, prefix: &MetaPrefix) -> Option<&'a Json> {
    params.get("_meta")?.get(&prefix.key("idempotency-key"))
}

fn refuse(code: &str, message: String) -> RpcError {
    RpcError::new(codes::INVALID_PARAMS, message).with_data(json!({"code": code}))
}

/// Refuses a key in a place that is not accepted, instead of ignoring it. `envelope` are names of
/// members beside the parameters, `outside` says where one was found outside the body.
pub(crate) fn refuse_misplaced(
    params: &Json,
    envelope: &[String],
    entry: &Entry,
    outside: Option<&'static str>,
    prefix: &MetaPrefix,
) -> Result<(), RpcError> {
    let right = format!(
        "put it in `_meta` as `{}`, in the argument `idempotency_key`, or in `idempotencyKey` beside the arguments",
        prefix.key("idempotency-key")
    );
    let wrong = |place: &str| {
        let message = format!("An idempotency key is not accepted {place}; {right}");
        Err(refuse(Code::InvalidKey.as_str(), message))
    };
    if let Some(place) = outside {
        return wrong(place);
    }
    if let Some(name) = envelope.iter().find(|name| names_a_key(name)) {
        return wrong(&format!("as `{}` beside `params`", shortened(name)));
    }
    if let Some(name) = named(params, |name| name == "idempotencyKey") {
        return wrong(&format!("as `{name}` beside the arguments"));
    }
    let declared = |name: &str| entry.tool.input_schema["properties"].get(name).is_some();
    let known = |name: &str| name == "idempotency_key" || declared(name);
    if let Some(name) = params.get("arguments").and_then(|all| named(all, known)) {
        return wrong(&format!("as the argument `{name}`"));
    }
    let right_one = prefix.key("idempotency-key");
    let known = |name: &str| name == right_one;
    if let Some(name) = params.get("_meta").and_then(|all| named(all, known)) {
        return wrong(&format!("as `{name}` in `_meta`"));
    }
    Ok(())
}

/// The first member that is called like a key and is not `known`.
fn named(object: &Json, known: impl Fn(&str) -> bool) -> Option<String> {
    let Json::Object(members) = object else {
        return None;
    };
    let found = members
        .iter()
        .find(|(name, _)| names_a_key(name) && !known(name));
    found.map(|(name, _)| shortened(name))
}

/// The arguments without the key: what counts, and what the handler is given. A reading tool may
/// have a field of that name of its own.
pub(crate) fn plain_arguments(params: &Json, entry: &Entry) -> Json {
    let arguments = params
        .get("arguments")
        .cloned()
        .unwrap_or_else(|| Json::Object(Vec::new()));
    if entry.tool.input_schema["properties"]
        .get("idempotency_key")
        .is_some()
    {
        return arguments;
    }
    match Pointer::new("/idempotency_key") {
        Ok(pointer) => arguments.without(&[pointer]),
        Err(_) => arguments,
    }
}

/// Takes the key of a call: `_meta` wins over the argument and the member beside the arguments.
/// Those two may both be there if they are the same.
pub(crate) fn take(
    params: &Json,
    entry: &Entry,
    arguments: &Json,
    prefix: &MetaPrefix,
) -> Result<Keyed, RpcError> {
    let name = &entry.tool.name;
    if let Some(found) = in_meta(params, prefix) {
        let key = match found {
            Json::String(text) => Key::from_meta(text).map_err(|error| error.to_string()),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
                Err(InvalidKey::Meta.to_string())
            }
        };
        let key = key.map_err(|why| refuse("MCP_IDEMPOTENCY_KEY_INVALID", why))?;
        return Ok(Keyed {
            key,
            dialect: Dialect::Meta,
            target: Target::new("*"),
            fingerprint: Fingerprint::canonical(name, &arguments.canonical()),
        });
    }
    let argument = params
        .get("arguments")
        .and_then(|all| all.get("idempotency_key"));
    let beside = params.get("idempotencyKey");
    if let (Some(argument), Some(beside)) = (argument, beside)
        && argument != beside
    {
        let message = "One call carries two different keys, in the argument `idempotency_key` and in `idempotencyKey` beside the arguments; send the key of this intention, in the argument";
        return Err(refuse(Code::InvalidKey.as_str(), message.to_owned()));
    }
    let Some(found) = argument.or(beside) else {
        let message = format!(
            "{name} changes something, so it needs `idempotency_key`: make one for this intention, keep it, and reuse it for every retry"
        );
        return Err(refuse(Code::IdempotencyKeyRequired.as_str(), message));
    };
    let key = match found {
        Json::String(text) => Key::new(text.as_str()).map_err(|error| error.to_string()),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
            Err("an idempotency key is a string".to_owned())
        }
    };
    Ok(Keyed {
        key: key.map_err(|why| refuse(Code::InvalidKey.as_str(), why))?,
        dialect: Dialect::Argument,
        target: Target::new(format!("MCP {name}")),
        fingerprint: Fingerprint::canonical("", &arguments.canonical()),
    })
}
