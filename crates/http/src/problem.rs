use std::{borrow::Cow, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use counterfoil_core::{Code, OperationId, Reply};
use counterfoil_engine::store::Failure;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    ErrorStatus, Issue,
    headers::OPERATION_ID,
    reply::{Class, class_of},
    status::{is_retryable, next_action_of, title_of},
};

/// Where the pages of the codes are, unless [`Problem::docs_base`] says otherwise.
const DOCS_BASE: &str = "/docs/errors/";
const CONTENT_TYPE: &str = "application/problem+json";
/// What is true of a judgement whether it is given for the first time or replayed, and of a call
/// without a key too.
const KEPT: &str = "This judgement is kept under the key the call carries, if any: read the current state; a new attempt needs a new key";

/// A refusal as `application/problem+json` (RFC 9457), with a permanent `code`.
///
/// The members are `type` (the page of the code), `title`, `status`, `detail`, `code`,
/// `operation_id`, `retryable`, `retry_after_ms`, `next_action` and `issues`, and what
/// [`Problem::with`] adds. As a response it carries `Retry-After` in whole seconds, rounded up.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    inner: Box<Inner>,
}

#[derive(Clone, Debug, PartialEq)]
struct Inner {
    status: ErrorStatus,
    code: Cow<'static, str>,
    title: Cow<'static, str>,
    detail: Option<Cow<'static, str>>,
    operation_id: Option<OperationId>,
    retryable: bool,
    retry_after: Option<Duration>,
    next_action: Option<Cow<'static, str>>,
    /// `next_action` is the code's own and not the application's.
    standard_action: bool,
    issues: Vec<Issue>,
    members: Map<String, Value>,
    docs_base: Cow<'static, str>,
}

/// The wire form; kept apart so that the order of the members is written down once.
#[derive(Serialize)]
struct Wire<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation_id: Option<String>,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_action: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Issue]>::is_empty")]
    issues: &'a [Issue],
    #[serde(flatten)]
    members: &'a Map<String, Value>,
}

impl Problem {
    /// The problem of one of the contract's codes, with its status and its words.
    #[must_use]
    pub fn new(code: Code) -> Self {
        let mut problem = Self::own(ErrorStatus::of(code), code.as_str(), title_of(code));
        problem.inner.retryable = is_retryable(code);
        problem.inner.next_action = Some(next_action_of(code).into());
        problem.inner.standard_action = true;
        problem
    }

