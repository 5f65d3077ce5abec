use std::{sync::Arc, time::Duration};

use axum::{
    extract::{FromRequest, FromRequestParts as _, MatchedPath, RawPathParams, Request},
    response::Response,
};
use bytes::Bytes;
use counterfoil_core::{Code, Fingerprint, Key, OperationId, Pointer, Reply, Target};
use counterfoil_engine::{
    Call, Caller, Engine, Lookup, Operation, TxHandler,
    store::{BoxFuture, Failure, Sql},
};
use http::{HeaderMap, header, request::Parts};
use serde::de::DeserializeOwned;

use crate::{
    FingerprintBy, Problem, Rest,
    body::collect,
    headers::{is_mutation, key_of, wait_of},
    issues::read_json,
};

/// A matched route: what a keyed call addresses.
pub(crate) struct Route {
    pub(crate) target: Target,
}

/// The route of a request; `None` if no route matched. A path that cannot name anything is refused.
pub(crate) async fn route_of(parts: &mut Parts) -> Result<Option<Route>, Problem> {
    let Some(template) = parts.extensions.get::<MatchedPath>().cloned() else {
        return Ok(None);
    };
    let parameters = RawPathParams::from_request_parts(parts, &())
        .await
        .map_err(|_| {
            Problem::new(Code::MalformedRequest).detail("The path is not percent-encoded UTF-8.")
        })?;
    let parameters: Vec<String> = parameters
        .iter()
        .map(|(_, value)| value.to_owned())
        .collect();
    // `/nodes//complete` matches `/nodes/{id}/complete` with an empty id, which names nothing.
    if parameters.iter().any(String::is_empty) {
        return Err(Problem::new(Code::NotFound).detail("The path has an empty segment."));
    }
    let operation = format!("{} {}", parts.method, template.as_str());
    Ok(Some(Route {
        target: Target::new(operation).with_parameters(parameters),
    }))
}

/// A mutating request, read whole within bounds: an extractor for routes whose effect lies in the
/// receipt's own database.
///
/// ```text
/// async fn create(State(app): State<App>, mutation: Mutation) -> Response {
///     mutation
///         .atomically(&app.engine, &app.create_note, |m| m.json::<NewNote>(), |tx| {
///             Box::pin(async move {
///                 tx.sql.execute("INSERT …", &[…]).await?;
///                 Ok(Reply::json(201, &json!({ … })))
///             })
///         })
///         .await
/// }
/// ```
///
/// It refuses, before any work and in this order: no [`Caller`] among the request's extensions
/// (401), a malformed key or one in a place where none is taken, such as the query (422
/// `invalid_key`), a body beyond [`Rest::body_bytes_max`] (413).
#[derive(Clone)]
pub struct Mutation {
    caller: Caller,
    target: Option<Target>,
    key: Option<Key>,
    wait: Option<Duration>,
    headers: HeaderMap,
    query: String,
    body: Bytes,
    by: FingerprintBy,
    rest: Rest,
}

impl<S: Send + Sync> FromRequest<S> for Mutation {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let rest = request.extensions().get::<Rest>();
        let rest = rest.cloned().unwrap_or_default();
        Self::read(request, rest.clone())
            .await
            .map_err(|problem| rest.refuse(problem))
    }
}

