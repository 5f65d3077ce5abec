use std::{sync::Arc, time::Duration};

use axum::response::{IntoResponse as _, Response};
use counterfoil_core::{Code, OperationId, Reply, Rule};
use counterfoil_engine::{Answer, Reason, Refusal};
use http::{HeaderName, HeaderValue};

use crate::{
    BODY_BYTES_MAX, ErrorStatus, Problem,
    fingerprint::rule_text,
    headers::{
        IDEMPOTENT_NOT_RECORDED, IDEMPOTENT_REPLAYED, IDEMPOTENT_STORED_FAILURE, OPERATION_ID,
        PREFERENCE_APPLIED,
    },
    reply::response_of,
};

/// Which statuses refusals have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The contract's own: a conflict is 409.
    #[default]
    Counterfoil,
    /// As the IETF draft on the `Idempotency-Key` header has it: a conflict is 422.
    Ietf,
}

/// How this surface says what the engine answers. One for the whole application: give it to
/// [`crate::IdempotencyLayer::rest`], and for [`crate::Mutation`] put it into the requests'
/// extensions (`.layer(Extension(rest))`); without one the default holds.
#[derive(Clone, Debug)]
pub struct Rest {
    profile: Profile,
    docs_base: Arc<str>,
    announces_replays: bool,
    pub(crate) body_bytes_max: usize,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            profile: Profile::Counterfoil,
            docs_base: Arc::from("/docs/errors/"),
            announces_replays: true,
            body_bytes_max: BODY_BYTES_MAX,
        }
    }
}

impl Rest {
    /// Which statuses refusals have.
    #[must_use]
    pub const fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Where the pages of the codes are, with the slash at the end. Default `/docs/errors/`.
    #[must_use]
    pub fn docs_base(mut self, base: &str) -> Self {
        self.docs_base = Arc::from(base);
        self
    }

    /// Whether replays carry `Idempotent-Replayed` and `Idempotent-Stored-Failure`. Default: yes.
    #[must_use]
    pub const fn announce_replays(mut self, yes: bool) -> Self {
        self.announces_replays = yes;
        self
    }

