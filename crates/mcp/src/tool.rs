use std::{future::Future, sync::Arc, time::Duration};

use counterfoil_core::Reply;
use counterfoil_engine::{Attempt, Caller, Operation, Outcome, TxHandler, store::BoxFuture};
use serde_json::{Map, Value};

use crate::{Output, Progress, ToolError};

/// What a handler is given.
#[derive(Clone)]
pub struct ToolRequest {
    /// Who calls. Never from an argument.
    pub caller: Caller,
    /// The arguments, valid by the tool's schema, without the idempotency key.
    pub arguments: Value,
    /// The request's `_meta`. Never counts as part of the request; do not store it.
    pub meta: Map<String, Value>,
    /// Where progress is told, if the client wants to hear of it.
    pub progress: Progress,
}

/// How a guarded handler ends: an answer, with what it proves.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// A definite success. Kept and replayed.
    Done(Output),
    /// A definite error (a judgement such as "no such thing"). Kept and replayed.
    Refused {
        /// What is wrong.
        error: ToolError,
        /// It is established that nothing was left behind.
        effect_none: bool,
    },
    /// A failure whose proof the policy's `on_error` decides.
    Failed(ToolError),
    /// Proven: nothing was applied. The key is free again.
    NotApplied(ToolError),
    /// Something may have been sent and no answer came: the outcome is unknown.
    Lost {
        /// It ran into a time-out.
        timed_out: bool,
    },
}

impl Ending {
    pub(crate) fn into_outcome(self) -> Outcome {
        match self {
            Self::Done(output) => Outcome::Succeeded(output.into()),
            Self::Refused { error, effect_none } => Outcome::Refused {
                reply: error.into(),
                effect_none,
            },
            Self::Failed(error) => Outcome::Failed(error.into()),
            Self::NotApplied(error) => Outcome::NotApplied(error.into()),
            Self::Lost { timed_out } => Outcome::Lost { timed_out },
        }
    }
}

pub(crate) type ReadFn =
    Arc<dyn Fn(ToolRequest) -> BoxFuture<'static, Result<Output, ToolError>> + Send + Sync>;
pub(crate) type CheckFn =
    Arc<dyn Fn(ToolRequest) -> BoxFuture<'static, Result<(), ToolError>> + Send + Sync>;
pub(crate) type GuardedFn =
    Arc<dyn Fn(ToolRequest, Attempt) -> BoxFuture<'static, Ending> + Send + Sync>;
pub(crate) type PrepareFn = Arc<
    dyn Fn(ToolRequest) -> BoxFuture<'static, Result<Box<dyn TxHandler>, ToolError>> + Send + Sync,
>;

/// How a tool runs.
#[derive(Clone)]
pub(crate) enum Kind {
    Read(ReadFn),
    Guarded {
        operation: Arc<Operation>,
        check: Option<CheckFn>,
        handler: GuardedFn,
    },
    Atomic {
        operation: Arc<Operation>,
        prepare: PrepareFn,
    },
}

/// A tool of the endpoint.
///
/// Its schemas are those of the domain: the endpoint adds `idempotency_key` to the input of every
/// mutating tool, takes it out again before the handler sees the arguments, and wraps the output
/// into one envelope with `status`, `operation_id`, `retryable`, `retry_after_ms`, `next_action`.
#[derive(Clone)]
pub struct Tool {
    pub(crate) name: String,
    pub(crate) title: Option<String>,
    pub(crate) description: String,
    pub(crate) input_schema: Value,
    pub(crate) output_schema: Option<Value>,
    pub(crate) destructive: bool,
    pub(crate) open_world: bool,
    pub(crate) kind: Kind,
}

impl Tool {
    fn new(name: &str, description: &str, input_schema: Value, kind: Kind) -> Self {
        Self {
            name: name.to_owned(),
            title: None,
            description: description.to_owned(),
            input_schema,
            output_schema: None,
            destructive: false,
            open_world: matches!(kind, Kind::Guarded { .. }),
            kind,
        }
    }

