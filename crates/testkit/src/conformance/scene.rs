//! What the cases are told with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use counterfoil_core::{
    Decision, Event, Fingerprint, Identity, Kept, Key, OperationId, Policy, PrincipalId, Receipt,
    Reply, Target, Timestamp, Token, WorkspaceId,
};
use counterfoil_store::{
    Admission, Admitted, Atomic, AtomicHandler, BoxFuture, Completion, Error, Failure, Fence,
    Found, Granted, Migration, Sql, Store, StoredReply, Value,
};

/// The beginning of every case.
pub(super) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

pub(super) fn after(seconds: u64) -> Timestamp {
    START.plus(Duration::from_secs(seconds))
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

fn serial() -> u64 {
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn token() -> Token {
    let mut random = [7; 16];
    random[..8].copy_from_slice(&serial().to_be_bytes());
    Token::new(random)
}

pub(super) fn operation_id(now: Timestamp) -> OperationId {
    let mut random = [9; 10];
    random[..8].copy_from_slice(&serial().to_be_bytes());
    OperationId::new(now, random)
}

pub(super) fn identity(key: &str) -> Identity {
    Identity {
        workspace: WorkspaceId::new("w1").unwrap(),
        principal: PrincipalId::new("ada").unwrap(),
        target: Target::new("POST /api/v1/notes"),
        key: Key::new(key).unwrap(),
    }
}

pub(super) fn fingerprint(body: &str) -> Fingerprint {
    Fingerprint::raw("", body.as_bytes())
}

/// A guarded admission of `key` with the body `one`.
pub(super) fn guarded(key: &str, now: Timestamp) -> Admission {
    Admission {
        identity: identity(key),
        fingerprint: fingerprint("one"),
        inputs: None,
        version: 1,
        policy: Policy::default(),
        operation_id: operation_id(now),
        token: token(),
        now,
        patience: Duration::from_secs(5),
    }
}

pub(super) fn atomic(key: &str, now: Timestamp) -> Admission {
    Admission {
        policy: Policy::atomic(),
        ..guarded(key, now)
    }
}

pub(super) fn with_body(body: &str, admission: Admission) -> Admission {
    Admission {
        fingerprint: fingerprint(body),
        ..admission
    }
}

pub(super) fn with_inputs(inputs: u8, admission: Admission) -> Admission {
    Admission {
        inputs: Some([inputs; 32]),
        ..admission
    }
}

pub(super) fn reply(body: &str) -> Reply {
    Reply {
        status: 201,
        content_type: Some("application/x-anything".to_owned()),
        headers: vec![("location".to_owned(), "/api/v1/notes/n1".to_owned())],
        body: body.as_bytes().to_vec().into(),
    }
}

pub(super) fn stored(body: &str) -> StoredReply {
    StoredReply {
        reply: reply(body),
        sealed: None,
    }
}

pub(super) fn completion(event: Event, at: Timestamp) -> Completion {
    Completion {
        event,
        reply: None,
        kept: Kept::Stored,
        at,
        reason: "as told by the case",
        evidence: None,
        question_for: Duration::from_secs(600),
    }
}

/// A success of the fence's attempt with an answer.
pub(super) fn success(fence: Fence, body: &str, at: Timestamp) -> Completion {
    let attempt = fence.attempt;
    Completion {
        reply: Some(stored(body)),
        ..completion(Event::Succeeded { attempt }, at)
    }
}

/// A question of the fence's attempt.
pub(super) fn question(fence: Fence, body: &str, at: Timestamp) -> Completion {
    let event = Event::Asked {
        attempt: fence.attempt,
        effect_none: true,
    };
    Completion {
        reply: Some(stored(body)),
        ..completion(event, at)
    }
}

/// Admits and expects a reservation.
pub(super) async fn run(store: &dyn Store, admission: Admission) -> Granted {
    match store.admit(admission).await.unwrap() {
        Admitted::Run(granted) => granted,
        Admitted::Decided(decision, _) => panic!("expected a run, got {decision:?}"),
        Admitted::Held => panic!("held, and nothing else is under way"),
    }
}

/// Admits and expects a decision.
pub(super) async fn decided(store: &dyn Store, admission: Admission) -> (Decision, Found) {
    match store.admit(admission).await.unwrap() {
        Admitted::Run(granted) => panic!("expected a decision, got {granted:?}"),
        Admitted::Decided(decision, found) => (decision, *found),
        Admitted::Held => panic!("held, and nothing else is under way"),
    }
}

/// Runs an atomic handler and expects that it ran.
pub(super) async fn ran(
    store: &dyn Store,
    admission: Admission,
    handler: Note,
) -> (Receipt, Reply) {
    match store
        .atomically(admission, Arc::new(handler))
        .await
        .unwrap()
    {
        Atomic::Ran(receipt, reply) => (*receipt, reply),
        other @ (Atomic::Aborted(_) | Atomic::Decided(..) | Atomic::Own(_) | Atomic::Held) => {
            panic!("expected that it ran, got {other:?}")
        }
    }
}

/// Runs an atomic handler and expects a decision instead.
pub(super) async fn not_run(
    store: &dyn Store,
    admission: Admission,
    handler: Note,
) -> (Decision, Found) {
    match store
        .atomically(admission, Arc::new(handler))
        .await
        .unwrap()
    {
        Atomic::Decided(decision, found) => (decision, *found),
        other @ (Atomic::Ran(..) | Atomic::Aborted(_) | Atomic::Own(_) | Atomic::Held) => {
            panic!("expected a decision, got {other:?}")
        }
    }
}

pub(super) async fn receipt(store: &dyn Store, operation_id: OperationId) -> Receipt {
    store.get(operation_id).await.unwrap().unwrap().receipt
}

/// The application's table: one row is one effect.
pub(super) const TABLE: [Migration; 1] = [Migration {
    version: 1,
    sqlite: "CREATE TABLE conformance_effects (label TEXT NOT NULL);",
    postgres: "CREATE TABLE conformance_effects (label TEXT NOT NULL);",
}];

pub(super) const INSERT: &str = "INSERT INTO conformance_effects (label) VALUES ($1)";

pub(super) async fn create_table(store: &dyn Store) {
    store.migrate("conformance", &TABLE).await.unwrap();
}

/// How many effects of this label are committed.
pub(super) async fn effects(store: &dyn Store, label: &str) -> usize {
    let rows = counterfoil_store::read(store, |sql| {
        Box::pin(async move {
            sql.query("SELECT label FROM conformance_effects LIMIT 100000", &[])
                .await
        })
    })
    .await
    .unwrap();
    rows.iter()
        .filter(|row| row.text(0).unwrap() == label)
        .count()
}

/// How an atomic handler ends after its effect is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Success,
    Refusal,
    Abort,
    StoreError,
    WrongStatement,
    Panic,
    PanicInKeep,
    TooLarge,
    Redacted,
    Transaction(&'static str),
}

/// An atomic handler that writes one effect and then ends as told.
#[derive(Clone, Debug)]
pub(super) struct Note {
    label: String,
    end: End,
}

pub(super) fn note(label: &str, end: End) -> Note {
    Note {
        label: label.to_owned(),
        end,
    }
}

impl AtomicHandler for Note {
    fn call<'t>(
        &'t self,
        _operation_id: OperationId,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        Box::pin(async move {
            tx.execute(INSERT, &[Value::from(self.label.as_str())])
                .await?;
            match self.end {
                End::Success | End::PanicInKeep | End::TooLarge | End::Redacted => {
                    Ok(reply(&self.label))
                }
                End::Refusal => Err(Failure::Refused(Reply {
                    status: 422,
                    ..reply(&self.label)
                })),
                End::Abort => Err(Failure::Aborted(Reply {
                    status: 503,
                    ..reply(&self.label)
                })),
                End::StoreError => Err(Failure::Store(Error::Statement(
                    "injected after the effect".to_owned(),
                ))),
                End::WrongStatement => {
                    let wrong = Error::Statement("a wrong statement".to_owned());
                    match tx.query("SELECT label FROM", &[]).await {
                        Ok(_) => Err(Failure::Store(wrong)),
                        Err(error) => Err(Failure::Store(error)),
                    }
                }
                End::Panic => panic!("injected after the effect"),
                End::Transaction(sql) => {
                    tx.execute(sql, &[]).await?;
                    Ok(reply(&self.label))
                }
            }
        })
    }

    fn keep(&self, _operation_id: OperationId, reply: &Reply) -> Result<StoredReply, Kept> {
        match self.end {
            End::PanicInKeep => panic!("injected between effect and receipt"),
            End::TooLarge => Err(Kept::TooLarge),
            End::Redacted => Ok(stored("redacted")),
            End::Success
            | End::Refusal
            | End::Abort
            | End::StoreError
            | End::WrongStatement
            | End::Panic
            | End::Transaction(_) => Ok(StoredReply {
                reply: reply.clone(),
                sealed: None,
            }),
        }
    }
}