    /// Largest request body that is read, in bytes. Default 1 MiB.
    #[must_use]
    pub const fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.body_bytes_max = bytes;
        self
    }

    /// A problem as this surface says it.
    #[must_use]
    pub fn refuse(&self, problem: Problem) -> Response {
        problem
            .docs_base(self.docs_base.to_string())
            .into_response()
    }

    /// The response to an answer of the engine. `rule` is the one the call's fingerprint was
    /// taken by: a conflict names it.
    #[must_use]
    pub fn respond(&self, answer: Answer, rule: Rule) -> Response {
        match answer {
            Answer::Ran {
                reply,
                operation_id,
            } => self.reply(reply, Some(operation_id), &[]),
            Answer::Replayed {
                reply,
                operation_id,
                stored_failure,
            } => {
                let said: &[HeaderName] = match (self.announces_replays, stored_failure) {
                    (true, true) => &[IDEMPOTENT_REPLAYED, IDEMPOTENT_STORED_FAILURE],
                    (true, false) => &[IDEMPOTENT_REPLAYED],
                    (false, _) => &[],
                };
                self.reply(reply, Some(operation_id), said)
            }
            Answer::Asked {
                reply,
                operation_id,
                replayed,
            } => {
                let said: &[HeaderName] = if replayed && self.announces_replays {
                    &[IDEMPOTENT_REPLAYED]
                } else {
                    &[]
                };
                self.reply(reply, Some(operation_id), said)
            }
            Answer::Failed { reply } => self.reply(reply, None, &[]),
            Answer::NotRecorded {
                reply,
                operation_id,
            } => self.reply(reply, Some(operation_id), &[IDEMPOTENT_NOT_RECORDED]),
            Answer::Refused(refusal) => self.refuse(self.problem(refusal, rule)),
        }
    }

    /// A plain answer, without a receipt behind it.
    pub(crate) fn reply(
        &self,
        reply: Reply,
        operation_id: Option<OperationId>,
        said: &[HeaderName],
    ) -> Response {
        let Some(mut response) = response_of(reply) else {
            tracing::error!(?operation_id, "an answer is no HTTP answer");
            return self.refuse(Problem::new(Code::Internal).operation_id(operation_id));
        };
        let headers = response.headers_mut();
        for name in said {
            headers.insert(name.clone(), HeaderValue::from_static("true"));
        }
        let id = operation_id.map(|id| HeaderValue::try_from(id.to_string()));
        if let Some(Ok(id)) = id {
            headers.insert(OPERATION_ID, id);
        }
        response
    }

    /// The problem of a refusal. What is for operators goes to the log and not to the caller.
    #[must_use]
    pub fn problem(&self, refusal: Refusal, rule: Rule) -> Problem {
        let Refusal {
            reason,
            operation_id,
        } = refusal;
        let problem = Problem::new(reason.code())
            .title(reason.message())
            .next_action(reason.next_action())
            .retryable(reason.is_retryable())
            .retry_after(reason.retry_after())
            .operation_id(operation_id);
        match reason {
            Reason::Conflict => {
                let problem = problem.detail(rule_text(rule));
                match self.profile {
                    Profile::Counterfoil => problem,
                    Profile::Ietf => problem.status(ErrorStatus::UNPROCESSABLE),
                }
            }
            Reason::Unknown {
                first: true,
                timed_out: true,
                ..
            } => problem
                .status(ErrorStatus::GATEWAY_TIMEOUT)
                .detail("No answer came in time; what was started may have happened."),
            Reason::Unknown {
                first: true,
                timed_out: false,
                ..
            } => problem
                .status(ErrorStatus::BAD_GATEWAY)
                .detail("The exchange broke; what was started may have happened."),
            Reason::Unknown { first: false, .. } => {
                problem.detail("An earlier call with this key ended without an answer.")
            }
            Reason::Unavailable(why) => {
                tracing::error!(reason = %why, "the receipt store cannot be used");
                problem.detail(
                    "The receipt store refuses work for now. Its operator finds the cause in the server's log.",
                )
            }
            Reason::Internal(why) => {
                tracing::error!(reason = %why, "a call failed inside the server");
                problem
            }
            Reason::Quota { limit } => problem.detail(format!(
                "This workspace holds {limit} operations whose outcome is open, and may hold no more."
            )),
            Reason::InProgress { .. } => {
                problem.detail("An attempt with this key is under way, or died and its lease has not run out yet. Nothing was started now.")
            }
            Reason::Committed {
                retry_after: Some(_),
            } => problem.detail("Its write is committed; its answer is still to come."),
            Reason::NotHappened => problem.title(Reason::NotHappened.message()),
            Reason::Committed { retry_after: None }
            | Reason::ResultUnavailable
            | Reason::Expired
            | Reason::Busy { .. }
            | Reason::Denied => problem,
        }
    }

    /// [`Rest::respond`] to a call that may have asked to wait (`Prefer: wait=N`): says so if it
    /// found an attempt under way, or what came of one.
    pub(crate) fn respond_waited(
        &self,
        answer: Answer,
        rule: Rule,
        wait: Option<Duration>,
        wait_max: Duration,
    ) -> Response {
        let honoured = wait
            .map(|wait| wait.min(wait_max))
            .filter(|wait| !wait.is_zero() && met_another(&answer));
        let mut response = self.respond(answer, rule);
        let applied = honoured.map(|wait| format!("wait={}", wait.as_secs()));
        if let Some(Ok(applied)) = applied.map(HeaderValue::try_from) {
            response.headers_mut().insert(PREFERENCE_APPLIED, applied);
        }
        response
    }
}

/// The call met an earlier one, so that a wish to wait for it meant something.
const fn met_another(answer: &Answer) -> bool {
    match answer {
        Answer::Replayed { .. } => true,
        Answer::Asked { replayed, .. } => *replayed,
        Answer::Refused(refusal) => match refusal.reason {
            Reason::InProgress { .. }
            | Reason::Committed { .. }
            | Reason::Unknown { first: false, .. } => true,
            Reason::Unknown { first: true, .. }
            | Reason::Conflict
            | Reason::ResultUnavailable
            | Reason::NotHappened
            | Reason::Expired
            | Reason::Busy { .. }
            | Reason::Unavailable(_)
            | Reason::Quota { .. }
            | Reason::Denied
            | Reason::Internal(_) => false,
        },
        Answer::Ran { .. } | Answer::Failed { .. } | Answer::NotRecorded { .. } => false,
    }
}
