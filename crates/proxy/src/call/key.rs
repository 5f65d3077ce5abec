//! Where a call's key is looked for, and which one counts (contract §5).

use counterfoil_core::{Code, Key, parse_json};
use counterfoil_mcp::{
    MetaPrefix,
    framing::{RpcError, codes},
    names_a_key,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{CallParams, part};
use crate::{
    catalog::{KEY_ARGUMENT, Tool},
    raw::{self, Object},
};

/// The member beside the arguments.
pub(super) const BESIDE: &str = "idempotencyKey";

/// Where a key was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In `_meta`, from the host.
    Meta,
    /// Among the arguments, from the model.
    Argument,
    /// `idempotencyKey` beside the arguments.
    Beside,
}

/// The key of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TakenKey {
    /// It.
    pub(crate) key: Key,
    /// Where it was.
    pub(crate) place: Place,
    /// What was there cannot be a key; this one was made from it, and the result says so.
    pub(crate) replaced: bool,
}

/// Where else a key may have turned up, outside of `params`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Elsewhere<'a> {
    /// Names of members beside `params` that JSON-RPC does not have.
    pub(crate) envelope: &'a [String],
    /// In words, if there was one outside the body: "in the HTTP header `Idempotency-Key`".
    pub(crate) outside: Option<&'a str>,
}

/// The argument that carries a tool's key: its own, or the one that the proxy adds.
pub(super) fn argument(tool: &Tool) -> &str {
    tool.own_key.as_deref().unwrap_or(KEY_ARGUMENT)
}

fn refuse(message: String) -> RpcError {
    RpcError::new(codes::INVALID_PARAMS, message)
        .with_data(json!({"code": Code::InvalidKey.as_str()}))
}

impl CallParams<'_> {
    /// The key of a call of a mutating tool; `None` if there is none anywhere. `_meta` wins; the
    /// argument and the member beside the arguments may both be there if they agree. A `null` in
    /// `_meta` or in a parameter of the tool's own is no key.
    ///
    /// # Errors
    /// -32602 with the code `invalid_key`: a key that is malformed, two that differ, one in a place
    /// that is not accepted (it would be ignored), or members that are there twice.
    pub(crate) fn take_key(
        &self,
        tool: &Tool,
        prefix: &MetaPrefix,
        elsewhere: Elsewhere<'_>,
    ) -> Result<Option<TakenKey>, RpcError> {
        for (place, object) in [("arguments", &self.arguments), ("_meta", &self.meta)] {
            if object
                .as_ref()
                .is_some_and(|object| object.repeated().is_some())
            {
                let message = format!("Invalid params: a member of `{place}` is there twice");
                return Err(RpcError::new(codes::INVALID_PARAMS, message));
            }
        }
        self.refuse_misplaced(tool, prefix, elsewhere)?;
        if let Some(found) = self.meta(&prefix.key("idempotency-key"))
            && found != "null"
        {
            let text = raw::string(found);
            let key = text.and_then(|text| Key::from_meta(&text).ok());
            return Ok(Some(taken(key, found, Place::Meta)?));
        }
        let argument = self
            .arguments
            .as_ref()
            .and_then(|all| all.get(argument(tool)));
        // For the tool itself these say that there is none.
        let none = |found: &str| tool.own_key.is_some() && matches!(found, "null" | "\"\"");
        let argument = argument.filter(|found| !none(found));
        let beside = self.params.get(BESIDE);
        if let (Some(argument), Some(beside)) = (argument, beside)
            && argument != beside
            && (raw::string(argument).is_none() || raw::string(argument) != raw::string(beside))
        {
            return Err(refuse(format!(
                "One call carries two different keys, in the argument `{}` and in `{BESIDE}` beside the arguments; send the key of this intention, in the argument",
                self::argument(tool)
            )));
        }
        let (found, place) = match (argument, beside) {
            (Some(argument), _) => (argument, Place::Argument),
            (None, Some(beside)) => (beside, Place::Beside),
            (None, None) => return Ok(None),
        };
        let key = match raw::string(found) {
            Some(text) => Key::new(text).map_err(|error| error.to_string()),
            None => Err("an idempotency key is a string".to_owned()),
        };
        match key {
            Ok(key) => taken(Some(key), found, place).map(Some),
            // What is good for the tool need not be good for us.
            Err(_) if place == Place::Argument && tool.own_key.is_some() => {
                taken(None, found, place).map(Some)
            }
            Err(why) => Err(refuse(why)),
        }
    }

    /// Refuses a key in a place that is not accepted, instead of ignoring it.
    fn refuse_misplaced(
        &self,
        tool: &Tool,
        prefix: &MetaPrefix,
        elsewhere: Elsewhere<'_>,
    ) -> Result<(), RpcError> {
        let right_one = prefix.key("idempotency-key");
        let wrong = |place: String| {
            Err(refuse(format!(
                "An idempotency key is not accepted {place}; put it in `_meta` as `{right_one}`, in the argument `{}`, or in `{BESIDE}` beside the arguments",
                argument(tool)
            )))
        };
        if let Some(place) = elsewhere.outside {
            return wrong(place.to_owned());
        }
        if let Some(name) = elsewhere.envelope.iter().find(|name| names_a_key(name)) {
            return wrong(format!("as `{}` beside `params`", shortened(name)));
        }
        if let Some(name) = named(Some(&self.params), |name| name == BESIDE) {
            return wrong(format!("as `{name}` beside the arguments"));
        }
        let known = |name: &str| {
            name == argument(tool) || tool.called_like_a_key.iter().any(|own| own == name)
        };
        if let Some(name) = named(self.arguments.as_ref(), known) {
            return wrong(format!("as the argument `{name}`"));
        }
        if let Some(name) = named(self.meta.as_ref(), |name| name == right_one) {
            return wrong(format!("as `{name}` in `_meta`"));
        }
        Ok(())
    }
}

/// The first member that is called like a key and is not `known`.
fn named(object: Option<&Object<'_>>, known: impl Fn(&str) -> bool) -> Option<String> {
    let mut members = object?.members().iter();
    let found = members.find(|member| names_a_key(&member.name) && !known(&member.name))?;
    Some(shortened(&found.name))
}

/// Enough of a name from outside to know it by.
fn shortened(text: &str) -> String {
    text.chars().take(128).collect()
}

fn taken(key: Option<Key>, found: &str, place: Place) -> Result<TakenKey, RpcError> {
    let replaced = key.is_none();
    let key = match key {
        Some(key) => key,
        None => derived(found)?,
    };
    Ok(TakenKey {
        key,
        place,
        replaced,
    })
}

/// A UUID (version 8) made from what cannot be a key, so that a retry with it is still a retry.
fn derived(found: &str) -> Result<Key, RpcError> {
    // However it is spelled, if it can be compared at all.
    let canonical = parse_json(found.as_bytes(), counterfoil_core::JsonLimits::default())
        .map_or_else(|_| found.as_bytes().to_vec(), |value| value.canonical());
    let mut digest = Sha256::new();
    part(&mut digest, b"counterfoil key 1");
    part(&mut digest, &canonical);
    let digest: [u8; 32] = digest.finalize().into();
    let [bytes @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = digest;
    let uuid = uuid::Builder::from_custom_bytes(bytes).into_uuid();
    Key::new(uuid.to_string()).map_err(|_| super::internal())
}
