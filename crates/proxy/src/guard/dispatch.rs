//! One run of a guarded call against the upstream, and what its answer proves.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use counterfoil_core::Reply;
use counterfoil_engine::{Attempt, Outcome};
use counterfoil_mcp::framing::{FramingLimits, Incoming, Message, codes, read};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Asked, Turn,
    running::{Entered, Running},
};
use crate::{
    call::{CallParams, Guarded, Outgoing, outgoing},
    raw::{self, Object},
    say::{ERROR_TYPE, RESULT_TYPE, Unsent},
    session::Session,
    settings::ProviderKey,
    wire::{Failure, Kind},
};

/// How long the upstream may take to say what became of a call that was cancelled.
pub(super) const CANCEL_FOR: Duration = Duration::from_secs(5);
/// How long a question may stay unanswered.
const QUESTION_FOR: Duration = Duration::from_secs(600);
/// How often a call is sent under a key that the upstream honours.
const SENDS_MAX: u32 = 3;
/// The pause before it is sent again, doubled each time.
const SEND_PAUSE: Duration = Duration::from_millis(250);
/// An elicitation by URL is wanted first (2025-11-25).
const URL_ELICITATION: i64 = -32042;

impl Session {
    /// Sends the call and says what the answer proves. Only what is proven not to have been sent
    /// releases the key.
    pub(super) async fn dispatch(self: Arc<Self>, asked: Arc<Asked>, attempt: Attempt) -> Outcome {
        let settings = &self.shared.settings;
        let policy = settings.tool(&asked.call.name);
        let provider_key = format!("counterfoil-{}", attempt.operation_id());
        let left = attempt.hard_deadline.since(self.shared.engine.now());
        let running = Running::new(&self.link, asked.call.is_modern);
        let _entered = Entered::new(&self.shared, attempt.operation_id(), Arc::clone(&running));
        let sending = Sending {
            provider: policy.provider_key.as_ref(),
            provider_key: &provider_key,
            running: &running,
            send_by: Instant::now() + left,
        };
        let mut sends = 1;
        let mut pause = SEND_PAUSE;
        loop {
            let sent = self.send(&asked, &sending).await;
            let sent = sent.and_then(|answer| match proven(&answer) {
                // The server failed in the middle of it: as good as no answer.
                Outcome::Lost { .. } => Err(Failure::Lost("it answered with a fault".to_owned())),
                outcome @ (Outcome::Succeeded(_) | Outcome::Asked { .. }) => Ok(outcome),
                // What is refused the second time says nothing of the first, which was lost.
                Outcome::Refused { .. } | Outcome::Failed(_) | Outcome::NotApplied(_)
                    if sends > 1 =>
                {
                    Ok(Outcome::Lost { timed_out: false })
                }
                outcome @ (Outcome::Refused { .. }
                | Outcome::Failed(_)
                | Outcome::NotApplied(_)) => Ok(outcome),
            });
            match sent {
                Ok(outcome) => return outcome,
                Err(Failure::NotSent(why)) if sends == 1 => {
                    tracing::warn!(why, "a call was not sent");
                    return Outcome::NotApplied(Unsent::Unreachable.reply());
                }
                Err(Failure::Unauthorized(why)) if sends == 1 => {
                    tracing::warn!(why, "the upstream refused the credentials");
                    return Outcome::NotApplied(Unsent::Credentials.reply());
                }
                Err(why) => {
                    tracing::warn!(operation_id = %attempt.operation_id(), %why, "the outcome is not known");
                    // The same key, which the upstream honours: the one case in which a call is
                    // sent again. Not after somebody asked it to stop, nor after its time.
                    let ends = tokio::time::sleep(pause);
                    if policy.provider_key.is_none() || sends >= SENDS_MAX {
                        return Outcome::Lost { timed_out: false };
                    }
                    tokio::select! {
                        biased;
                        () = running.cancelled() => return Outcome::Lost { timed_out: false },
                        () = ends => {}
                    }
                    if Instant::now() >= sending.send_by {
                        return Outcome::Lost { timed_out: true };
                    }
                    sends += 1;
                    pause *= 2;
                }
            }
        }
    }