    /// A problem of the application's own, with a permanent code such as `version_conflict`.
    #[must_use]
    pub fn own(
        status: ErrorStatus,
        code: impl Into<Cow<'static, str>>,
        title: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            inner: Box::new(Inner {
                status,
                code: code.into(),
                title: title.into(),
                detail: None,
                operation_id: None,
                retryable: false,
                retry_after: None,
                next_action: None,
                standard_action: false,
                issues: Vec::new(),
                members: Map::new(),
                docs_base: DOCS_BASE.into(),
            }),
        }
    }

    /// 422 `invalid`, naming the fields that are wrong.
    #[must_use]
    pub fn invalid(issues: impl IntoIterator<Item = Issue>) -> Self {
        let mut problem = Self::new(Code::Invalid);
        problem.inner.issues.extend(issues);
        problem
    }

    /// Another status than the code's own.
    #[must_use]
    pub fn status(mut self, status: ErrorStatus) -> Self {
        self.inner.status = status;
        self
    }

    /// Another title than the code's own.
    #[must_use]
    pub fn title(mut self, title: impl Into<Cow<'static, str>>) -> Self {
        self.inner.title = title.into();
        self
    }

    /// What is particular to this occurrence. Callers read it: no paths, no secrets.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.inner.detail = Some(detail.into());
        self
    }

    /// What the caller does next.
    #[must_use]
    pub fn next_action(mut self, action: impl Into<Cow<'static, str>>) -> Self {
        self.inner.next_action = Some(action.into());
        self.inner.standard_action = false;
        self
    }

    /// The handle of the operation it is about.
    #[must_use]
    pub fn operation_id(mut self, operation_id: Option<OperationId>) -> Self {
        self.inner.operation_id = operation_id;
        self
    }

    /// Whether repeating the call unchanged is safe and may help.
    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.inner.retryable = retryable;
        self
    }

    /// When to try again.
    #[must_use]
    pub fn retry_after(mut self, after: Option<Duration>) -> Self {
        self.inner.retry_after = after;
        self
    }

    /// Another member of the body, such as `expected_version`. The standing members win.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        const STANDING: [&str; 10] = [
            "type",
            "title",
            "status",
            "detail",
            "code",
            "operation_id",
            "retryable",
            "retry_after_ms",
            "next_action",
            "issues",
        ];
        if !STANDING.contains(&name) {
            self.inner.members.insert(name.to_owned(), value.into());
        }
        self
    }

    /// Where the pages of the codes are: `type` is this and the code. Default `/docs/errors/`.
    #[must_use]
    pub fn docs_base(mut self, base: impl Into<Cow<'static, str>>) -> Self {
        self.inner.docs_base = base.into();
        self
    }

    /// The code, as it stands on the wire.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.inner.code
    }

    /// The status.
    #[must_use]
    pub fn status_code(&self) -> StatusCode {
        self.inner.status.get()
    }

    /// The fields that are wrong.
    #[must_use]
    pub fn issues(&self) -> &[Issue] {
        &self.inner.issues
    }

    /// The problem as the end of an execution. A definite judgement is kept and replayed, so
    /// nothing may say that its key is still free, or that the same call may help.
    pub(crate) fn ended(mut self) -> Self {
        match class_of(self.status_code()) {
            Class::Success | Class::Judgement => {}
            Class::NotLetIn | Class::Failure => return self,
        }
        let inner = &mut self.inner;
        inner.next_action = match inner.next_action.take() {
            Some(action) if !inner.standard_action && !action.ends_with(KEPT) => {
                Some(format!("{action}. {KEPT}").into())
            }
            Some(action) if !inner.standard_action => Some(action),
            Some(_) | None => Some(KEPT.into()),
        };
        inner.retryable = false;
        inner.retry_after = None;
        self
    }

    fn retry_after_seconds(&self) -> Option<u64> {
        let after = self.inner.retry_after?;
        Some(after.as_secs() + u64::from(after.subsec_nanos() > 0))
    }

    pub(crate) fn body(&self) -> Bytes {
        let inner = &self.inner;
        let wire = Wire {
            r#type: format!("{}{}", inner.docs_base, inner.code),
            title: &inner.title,
            status: inner.status.get().as_u16(),
            detail: inner.detail.as_deref(),
            code: &inner.code,
            operation_id: inner.operation_id.map(|id| id.to_string()),
            retryable: inner.retryable,
            retry_after_ms: inner
                .retry_after
                .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            next_action: inner.next_action.as_deref(),
            issues: &inner.issues,
            members: &inner.members,
        };
        // It holds only strings, numbers and values that came from JSON: it always serializes.
        serde_json::to_vec(&wire).unwrap_or_default().into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body()));
        *response.status_mut() = self.status_code();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        if let Some(seconds) = self.retry_after_seconds() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status_code() == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let id = self.inner.operation_id.map(|id| id.to_string());
        if let Some(Ok(id)) = id.map(HeaderValue::try_from) {
            headers.insert(OPERATION_ID, id);
        }
        // For a layer that keeps the answer: what is kept has other words.
        response.extensions_mut().insert(self);
        response
    }
}

/// For a handler inside a transaction: the problem as the answer it gives. What is kept of it says
/// so: `next_action` is true for the first answer and for its replay.
impl From<Problem> for Reply {
    fn from(problem: Problem) -> Self {
        let problem = problem.ended();
        let retry_after = problem
            .retry_after_seconds()
            .map(|seconds| ("retry-after".to_owned(), seconds.to_string()));
        Self {
            status: problem.status_code().as_u16(),
            content_type: Some(CONTENT_TYPE.to_owned()),
            headers: retry_after.into_iter().collect(),
            body: problem.body(),
        }
    }
}

/// A definite judgement is recorded and replayed ([`Failure::Refused`]); what says nothing about a
/// later attempt (401, 403, 408, 429, 5xx) is rolled back and not kept ([`Failure::Aborted`]).
impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        match class_of(problem.status_code()) {
            Class::Success | Class::Judgement => Self::Refused(problem.into()),
            Class::NotLetIn | Class::Failure => Self::Aborted(problem.into()),
        }
    }
}
