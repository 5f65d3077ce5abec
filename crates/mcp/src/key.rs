//! Where a key is looked for, and which one counts (contract §5).

use counterfoil_core::{Code, Fingerprint, InvalidKey, Json, Key, Pointer, Target};
use serde_json::json;

use crate::{
    MetaPrefix,
    framing::{RpcError, codes},
    listing::Entry,
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

/// Names under which keys turn up in places where they are not accepted.
const SPELLINGS: [&str; 4] = [
    "idempotency_key",
    "idempotencyKey",
    "idempotency-key",
    "Idempotency-Key",
];

fn refuse(code: &str, message: String) -> RpcError {
    RpcError::new(codes::INVALID_PARAMS, message).with_data(json!({"code": code}))
}

/// Refuses a key in a place that is not accepted, instead of ignoring it.
pub(crate) fn refuse_misplaced(
    params: &Json,
    entry: &Entry,
    header: bool,
    prefix: &MetaPrefix,
) -> Result<(), RpcError> {
    let right = format!(
        "put it in `_meta` as `{}`, in the argument `idempotency_key`, or in `idempotencyKey` beside the arguments",
        prefix.key("idempotency-key")
    );
    let wrong = |place: String| {
        let message = format!("An idempotency key is not accepted {place}; {right}");
        Err(refuse(Code::InvalidKey.as_str(), message))
    };
    if header {
        return wrong("in an HTTP header of an MCP call".to_owned());
    }
    let declared = |name: &str| entry.tool.input_schema["properties"].get(name).is_some();
    for name in SPELLINGS {
        if name != "idempotencyKey" && params.get(name).is_some() {
            return wrong(format!("as `{name}` beside the arguments"));
        }
        let argument = params.get("arguments").and_then(|all| all.get(name));
        if name != "idempotency_key" && argument.is_some() && !declared(name) {
            return wrong(format!("as the argument `{name}`"));
        }
        if params.get("_meta").and_then(|all| all.get(name)).is_some() {
            return wrong(format!("as `{name}` in `_meta`"));
        }
    }
    Ok(())
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

/// Takes the key of a call: `_meta` wins, then the argument, then the member beside them.
pub(crate) fn take(
    params: &Json,
    entry: &Entry,
    arguments: &Json,
    prefix: &MetaPrefix,
) -> Result<Keyed, RpcError> {
    let name = &entry.tool.name;
    let in_meta = params
        .get("_meta")
        .and_then(|meta| meta.get(&prefix.key("idempotency-key")));
    if let Some(found) = in_meta {
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
    let Some(found) = argument.or_else(|| params.get("idempotencyKey")) else {
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
