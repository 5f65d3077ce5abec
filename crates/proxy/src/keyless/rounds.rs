//! Which earlier call a call without a key goes on with when it answers a question.

use std::borrow::Cow;

use counterfoil_core::{Key, State, Timestamp};
use counterfoil_store::{Error, Found, Store, StoredReply, read};
use serde::Deserialize;

use super::{Deliveries, KeylessCall, key, scene::Scene, table};

/// Calls that are looked at, the latest first.
const LOOKED_AT_MAX: u32 = 32;
/// Answered questions of one call that are looked at, the latest first.
const ROUNDS_MAX: u16 = 16;

/// The part of a result that names its question.
#[derive(Deserialize)]
struct Question<'a> {
    #[serde(borrow, default, rename = "requestState")]
    request_state: Option<Cow<'a, str>>,
}

impl Deliveries {
    /// The key of the latest identical call that asked the question with this `requestState`
    /// (`None`: one without), be it open or answered before: an answer that is sent again belongs
    /// to the same call. Go on with [`Deliveries::begin`] under that key.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn open_question(
        &self,
        call: &KeylessCall,
        request_state: Option<&str>,
        now: Timestamp,
    ) -> Result<Option<Key>, Error> {
        let inner = &self.inner;
        let store = inner.engine.store().as_ref();
        let digest = call.digest;
        let (_, highest) = read(store, move |sql| {
            // Only the highest number counts here.
            Box::pin(table::read(sql, digest, now))
        })
        .await?;
        let highest = inner.remember(|memory| {
            let latest = memory.latest(digest);
            let serials = latest.iter().map(|(_, entry)| entry.known.place.serial());
            serials.max().unwrap_or(0).max(highest)
        });
        let mut scene = Scene::after(highest);
        inner.probe(call, &mut scene, now).await?;
        let latest = scene.next.saturating_sub(1);
        let first = latest.saturating_sub(LOOKED_AT_MAX) + 1;
        for serial in (first..=latest).rev() {
            let key = key(digest, serial)?;
            let identity = call.identity(&call.operation, &key);
            let Some(found) = store.find(&identity).await? else {
                continue;
            };
            if found.receipt.fingerprint == call.fingerprint
                && asked(store, &found, request_state).await?
            {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }
}

/// Whether this call asked that question.
async fn asked(
    store: &dyn Store,
    found: &Found,
    request_state: Option<&str>,
) -> Result<bool, Error> {
    let receipt = &found.receipt;
    let is_open = receipt.status.state == State::InputRequired;
    if is_open
        && found
            .reply
            .as_ref()
            .is_some_and(|reply| names(reply, request_state))
    {
        return Ok(true);
    }
    // Without a name only the open question can be meant.
    if request_state.is_none() {
        return Ok(false);
    }
    let rounds = receipt.status.round;
    for round in (rounds.saturating_sub(ROUNDS_MAX)..rounds).rev() {
        let question = store.question(receipt.operation_id, round).await?;
        if question.is_some_and(|question| names(&question, request_state)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn names(reply: &StoredReply, request_state: Option<&str>) -> bool {
    if reply.sealed.is_some() {
        return false;
    }
    serde_json::from_slice::<Question<'_>>(&reply.reply.body)
        .is_ok_and(|question| question.request_state.as_deref() == request_state)
}