    /// A tool that changes nothing. Not deduplicated.
    pub fn read<H, F>(name: &str, description: &str, input_schema: Value, handler: H) -> Self
    where
        H: Fn(ToolRequest) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Output, ToolError>> + Send + 'static,
    {
        let handler: ReadFn = Arc::new(move |request| Box::pin(handler(request)));
        Self::new(name, description, input_schema, Kind::Read(handler))
    }

    /// A tool with an opaque handler: its reservation is durable before it starts, its result
    /// before the caller has it.
    pub fn guarded<H, F>(
        name: &str,
        description: &str,
        input_schema: Value,
        operation: Arc<Operation>,
        handler: H,
    ) -> Self
    where
        H: Fn(ToolRequest, Attempt) -> F + Send + Sync + 'static,
        F: Future<Output = Ending> + Send + 'static,
    {
        let handler: GuardedFn =
            Arc::new(move |request, attempt| Box::pin(handler(request, attempt)));
        let kind = Kind::Guarded {
            operation,
            check: None,
            handler,
        };
        Self::new(name, description, input_schema, kind)
    }

    /// A tool whose effect lies in the receipt's own database. `prepare` runs before anything is
    /// reserved: it checks what the schema cannot, asks limits, and gives the body of the
    /// transaction. The body's [`Reply`] is the domain result: JSON, a status of 400 or more for a
    /// refusal ([`ToolError`] and [`Output`] convert into it).
    pub fn atomic<P, F>(
        name: &str,
        description: &str,
        input_schema: Value,
        operation: Arc<Operation>,
        prepare: P,
    ) -> Self
    where
        P: Fn(ToolRequest) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Box<dyn TxHandler>, ToolError>> + Send + 'static,
    {
        let prepare: PrepareFn = Arc::new(move |request| Box::pin(prepare(request)));
        let kind = Kind::Atomic { operation, prepare };
        Self::new(name, description, input_schema, kind)
    }

    /// A title for people.
    #[must_use]
    pub fn title(mut self, title: &str) -> Self {
        self.title = Some(title.to_owned());
        self
    }

    /// The schema of the domain result, an object schema. Without one the tool has no published
    /// output schema; with one it must answer with [`Output::Json`].
    #[must_use]
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output_schema = Some(schema);
        self
    }

    /// Says honestly that it overwrites or deletes something.
    #[must_use]
    pub const fn destructive(mut self) -> Self {
        self.destructive = true;
        self
    }

    /// Says honestly whether it reaches beyond this server. Guarded tools do unless told
    /// otherwise, others do not.
    #[must_use]
    pub const fn open_world(mut self, open: bool) -> Self {
        self.open_world = open;
        self
    }

    /// For a guarded tool: runs before anything is reserved. It checks what the schema cannot and
    /// asks limits; an error refuses the call and uses up no key. Other tools have their own place
    /// for this, and are not changed.
    #[must_use]
    pub fn check<C, F>(mut self, run: C) -> Self
    where
        C: Fn(ToolRequest) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), ToolError>> + Send + 'static,
    {
        if let Kind::Guarded { check, .. } = &mut self.kind {
            *check = Some(Arc::new(move |request| Box::pin(run(request))));
        }
        self
    }

    /// What it is an operation of; `None` for a reading tool.
    pub(crate) const fn operation(&self) -> Option<&Arc<Operation>> {
        match &self.kind {
            Kind::Read(_) => None,
            Kind::Guarded { operation, .. } | Kind::Atomic { operation, .. } => Some(operation),
        }
    }
}

/// How long a client is told to wait after a failure of ours that proves nothing was done.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A boxed [`TxHandler`] as one.
pub(crate) struct Boxed(pub(crate) Box<dyn TxHandler>);

impl TxHandler for Boxed {
    fn call<'t>(
        &'t self,
        operation_id: Option<counterfoil_core::OperationId>,
        tx: &'t mut dyn counterfoil_engine::store::Sql,
    ) -> BoxFuture<'t, Result<Reply, counterfoil_engine::store::Failure>> {
        self.0.call(operation_id, tx)
    }
}
