//! A request as it goes to the upstream.

use counterfoil_mcp::framing::RpcError;

use super::{Guarded, internal, key::BESIDE};
use crate::raw::{Edit, Object};

/// What changes in a request on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outgoing<'a> {
    /// Another id, as JSON text.
    pub(crate) id: Option<&'a str>,
    /// Another `_meta.progressToken`, as JSON text, if there is one.
    pub(crate) progress_token: Option<&'a str>,
    /// The arguments of a guarded `tools/call`. The key in `_meta` stays: an upstream that knows
    /// it may use it.
    pub(crate) guarded: Option<Guarded<'a>>,
}

/// The request with the changes; everything else byte for byte.
///
/// # Errors
/// -32603 if the text is no request, or its arguments are no object: nothing can be sent.
pub(crate) fn outgoing(request: &str, changes: &Outgoing<'_>) -> Result<String, RpcError> {
    rewritten(request, changes).ok_or_else(internal)
}

fn rewritten(request: &str, changes: &Outgoing<'_>) -> Option<String> {
    let message = Object::read(request)?;
    let mut edit = Edit::of(&message);
    if let Some(id) = changes.id {
        edit.replace("id", id);
    }
    if let Some(text) = message.get("params")
        && (changes.progress_token.is_some() || changes.guarded.is_some())
    {
        edit.replace("params", &params(text, changes)?);
    } else if changes.guarded.is_some() {
        return None;
    }
    edit.text()
}

fn params(text: &str, changes: &Outgoing<'_>) -> Option<String> {
    let Some(params) = Object::read(text) else {
        // By position: there is nothing of ours in them.
        return changes.guarded.is_none().then(|| text.to_owned());
    };
    let mut edit = Edit::of(&params);
    if let Some(token) = changes.progress_token
        && let Some(meta) = params.get("_meta").and_then(Object::read)
    {
        let mut inner = Edit::of(&meta);
        if inner.replace("progressToken", token) {
            edit.replace("_meta", &inner.text()?);
        }
    }
    if let Some(guarded) = &changes.guarded {
        edit.remove(BESIDE);
        let given = params.get("arguments");
        if let Some(sent) = guarded.arguments(given).ok()?
            && given != Some(sent.as_str())
        {
            edit.set("arguments", &sent);
        }
    }
    edit.text()
}