    async fn send(
        self: &Arc<Self>,
        asked: &Asked,
        sending: &Sending<'_>,
    ) -> Result<Bytes, Failure> {
        let Sending {
            provider,
            provider_key,
            running,
            send_by,
        } = *sending;
        let call = &asked.call;
        let not_sent = |why: &str| Failure::NotSent(why.to_owned());
        let text = std::str::from_utf8(&call.text).map_err(|_| not_sent("it is no text"))?;
        let params = CallParams::read(&call.params).map_err(|_| not_sent("it cannot be read"))?;
        let (id, token) = self.link.name_for(&call.id, params.progress_token());
        let argument = match provider {
            Some(ProviderKey::Argument(_)) if asked.has_provider_key => None,
            Some(ProviderKey::Argument(name)) => Some((name.as_str(), provider_key)),
            Some(ProviderKey::Header(_)) | None => None,
        };
        let changes = Outgoing {
            id: (id != call.id).then_some(id.as_str()),
            progress_token: token
                .as_ref()
                .filter(|token| token.original.is_some())
                .map(|token| &*token.upstream),
            guarded: Some(Guarded {
                tool: &asked.tool,
                key: asked.forwarded_key.as_ref(),
                provider: argument,
            }),
        };
        let text = outgoing(text, &changes).map_err(|_| not_sent("it cannot be rewritten"))?;
        let kind = Kind::Request {
            id: id.clone(),
            method: "tools/call".to_owned(),
            name: None,
        };
        let mut outbound = self.link.outbound(text.into(), kind);
        outbound.headers = self
            .link
            .param_headers(&asked.tool, &params, call.http.as_deref());
        if let Some(ProviderKey::Header(name)) = provider {
            outbound
                .headers
                .push((name.clone(), provider_key.to_owned()));
        }
        outbound.http.clone_from(&call.http);
        if let Some(before) = &asked.turn.before {
            Turn::after(before).await;
        }
        // Whoever has stopped waiting is told nothing of what comes in between.
        let about = (!asked.stop.is_stopped()).then_some(call.ticket);
        running.sent_as(id);
        let on_its_way = CancellationToken::new();
        let answer = self.link.ask(about, token, outbound, Some(&on_its_way));
        tokio::pin!(answer);
        tokio::select! {
            biased;
            // Until it is on its way it can be taken back: nothing of it was sent.
            () = running.cancelled() => {
                return Err(not_sent("it was cancelled before"));
            }
            () = tokio::time::sleep_until(send_by) => {
                return Err(not_sent("there was no room for it before its time was over"));
            }
            answer = &mut answer => return answer,
            () = on_its_way.cancelled() => {}
        }
        asked.turn.sent.cancel();
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            () = running.cancelled() => {
                match tokio::time::timeout(CANCEL_FOR, answer).await {
                    Ok(answer) => answer,
                    Err(_) => Err(Failure::Lost("it was cancelled and said nothing more".to_owned())),
                }
            }
        }
    }
}

/// How a call is sent, each time.
#[derive(Clone, Copy)]
struct Sending<'a> {
    provider: Option<&'a ProviderKey>,
    provider_key: &'a str,
    running: &'a Running,
    /// Nothing is sent after that: what is said of the outcome then must not become wrong.
    send_by: Instant,
}

/// What an answer proves.
fn proven(answer: &Bytes) -> Outcome {
    let limits = FramingLimits {
        message_bytes_max: usize::MAX,
        batch_max: 1,
        members_max: 256,
    };
    let lost = Outcome::Lost { timed_out: false };
    let Ok(Incoming::Single(Message::Response(response))) = read(answer, limits) else {
        return lost;
    };
    match response.outcome {
        Ok(result) => {
            let Some(object) = Object::read(result.get()) else {
                return lost;
            };
            let is_error = object.get("isError") == Some("true");
            let kind = object.get("resultType").and_then(raw::string);
            let status = if is_error { 422 } else { 200 };
            let reply = reply(status, RESULT_TYPE, result.get());
            if kind.as_deref() == Some("input_required") {
                asked(reply)
            } else if is_error {
                Outcome::Refused {
                    reply,
                    effect_none: false,
                }
            } else {
                Outcome::Succeeded(reply)
            }
        }
        Err(error) => {
            let code: Option<i64> = Object::read(error.get())
                .and_then(|error| error.get("code"))
                .and_then(|code| code.parse().ok());
            let reply = reply(400, ERROR_TYPE, error.get());
            match code {
                // It failed in the middle of it, as far as it can tell.
                Some(codes::INTERNAL) | None => lost,
                // Said before anything is done, and the same call comes again without an answer in
                // it: the key is free for that.
                Some(URL_ELICITATION) => Outcome::NotApplied(reply),
                Some(_) => Outcome::Refused {
                    reply,
                    effect_none: false,
                },
            }
        }
    }
}

fn asked(reply: Reply) -> Outcome {
    Outcome::Asked {
        reply,
        effect_none: false,
        question_for: QUESTION_FOR,
    }
}

fn reply(status: u16, content_type: &str, body: &str) -> Reply {
    Reply {
        status,
        content_type: Some(content_type.to_owned()),
        headers: Vec::new(),
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}
