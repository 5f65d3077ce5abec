//! `tools/call`, from the name to the answer.

use std::{sync::Arc, time::Duration};

use counterfoil_core::{Code, Json, Reply};
use counterfoil_engine::{Answer, Call, Lookup, Ready, Reason};
use serde_json::{Map, Value, json};

use crate::{
    Endpoint, Progress, ToolError, ToolRequest,
    endpoint::{Context, Inbound},
    era::{self, Era},
    framing::{RpcError, codes},
    key::{self, Dialect, Keyed},
    listing::Entry,
    say::{Said, shortened, whole_seconds},
    schema::Issue,
    tool::{Boxed, Kind},
};

/// How long after a look at the caller's authority an answer still counts as handed over at once.
const AT_ONCE: Duration = Duration::from_millis(50);

fn invalid(what: impl Into<String>) -> RpcError {
    let message = format!("Invalid params: {}", what.into());
    RpcError::new(codes::INVALID_PARAMS, message)
}

impl Endpoint {
    /// Runs on a task of its own: once a call is read it goes on, whatever becomes of its caller.
    pub(crate) async fn call(&self, era: Era, inbound: Inbound, context: Context) -> Said {
        let Ok(place) = Arc::clone(&self.inner.calls).try_acquire_owned() else {
            let retry_after = Duration::from_secs(1);
            return Ok(self.voice(era).refused(Reason::Busy { retry_after }));
        };
        let endpoint = self.clone();
        let work = Box::pin(async move {
            let said = endpoint.call_now(era, inbound, context).await;
            drop(place);
            said
        });
        match tokio::spawn(work).await {
            Ok(said) => said,
            Err(error) => {
                tracing::error!(panicked = error.is_panic(), "a tool call broke off");
                Err(RpcError::new(codes::INTERNAL, "Internal error"))
            }
        }
    }

    async fn call_now(&self, era: Era, inbound: Inbound, context: Context) -> Said {
        let params = inbound.params;
        let Some(Json::String(name)) = params.get("name") else {
            return Err(invalid("`name` must be a string"));
        };
        let Some(entry) = self.inner.by_name.get(name) else {
            return Err(RpcError::new(
                codes::INVALID_PARAMS,
                format!("Unknown tool: {}", shortened(name)),
            ));
        };
        if !matches!(params.get("arguments"), None | Some(Json::Object(_))) {
            return Err(invalid("`arguments` must be an object"));
        }
        if !matches!(params.get("_meta"), None | Some(Json::Object(_))) {
            return Err(invalid("`_meta` must be an object"));
        }
        let prefix = &self.inner.prefix;
        let headers = context.headers.as_deref();
        let outside = headers.and_then(|headers| headers.key);
        key::refuse_misplaced(&params, &inbound.others, entry, outside, prefix)?;
        let arguments = key::plain_arguments(&params, entry);
        if let (Era::Modern, Some(headers)) = (era, headers) {
            era::check_params(&entry.headers, &arguments, headers)?;
        }
        let keyed = match entry.tool.operation() {
            None => None,
            Some(_) => Some(key::take(&params, entry, &arguments, prefix)?),
        };
        let request = request_of(&params, &arguments, &context);
        match keyed {
            None => Ok(self.read(era, entry, request).await),
            Some(keyed) => self.mutate(era, entry, keyed, request).await,
        }
    }

    async fn read(&self, era: Era, entry: &Entry, request: ToolRequest) -> Value {
        let Kind::Read(handler) = &entry.tool.kind else {
            return self.voice(era).refused(Reason::Internal(String::new()));
        };
        // The credential may have been withdrawn while the body came in. (The engine looks for
        // itself, at a mutation.)
        let authority = Arc::clone(&request.caller.authority);
        if let Err(denied) = authority.check().await {
            return self.voice(era).refused(denied.into());
        }
        let looked = tokio::time::Instant::now();
        let answered = match check_arguments(entry, &request.arguments) {
            Err(error) => Err(error),
            Ok(()) => self.in_time(handler(request)).await,
        };
        if looked.elapsed() > AT_ONCE
            && let Err(denied) = authority.check().await
        {
            return self.voice(era).refused(denied.into());
        }
        let reply = match answered {
            Ok(output) => Reply::from(output),
            Err(error) => Reply::from(error),
        };
        self.voice(era).unkeyed(&reply)
    }

