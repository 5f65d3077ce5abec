//! A mutating call without a key (contract §10).

use std::sync::Arc;

use counterfoil_core::{OperationId, State, Timestamp};
use counterfoil_engine::{Answer, Lookup, Reason};
use counterfoil_store::Error;

use super::{Asked, Named, Passing, Said, Turn, busy, carries_answer};
use crate::{
    Keyless, call,
    keyless::{KeylessCall, Pairing},
    say::{self, Dialect, Refused, Voice},
    session::Session,
};

/// How often it is judged anew, because a rival took what it was to get.
const JUDGED_MAX: u32 = 8;

impl Session {
    pub(super) fn keyless_call(&self, asked: &Asked, keyless: Keyless) -> KeylessCall {
        let policy = self.shared.settings.tool(&asked.call.name);
        KeylessCall {
            workspace: self.shared.workspace.clone(),
            principal: self.principal.clone(),
            upstream: self.shared.upstream.clone(),
            operation: call::operation(None, &asked.call.name),
            digest: asked.digest,
            fingerprint: call::fingerprint(None, &asked.call.name, &asked.canonical),
            channel: asked.call.channel,
            is_ordered: asked.call.http.is_none(),
            annotated: asked.tool.annotated || policy.read_only.is_some(),
            keyless,
        }
    }

    /// A call without a key.
    pub(super) async fn paired(self: &Arc<Self>, asked: &Arc<Asked>, keyless: Keyless) -> Said {
        let voice = self.voice_of(asked, Dialect::None);
        let of_nothing = |said: say::Said| Said::of_nothing(said.message(&asked.call.id));
        let keyless = self.keyless_call(asked, keyless);
        match self.follows(asked, &keyless).await {
            Ok(true) => {}
            Ok(false) => return of_nothing(voice.answer(&busy(), None)),
            Err(error) => return of_nothing(voice.answer(&Reason::from(error).into(), None)),
        }
        for _ in 0..JUDGED_MAX {
            let now = self.shared.engine.now();
            let (pairing, delivery) = match self.shared.deliveries.pair(&keyless, now).await {
                Ok(judged) => judged,
                Err(error) => {
                    return of_nothing(voice.answer(&Reason::from(error).into(), None));
                }
            };
            let (key, operation, is_attached) = match pairing {
                Pairing::Ask(operation_id) => {
                    let found = self.shared.engine.store().get(operation_id).await;
                    let state = match found {
                        Ok(Some(found)) => found.receipt.status.state,
                        Ok(None) | Err(_) => State::OutcomeUnknown,
                    };
                    return of_nothing(voice.refuse(&Refused::PossibleDuplicate {
                        operation_id,
                        state,
                        age: now.since(made_at(operation_id)),
                    }));
                }
                Pairing::Run(key) => (key, keyless.operation.clone(), false),
                Pairing::Attach { key, operation } => (key, operation, true),
            };
            asked.stop.concerns(&delivery);
            let named = Named {
                key,
                operation,
                place: None,
            };
            let mut call = self.engine_call(asked, &named);
            if is_attached {
                // It waits for the earlier one; nobody waits for it.
                drop(Passing::of(&asked.turn));
                call.wait = Some(asked.operation.policy.attempt_limit);
            }
            let (answer, ran) = match self.shared.engine.look_up(call).await {
                Lookup::Answered(answer) => (answer, false),
                Lookup::Ready(ready) => self.run(asked, ready, &delivery).await,
            };
            // A rival took the key.
            if !is_attached && !ran && is_of_a_rival(&answer) {
                asked.stop.forget();
                delivery.discard();
                continue;
            }
            let (answer, is_found_out) = self.looked_into(asked, &named, answer).await;
            let since = answer.operation_id().filter(|_| is_attached && !ran);
            let now = self.shared.engine.now();
            let attached = since.map(|operation_id| now.since(made_at(operation_id)));
            let voice = Voice {
                is_found_out,
                ..voice
            };
            let said = voice.answer(&answer, attached);
            return Said {
                is_answer: carries_answer(&answer),
                text: said.message(&asked.call.id),
                delivery: Some(delivery),
            };
        }
        of_nothing(voice.answer(&busy(), None))
    }
}

impl Session {
    /// Waits until what its client called before it is reserved, where it matters: a call must not
    /// be paired with an earlier one across another change, and only reserved ones can be seen.
    /// `false`: that takes too long.
    async fn follows(&self, asked: &Asked, call: &KeylessCall) -> Result<bool, Error> {
        let before = asked.turn.before.as_ref();
        let Some(before) = before.filter(|before| !before.is_cancelled()) else {
            return Ok(true);
        };
        let now = self.shared.engine.now();
        if !self.shared.deliveries.would_attach(call, now).await? {
            return Ok(true);
        }
        Ok(Turn::after(before).await)
    }
}

/// It speaks of an operation that somebody else began.
const fn is_of_a_rival(answer: &Answer) -> bool {
    match answer {
        Answer::Replayed { .. } | Answer::Asked { replayed: true, .. } => true,
        Answer::Refused(refusal) => {
            refusal.operation_id.is_some()
                || matches!(refusal.reason, Reason::InProgress { .. } | Reason::Conflict)
        }
        Answer::Ran { .. }
        | Answer::Asked {
            replayed: false, ..
        }
        | Answer::Failed { .. }
        | Answer::NotRecorded { .. } => false,
    }
}

/// When an operation was first reserved: its id begins with it.
fn made_at(operation_id: OperationId) -> Timestamp {
    let mut millis = [0; 8];
    millis[2..].copy_from_slice(&operation_id.to_bytes()[..6]);
    Timestamp::from_millis(i64::from_be_bytes(millis))
}
