//! `tools/call` as the client sent it, read and rewritten without touching what is not the
//! proxy's.

mod arguments;
mod key;
mod outgoing;

pub(crate) use arguments::{Guarded, check_param_headers, param_headers};
pub(crate) use key::{Elsewhere, Place, TakenKey};
pub(crate) use outgoing::{Outgoing, outgoing};

use std::borrow::Cow;

use counterfoil_core::{Fingerprint, Json, JsonLimits, parse_json};
use counterfoil_mcp::framing::{RpcError, codes};
use sha2::{Digest as _, Sha256};

use crate::{
    catalog::Tool,
    keyless::CallDigest,
    raw::{self, Object},
};

/// The `params` of a `tools/call`, as slices of its text.
#[derive(Clone, Debug)]
pub(crate) struct CallParams<'a> {
    /// The tool.
    pub(crate) name: Cow<'a, str>,
    params: Object<'a>,
    arguments: Option<Object<'a>>,
    meta: Option<Object<'a>>,
}

fn invalid(what: &str) -> RpcError {
    RpcError::new(codes::INVALID_PARAMS, format!("Invalid params: {what}"))
}

fn internal() -> RpcError {
    RpcError::new(codes::INTERNAL, "Internal error")
}

impl<'a> CallParams<'a> {
    /// Reads them. What is inside the arguments is looked at by [`Self::take_key`] and
    /// [`Self::canonical`], so that a call that is not guarded passes as it is.
    ///
    /// # Errors
    /// -32602 if it cannot be said which tool is called with what: a member is there twice, or has
    /// the wrong type.
    pub(crate) fn read(params: &'a str) -> Result<Self, RpcError> {
        let Some(params) = Object::read(params) else {
            return Err(invalid("they must be an object"));
        };
        if params.repeated().is_some() {
            return Err(invalid("a member is there twice"));
        }
        let Some(name) = params.get("name").and_then(raw::string) else {
            return Err(invalid("`name` must be a string"));
        };
        let object = |name: &str| match params.get(name) {
            None => Ok(None),
            Some(text) => match Object::read(text) {
                Some(object) => Ok(Some(object)),
                None => Err(invalid(&format!("`{name}` must be an object"))),
            },
        };
        let (arguments, meta) = (object("arguments")?, object("_meta")?);
        Ok(Self {
            name,
            params,
            arguments,
            meta,
        })
    }

    /// The arguments as they are spelled.
    pub(crate) fn arguments(&self) -> Option<&'a str> {
        self.params.get("arguments")
    }

    /// One argument as it is spelled; `null` is none.
    pub(crate) fn argument(&self, name: &str) -> Option<&'a str> {
        let argument = self.arguments.as_ref()?.get(name)?;
        (argument != "null").then_some(argument)
    }

    /// `_meta.progressToken` as it is spelled; `null` is none.
    pub(crate) fn progress_token(&self) -> Option<&'a str> {
        let token = self.meta.as_ref()?.get("progressToken")?;
        (token != "null").then_some(token)
    }

    /// The client asks for a task (2025-11-25): what it gets is a handle, and no result.
    pub(crate) fn wants_task(&self) -> bool {
        self.params.has("task")
    }

    /// `params.requestState` as it is spelled: a further round (2026-07-28).
    pub(crate) fn request_state(&self) -> Option<&'a str> {
        self.params.get("requestState")
    }

    /// `params.inputResponses` as it is spelled: a further round (2026-07-28).
    pub(crate) fn input_responses(&self) -> Option<&'a str> {
        self.params.get("inputResponses")
    }

    /// A member of `_meta` as it is spelled.
    pub(crate) fn meta(&self, key: &str) -> Option<&'a str> {
        self.meta.as_ref()?.get(key)
    }

    /// The canonical JSON of the arguments without the key among them: what tells one request from
    /// another.
    ///
    /// # Errors
    /// -32602 for arguments that do not have one meaning (a name twice, half of a surrogate pair,
    /// a number that no double holds) or are nested deeper than 256.
    pub(crate) fn canonical(&self, tool: &Tool) -> Result<Vec<u8>, RpcError> {
        let mut arguments = json("arguments", self.arguments().unwrap_or("{}"))?;
        if let Json::Object(members) = &mut arguments {
            members.retain(|(name, _)| name != key::argument(tool));
        }
        let mut canonical = arguments.canonical();
        if self.wants_task() {
            // Who asks for a result has no use for a handle, and the other way round.
            canonical.extend_from_slice(b"\ntask");
        }
        Ok(canonical)
    }

    /// A digest of what this round answers: `requestState` and `inputResponses`. `None` if it is
    /// the first round.
    ///
    /// # Errors
    /// -32602 as [`Self::canonical`].
    pub(crate) fn inputs(&self) -> Result<Option<[u8; 32]>, RpcError> {
        let (state, responses) = (self.request_state(), self.input_responses());
        if state.is_none() && responses.is_none() {
            return Ok(None);
        }
        let mut digest = Sha256::new();
        part(&mut digest, b"counterfoil inputs 1");
        for (name, text) in [("requestState", state), ("inputResponses", responses)] {
            match text {
                None => digest.update([0]),
                Some(text) => {
                    digest.update([1]);
                    part(&mut digest, &json(name, text)?.canonical());
                }
            }
        }
        Ok(Some(digest.finalize().into()))
    }
}

fn json(name: &str, text: &str) -> Result<Json, RpcError> {
    let limits = JsonLimits {
        depth_max: JsonLimits::DEPTH_CEILING,
    };
    parse_json(text.as_bytes(), limits)
        .map_err(|malformed| invalid(&format!("`{name}` cannot be compared: {malformed}")))
}

/// With its length, so that no two lists of parts are the same bytes.
fn part(digest: &mut Sha256, bytes: &[u8]) {
    digest.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
    digest.update(bytes);
}

/// The fingerprint of a call with these canonical arguments, under a key from there; `None`: under
/// one that the proxy made.
pub(crate) fn fingerprint(place: Option<Place>, tool: &str, canonical: &[u8]) -> Fingerprint {
    let subject = match place {
        Some(Place::Meta) => tool,
        Some(Place::Argument | Place::Beside) | None => "",
    };
    Fingerprint::canonical(subject, canonical)
}

/// The argument that carries a tool's key: its own, or the one that the proxy adds.
pub(crate) fn key_argument(tool: &Tool) -> &str {
    key::argument(tool)
}

/// The operation part of the target of a call under a key from there: `*` for `_meta`, where one
/// key names one call whatever the tool.
pub(crate) fn operation(place: Option<Place>, tool: &str) -> String {
    match place {
        Some(Place::Meta) => "*".to_owned(),
        Some(Place::Argument | Place::Beside) | None => format!("MCP {tool}"),
    }
}

/// What tells identical calls without a key. `client_name` is what the client calls itself, which
/// keeps two of them on one machine apart.
pub(crate) fn call_digest(
    workspace: &str,
    principal: &str,
    upstream: &str,
    client_name: &str,
    tool: &str,
    canonical: &[u8],
) -> CallDigest {
    let mut digest = Sha256::new();
    part(&mut digest, b"counterfoil call 1");
    for text in [workspace, principal, upstream, client_name, tool] {
        part(&mut digest, text.as_bytes());
    }
    part(&mut digest, canonical);
    CallDigest(digest.finalize().into())
}

#[cfg(test)]
mod tests;
