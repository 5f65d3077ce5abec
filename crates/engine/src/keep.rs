use std::sync::Arc;

use bytes::Bytes;
use counterfoil_core::{Identity, Kept, OperationId, Policy, Reply, redact};
use counterfoil_store::StoredReply;

use crate::{Entropy, KeyRing};

/// Never stored and never replayed: they belong to one connection or one browser.
const NOT_REPLAYED: [&str; 11] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "set-cookie",
    "set-cookie2",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Turns answers into what is stored, and back.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) ring: Option<Arc<KeyRing>>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

impl Keeper {
    /// Redacts, bounds and seals. `Err` is the marker to leave instead.
    pub(crate) fn keep(
        &self,
        policy: &Policy,
        identity: &Identity,
        operation_id: OperationId,
        reply: &Reply,
    ) -> Result<StoredReply, Kept> {
        let mut reply = reply.clone();
        reply
            .headers
            .retain(|(name, _)| !NOT_REPLAYED.contains(&name.to_ascii_lowercase().as_str()));
        if !policy.redact.is_empty() && !reply.body.is_empty() {
            let mut value = serde_json::from_slice(&reply.body).map_err(|_| Kept::Withheld)?;
            redact(&mut value, &policy.redact);
            reply.body = Bytes::from(value.to_string());
        }
        let header_bytes: usize = reply.headers.iter().map(|(n, v)| n.len() + v.len()).sum();
        if reply.body.len() + header_bytes > policy.result_bytes_max {
            return Err(Kept::TooLarge);
        }
        let mut sealed = None;
        if policy.seal {
            let ring = self.ring.as_ref().ok_or(Kept::Withheld)?;
            let row = row_name(identity, operation_id);
            let (key_id, body) = ring
                .seal(&row, &reply.body, self.entropy.as_ref())
                .ok_or(Kept::Withheld)?;
            reply.body = body;
            sealed = Some(key_id);
        }
        Ok(StoredReply { reply, sealed })
    }

    /// The stored answer, opened; `None` if its key is not on the ring.
    pub(crate) fn open(
        &self,
        identity: &Identity,
        operation_id: OperationId,
        stored: StoredReply,
    ) -> Option<Reply> {
        let StoredReply { mut reply, sealed } = stored;
        if let Some(key_id) = sealed {
            let ring = self.ring.as_ref();
            let row = row_name(identity, operation_id);
            let opened = ring.and_then(|ring| ring.open(&row, &reply.body));
            let Some(body) = opened else {
                tracing::error!(%operation_id, key_id, "a sealed result cannot be opened: the key is not on the ring, or the row was changed");
                return None;
            };
            reply.body = body;
        }
        Some(reply)
    }
}

/// What a sealed body is bound to: the whole identity and the handle, each part with its length.
fn row_name(identity: &Identity, operation_id: OperationId) -> Vec<u8> {
    let target = &identity.target;
    let mut parts = vec![
        identity.workspace.as_str(),
        identity.principal.as_str(),
        &target.upstream,
        &target.operation,
        identity.key.as_str(),
    ];
    parts.extend(target.parameters.iter().map(String::as_str));
    let mut name = operation_id.to_bytes().to_vec();
    for part in parts {
        name.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        name.extend_from_slice(part.as_bytes());
    }
    name
}