    async fn mutate(&self, era: Era, entry: &Entry, keyed: Keyed, request: ToolRequest) -> Said {
        let Some(operation) = entry.tool.operation() else {
            return Err(RpcError::new(codes::INTERNAL, "Internal error"));
        };
        let Keyed {
            key,
            dialect,
            target,
            fingerprint,
        } = keyed;
        let mut call = Call::new(
            request.caller.identity(target, key),
            fingerprint,
            Arc::clone(operation),
        );
        call.authority = Arc::clone(&request.caller.authority);
        let answer = match self.inner.engine.look_up(call).await {
            Lookup::Answered(answer) => answer,
            // Only now, so that an old retry is answered under its old contract.
            Lookup::Ready(ready) => match self.run(entry, ready, request).await {
                Ok(answer) => answer,
                Err(error) => return Ok(self.before_running(era, dialect, error)),
            },
        };
        self.voice(era).answer(dialect, &answer)
    }

    /// Checks, and runs. An error means that nothing was reserved.
    async fn run(
        &self,
        entry: &Entry,
        ready: Ready,
        request: ToolRequest,
    ) -> Result<Answer, ToolError> {
        check_arguments(entry, &request.arguments)?;
        match &entry.tool.kind {
            Kind::Guarded { check, handler, .. } => {
                if let Some(check) = check {
                    self.in_time(check(request.clone())).await?;
                }
                let handler = Arc::clone(handler);
                let run = ready.run(move |attempt| async move {
                    handler(request, attempt).await.into_outcome()
                });
                Ok(run.await)
            }
            Kind::Atomic { prepare, .. } => {
                let body = self.in_time(prepare(request)).await?;
                Ok(ready.atomically(Boxed(body)).await)
            }
            Kind::Read(_) => Ok(Reason::Internal("a reading tool was run".to_owned()).into()),
        }
    }

    /// Says what was found before anything was reserved.
    pub(crate) fn before_running(&self, era: Era, dialect: Dialect, error: ToolError) -> Value {
        let code = error.code.clone();
        let mut said = self.voice(era).unkeyed(&Reply::from(error));
        if dialect == Dialect::Meta {
            let mut facts = json!({"code": code});
            let wait = said["structuredContent"]["retry_after_ms"].as_u64();
            if let Some(wait) = wait {
                facts["retryAfter"] = json!(whole_seconds(Duration::from_millis(wait)));
            }
            let key = self.inner.prefix.key("error");
            said["_meta"][key] = facts;
        }
        said
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        match tokio::time::timeout(self.inner.limits.read_for, work).await {
            Ok(done) => done,
            Err(_) => Err(ToolError::new(
                503,
                Code::Busy.as_str(),
                "this took too long; nothing was done",
            )),
        }
    }
}

fn request_of(params: &Json, arguments: &Json, context: &Context) -> ToolRequest {
    let meta = match params.get("_meta").map(Json::to_value) {
        Some(Value::Object(meta)) => meta,
        Some(_) | None => Map::new(),
    };
    let progress = match (&context.progress, meta.get("progressToken")) {
        (Some(to), Some(token @ (Value::String(_) | Value::Number(_)))) => {
            Progress::new(token.clone(), to.clone())
        }
        _ => Progress::default(),
    };
    ToolRequest {
        caller: context.caller.clone(),
        arguments: arguments.to_value(),
        meta,
        progress,
    }
}

/// Wrong arguments are the model's to correct: a tool execution error that names the fields, never
/// the values.
fn check_arguments(entry: &Entry, arguments: &Value) -> Result<(), ToolError> {
    let errors = entry.validator.iter_errors(arguments).take(Issue::MAX);
    let issues: Vec<Issue> = errors.map(|error| Issue::of(&error)).collect();
    if issues.is_empty() {
        return Ok(());
    }
    let details = issues
        .iter()
        .map(|issue| json!({"field": issue.field, "problem": issue.problem}))
        .collect();
    Err(ToolError::invalid(Issue::told(&issues))
        .next_action("Correct the arguments and call again; no key is used up")
        .detail("issues", Value::Array(details)))
}
