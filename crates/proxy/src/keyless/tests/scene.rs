//! What the tests are told with.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use counterfoil_core::{
    Event, Fingerprint, Identity, Kept, Key, OperationId, Policy, PrincipalId, Reply, Timestamp,
    Token, WorkspaceId,
};
use counterfoil_engine::Engine;
use counterfoil_sqlite::{Options, SqliteStore};
use counterfoil_store::{Admission, Admitted, Completion, Error, Fence, Store, StoredReply};

use crate::{
    keyless::{CallDigest, Channel, Deliveries, Delivery, KeylessCall, Pairing, judge::Windows},
    settings::Keyless,
};

pub(super) const WINDOWS: Windows = Windows {
    client_patience: Duration::from_secs(10),
    parallel_within: Duration::from_secs(1),
    attach_for: Duration::from_secs(120),
    ask_for: Duration::from_secs(24 * 3600),
    ask_for_written: Duration::from_secs(15 * 60),
    unannotated_fresh_for: Duration::from_secs(5),
    tombstone_for: Duration::from_secs(30 * 24 * 3600),
};

static SERIAL: AtomicU64 = AtomicU64::new(1);

/// So many milliseconds into the tests' time.
pub(super) const fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + millis)
}

pub(super) fn channel(number: u8) -> Channel {
    Channel([number; 16])
}

/// A database in a folder of its own.
pub(super) struct Scene {
    folder: tempfile::TempDir,
    pub(super) store: Arc<dyn Store>,
}

impl Scene {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("receipts.db"), Options::default());
        Self {
            store: Arc::new(store.unwrap()),
            folder,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("receipts.db")
    }

    /// A process that writes only when it is told to.
    pub(super) async fn process(&self) -> Process {
        Process::on(Arc::clone(&self.store)).await
    }
}

pub(super) struct Process {
    pub(super) store: Arc<dyn Store>,
    pub(super) deliveries: Deliveries,
}

/// A call that was paired.
pub(super) struct Paired {
    pub(super) pairing: Pairing,
    pub(super) delivery: Delivery,
    pub(super) call: KeylessCall,
}

/// A reservation.
pub(super) struct Running {
    pub(super) fence: Fence,
    pub(super) delivery: Delivery,
}

impl Process {
    pub(super) async fn on(store: Arc<dyn Store>) -> Self {
        let engine = Engine::new(Arc::clone(&store));
        let deliveries = Deliveries::open_unwritten(&engine, WINDOWS).await.unwrap();
        Self { store, deliveries }
    }

    pub(super) async fn pair(&self, call: &KeylessCall, now: Timestamp) -> Paired {
        let (pairing, delivery) = self.deliveries.pair(call, now).await.unwrap();
        Paired {
            pairing,
            delivery,
            call: call.clone(),
        }
    }

    /// Pairs a call that must run, and reserves its key.
    pub(super) async fn run(&self, call: &KeylessCall, now: Timestamp) -> Running {
        let paired = self.pair(call, now).await;
        let Pairing::Run(key) = paired.pairing else {
            panic!("not run but {:?}", paired.pairing);
        };
        let identity = call.identity(&call.operation, &key);
        let fence = admit(&*self.store, identity, call.fingerprint, now).await;
        paired.delivery.started();
        Running {
            fence,
            delivery: paired.delivery,
        }
    }

    /// Runs a call to its end; its answer is not handed out yet.
    pub(super) async fn finish(&self, call: &KeylessCall, now: Timestamp) -> Running {
        let running = self.run(call, now).await;
        succeed(&*self.store, running.fence, now).await;
        running
    }

    /// Another mutating call of the same principal to the same upstream, with a key.
    pub(super) async fn mutate(&self, name: &str, now: Timestamp) -> Fence {
        let other = call(9, 0);
        let identity = other.identity("MCP other", &Key::new(name).unwrap());
        let fence = admit(&*self.store, identity, other.fingerprint, now).await;
        succeed(&*self.store, fence, now).await;
        fence
    }
}

impl Paired {
    #[track_caller]
    pub(super) fn must_run(&self, number: u32) {
        let key = crate::keyless::key(self.call.digest, number).unwrap();
        assert_eq!(self.pairing, Pairing::Run(key));
    }

    #[track_caller]
    pub(super) fn must_attach(&self, number: u32) {
        let key = crate::keyless::key(self.call.digest, number).unwrap();
        let operation = self.call.operation.clone();
        assert_eq!(self.pairing, Pairing::Attach { key, operation });
    }

    #[track_caller]
    pub(super) fn must_ask(&self, about: &Running) {
        assert_eq!(self.pairing, Pairing::Ask(about.fence.operation_id));
    }
}

/// A call of a tool that says of itself what it does.
pub(super) fn call(digest: u8, on: u8) -> KeylessCall {
    KeylessCall {
        workspace: WorkspaceId::new("default").unwrap(),
        principal: PrincipalId::new("local").unwrap(),
        upstream: "0123456789abcdef0123456789abcdef".to_owned(),
        operation: "MCP write".to_owned(),
        digest: CallDigest([digest; 32]),
        fingerprint: Fingerprint::canonical("", &[digest]),
        channel: channel(on),
        is_ordered: true,
        annotated: true,
        keyless: Keyless::Attach,
    }
}

pub(super) async fn admit(
    store: &dyn Store,
    identity: Identity,
    fingerprint: Fingerprint,
    now: Timestamp,
) -> Fence {
    grant(store, admission(identity, fingerprint, now))
        .await
        .unwrap()
        .expect("a new reservation")
}

pub(super) fn admission(identity: Identity, fingerprint: Fingerprint, now: Timestamp) -> Admission {
    let mut random = [0; 16];
    random[8..].copy_from_slice(&SERIAL.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    let mut ten = [0; 10];
    ten.copy_from_slice(&random[6..]);
    Admission {
        identity,
        fingerprint,
        inputs: None,
        version: 1,
        policy: Policy::default(),
        operation_id: OperationId::new(now, ten),
        token: Token::new(random),
        now,
        patience: Duration::from_secs(20),
    }
}

/// `None`: a rival has the key.
pub(super) async fn grant(store: &dyn Store, admission: Admission) -> Result<Option<Fence>, Error> {
    Ok(match store.admit(admission).await? {
        Admitted::Run(granted) => Some(granted.fence),
        Admitted::Decided(..) | Admitted::Held => None,
    })
}

pub(super) async fn succeed(store: &dyn Store, fence: Fence, now: Timestamp) {
    let attempt = fence.attempt;
    complete(store, fence, Event::Succeeded { attempt }, "{}", now).await;
}

pub(super) async fn complete(
    store: &dyn Store,
    fence: Fence,
    event: Event,
    body: &str,
    now: Timestamp,
) {
    let has_reply = matches!(event, Event::Succeeded { .. } | Event::Asked { .. });
    let reply = Reply {
        status: 200,
        content_type: None,
        headers: Vec::new(),
        body: body.as_bytes().to_vec().into(),
    };
    let completion = Completion {
        event,
        reply: has_reply.then_some(StoredReply {
            reply,
            sealed: None,
        }),
        kept: if has_reply {
            Kept::Stored
        } else {
            Kept::AnswerLost
        },
        at: now,
        reason: "answered",
        evidence: None,
        question_for: Duration::from_secs(600),
    };
    store.complete(fence, completion).await.unwrap();
}