impl Mutation {
    async fn read(request: Request, rest: Rest) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Problem::new(Code::Unauthorized))?;
        let key = if is_mutation(&parts.method) {
            key_of(&parts.headers, parts.uri.query().unwrap_or_default())?
        } else {
            None
        };
        let target = route_of(&mut parts).await?.map(|route| route.target);
        let body = collect(body, rest.body_bytes_max).await?;
        Ok(Self {
            caller,
            target,
            key,
            wait: wait_of(&parts.headers),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: parts.headers,
            body,
            by: FingerprintBy::RawBytes,
            rest,
        })
    }

    /// Compares bodies as JSON values, without the fields the pointers name.
    #[must_use]
    pub fn canonical_json(mut self, except: impl IntoIterator<Item = Pointer>) -> Self {
        self.by = FingerprintBy::CanonicalJson {
            except: except.into_iter().collect(),
        };
        self
    }

    /// Who calls.
    #[must_use]
    pub const fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The key, if the request carries one.
    #[must_use]
    pub const fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The decoded path parameters, in the order of the template.
    #[must_use]
    pub fn parameters(&self) -> &[String] {
        self.target
            .as_ref()
            .map_or(&[], |target| target.parameters.as_slice())
    }

    /// The query, as it was sent; empty if there is none.
    #[must_use]
    pub fn query(&self) -> &str {
        &self.query
    }

    /// The headers.
    #[must_use]
    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body, byte for byte.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// The body, read strictly as JSON into `T` (see [`read_json`]).
    ///
    /// # Errors
    /// 415 if the content type says that it is something else; 400 `malformed_request`; 422
    /// `invalid`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        if !may_be_json(&self.headers) {
            return Err(Problem::new(Code::UnsupportedMediaType)
                .detail("This route takes application/json."));
        }
        read_json(&self.body)
    }

    /// The call for the engine, and nothing if there is no key. [`Mutation::atomically`] does all
    /// of it; this is for routes that need something in between.
    ///
    /// # Errors
    /// 400 `malformed_request` if bodies are compared as JSON and this is none; 500 if the
    /// handler is not behind a route.
    pub fn call(&self, operation: &Arc<Operation>) -> Result<Option<Call>, Problem> {
        let Some(key) = self.key.clone() else {
            return Ok(None);
        };
        let Some(target) = self.target.clone() else {
            tracing::error!("a keyed call reached a handler behind no route; it reserves nothing");
            return Err(Problem::new(Code::Internal));
        };
        Ok(Some(Call {
            identity: self.caller.identity(target, key),
            fingerprint: self.fingerprint()?,
            operation: Arc::clone(operation),
            authority: Arc::clone(&self.caller.authority),
            wait: self.wait,
            inputs: None,
        }))
    }

    fn fingerprint(&self) -> Result<Fingerprint, Problem> {
        self.by.of(&self.query, &self.body)
    }

    /// Runs `handler` in one transaction: the receipt's own if the request carries a key, one
    /// without a receipt if it carries none.
    ///
    /// `validate` runs only when the call is to run, before anything is reserved: an old retry is
    /// answered under its old contract, and an invalid request uses up no key. The handler may run
    /// again (a broken batch), at most one run is committed; it must await nothing but the
    /// transaction. A [`Problem`] becomes what it ends in by `?` or `.into()`: a definite
    /// judgement is recorded and replayed, other failures are rolled back and not kept.
    pub async fn atomically<T, V, H>(
        self,
        engine: &Engine,
        operation: &Arc<Operation>,
        validate: V,
        handler: H,
    ) -> Response
    where
        T: Send + Sync + 'static,
        V: FnOnce(&Self) -> Result<T, Problem> + Send,
        H: for<'t> Fn(Tx<'t, T>) -> BoxFuture<'t, Result<Reply, Failure>> + Send + Sync + 'static,
    {
        let rest = self.rest.clone();
        self.run(engine, operation, validate, handler)
            .await
            .unwrap_or_else(|problem| rest.refuse(problem))
    }

    async fn run<T, V, H>(
        self,
        engine: &Engine,
        operation: &Arc<Operation>,
        validate: V,
        handler: H,
    ) -> Result<Response, Problem>
    where
        T: Send + Sync + 'static,
        V: FnOnce(&Self) -> Result<T, Problem> + Send,
        H: for<'t> Fn(Tx<'t, T>) -> BoxFuture<'t, Result<Reply, Failure>> + Send + Sync + 'static,
    {
        let Some(call) = self.call(operation)? else {
            let rule = self
                .fingerprint()
                .map_or(counterfoil_core::Rule::Raw1, |f| f.rule);
            let input = validate(&self)?;
            let rest = self.rest.clone();
            let caller = self.caller.clone();
            let authority = caller.authority.as_ref();
            let handling = self.handling(input, handler);
            let done = engine.unkeyed(&caller.workspace, authority, handling).await;
            return match done {
                Ok(reply) => Ok(rest.reply(reply, None, &[])),
                Err(refusal) => Err(rest.problem(refusal, rule)),
            };
        };
        let (rule, wait, rest) = (call.fingerprint.rule, self.wait, self.rest.clone());
        let answer = match engine.look_up(call).await {
            Lookup::Answered(answer) => answer,
            Lookup::Ready(ready) => {
                let input = validate(&self)?;
                ready.atomically(self.handling(input, handler)).await
            }
        };
        Ok(rest.respond_waited(answer, rule, wait, operation.policy.wait_max))
    }

    fn handling<T, H>(self, input: T, handler: H) -> Handling<T, H> {
        Handling {
            input,
            caller: self.caller,
            parameters: self.target.map(|t| t.parameters).unwrap_or_default(),
            handler,
        }
    }
}

/// What a handler inside a transaction has.
pub struct Tx<'t, T> {
    /// What `validate` made of the request.
    pub input: &'t T,
    /// Who calls.
    pub caller: &'t Caller,
    /// The decoded path parameters, in the order of the template.
    pub parameters: &'t [String],
    /// The handle of the operation; `None` for a call without a key.
    pub operation_id: Option<OperationId>,
    /// The transaction.
    pub sql: &'t mut dyn Sql,
}

struct Handling<T, H> {
    input: T,
    caller: Caller,
    parameters: Vec<String>,
    handler: H,
}

impl<T, H> TxHandler for Handling<T, H>
where
    T: Send + Sync + 'static,
    H: for<'t> Fn(Tx<'t, T>) -> BoxFuture<'t, Result<Reply, Failure>> + Send + Sync + 'static,
{
    fn call<'t>(
        &'t self,
        operation_id: Option<OperationId>,
        sql: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        (self.handler)(Tx {
            input: &self.input,
            caller: &self.caller,
            parameters: &self.parameters,
            operation_id,
            sql,
        })
    }
}

/// No content type, or one of JSON.
fn may_be_json(headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(header::CONTENT_TYPE) else {
        return true;
    };
    let essence = given.to_str().unwrap_or_default().split(';').next();
    let essence = essence.unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}
