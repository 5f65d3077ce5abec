//! What a transaction writes, gathered over all its members and sent in one flight.

use std::{collections::BTreeMap, time::Instant};

use counterfoil_core::{EventRecord, Mode, Receipt, State, Timestamp};
use counterfoil_store::{Answer, Change, StoredReply, Whole};
use futures_util::future::{BoxFuture, join_all};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::{
    connect::{Parameter, Ready, Session, Text},
    error::{Done, Fault},
    locator::Locator,
    rows::{Stored, first_event, headers_text, last_event, millis, parameters_of, uuid_of},
    scopes::Scope,
};

macro_rules! boxed {
    ($($parameter:expr),*) => { vec![$(Box::new($parameter) as Boxed<'_>),*] };
}

static DELETE_EVENTS: Text = Text {
    sql: "DELETE FROM counterfoil_events AS e USING unnest($1, $2) AS t(first, last)
          WHERE e.id BETWEEN t.first AND t.last",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY],
};
static DELETE_RESULTS: Text = Text {
    sql: "DELETE FROM counterfoil_results WHERE receipt = ANY($1)",
    types: &[Type::INT8_ARRAY],
};
static DELETE_QUESTIONS: Text = Text {
    sql: "DELETE FROM counterfoil_questions WHERE receipt = ANY($1)",
    types: &[Type::INT8_ARRAY],
};
static DELETE_RECEIPTS: Text = Text {
    sql: "DELETE FROM counterfoil_receipts WHERE id = ANY($1)",
    types: &[Type::INT8_ARRAY],
};
/// The one statement that makes rows of receipts. Its columns are those of [`insertion`], in the
/// order of [`INSERT_TYPES`].
macro_rules! insert_receipts {
    () => {
        "INSERT INTO counterfoil_receipts(id, operation_id, scope, workspace, locator, token,
            fingerprint, state, mode, kept, committed, version, event_count, attempts, round,
            rounds, created_at, lease_until, hard_deadline, finished_at, replay_ms, tombstone_ms,
            provider_ms, parameters, key)
          SELECT unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6), unnest($7),
            unnest($8), unnest($9), unnest($10), unnest($11), unnest($12), unnest($13),
            unnest($14), unnest($15), unnest($16), unnest($17), unnest($18), unnest($19),
            unnest($20), unnest($21), unnest($22), unnest($23), unnest($24), unnest($25)"
    };
}
const INSERT_TYPES: &[Type] = &[
    Type::INT8_ARRAY,
    Type::UUID_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::UUID_ARRAY,
    Type::UUID_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT2_ARRAY,
    Type::INT2_ARRAY,
    Type::INT2_ARRAY,
    Type::BOOL_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT4_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
];
static INSERT: Text = Text {
    sql: insert_receipts!(),
    types: INSERT_TYPES,
};
/// Leaves out what stands under the same operation or identity already.
pub(crate) static INSERT_MISSING: Text = Text {
    sql: concat!(insert_receipts!(), " ON CONFLICT DO NOTHING"),
    types: INSERT_TYPES,
};
/// Everything of a receipt that can change.
static UPDATE: Text = Text {
    sql: "UPDATE counterfoil_receipts AS r SET token = t.token, state = t.state, mode = t.mode,
            kept = t.kept, committed = t.committed, version = t.version,
            event_count = t.event_count, attempts = t.attempts, round = t.round,
            rounds = t.rounds, lease_until = t.lease_until, hard_deadline = t.hard_deadline,
            finished_at = t.finished_at, replay_ms = t.replay_ms, tombstone_ms = t.tombstone_ms
          FROM (SELECT unnest($1) AS id, unnest($2) AS token, unnest($3) AS state, unnest($4) AS mode,
            unnest($5) AS kept, unnest($6) AS committed, unnest($7) AS version,
            unnest($8) AS event_count, unnest($9) AS attempts, unnest($10) AS round,
            unnest($11) AS rounds, unnest($12) AS lease_until, unnest($13) AS hard_deadline,
            unnest($14) AS finished_at, unnest($15) AS replay_ms, unnest($16) AS tombstone_ms) AS t
          WHERE r.id = t.id AND r.id = ANY($1)",
    types: &[
        Type::INT8_ARRAY,
        Type::UUID_ARRAY,
        Type::INT2_ARRAY,
        Type::INT2_ARRAY,
        Type::INT2_ARRAY,
        Type::BOOL_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT4_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
    ],
};
static EVENTS: Text = Text {
    sql:
        "INSERT INTO counterfoil_events(id, at, attempt, from_state, to_state, reason, evidence)
          SELECT unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6), unnest($7)",
    types: &[
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT2_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
    ],
};
static RESULTS: Text = Text {
    sql: "INSERT INTO counterfoil_results(receipt, status, sealed, content_type, headers, body)
          SELECT unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6)
          ON CONFLICT (receipt) DO UPDATE SET status = excluded.status, sealed = excluded.sealed,
            content_type = excluded.content_type, headers = excluded.headers,
            body = excluded.body",
    types: &[
        Type::INT8_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::BYTEA_ARRAY,
    ],
};
static OPEN: Text = Text {
    sql: "INSERT INTO counterfoil_open(receipt, workspace, lapse_at, doubt)
          SELECT unnest($1), unnest($2), unnest($3), unnest($4)
          ON CONFLICT (receipt) DO UPDATE SET lapse_at = excluded.lapse_at,
            doubt = excluded.doubt",
    types: &[
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::BOOL_ARRAY,
    ],
};
static CLOSE: Text = Text {
    sql: "DELETE FROM counterfoil_open WHERE receipt = ANY($1)",
    types: &[Type::INT8_ARRAY],
};
static FORGET_QUESTIONS: Text = Text {
    sql: "DELETE FROM counterfoil_questions AS q USING unnest($1, $2) AS t(receipt, round)
          WHERE q.receipt = t.receipt AND q.round >= t.round AND q.receipt = ANY($1)",
    types: &[Type::INT8_ARRAY, Type::INT4_ARRAY],
};
static QUESTIONS: Text = Text {
    sql:
        "INSERT INTO counterfoil_questions(receipt, round, status, sealed, content_type, headers,
            body)
          SELECT unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6), unnest($7)",
    types: &[
        Type::INT8_ARRAY,
        Type::INT4_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::BYTEA_ARRAY,
    ],
};
static NOTIFY: Text = Text {
    sql: "SELECT pg_notify('counterfoil_changed', t.id) FROM unnest($1) AS t(id)",
    types: &[Type::TEXT_ARRAY],
};

/// A row that is not there yet.
struct New {
    id: i64,
    scope: Scope,
    locator: Locator,
    receipt: Receipt,
}

/// A row as it is inserted.
pub(crate) struct Inserted<'a> {
    pub(crate) id: i64,
    pub(crate) scope: Scope,
    pub(crate) locator: Uuid,
    pub(crate) event_count: i64,
    pub(crate) receipt: &'a Receipt,
}

/// The entry of an unresolved receipt.
struct Open {
    workspace: i64,
    lapse_at: Option<i64>,
    doubt: bool,
}

impl Open {
    fn of(workspace: i64, receipt: &Receipt) -> Option<Self> {
        let state = receipt.status.state;
        state.is_unresolved().then(|| Self {
            workspace,
            lapse_at: may_lapse(receipt.mode, state).then(|| receipt.lease_until.as_millis()),
            doubt: is_doubt(state),
        })
    }
}

/// Whether the end of its lease ends what such a receipt waits for. A dispatched operation is its
/// worker's to take up.
pub(crate) const fn may_lapse(mode: Mode, state: State) -> bool {
    !matches!(mode, Mode::Dispatched)
        && matches!(
            state,
            State::Running | State::CancelRequested | State::InputRequired
        )
}

/// Whether somebody must do something about such a receipt.
pub(crate) const fn is_doubt(state: State) -> bool {
    matches!(state, State::InputRequired | State::OutcomeUnknown)
}

/// What a transaction writes.
#[derive(Default)]
pub(crate) struct Writes {
    deleted: Vec<i64>,
    /// Whose answers go and which stay as tombstones.
    forgotten: Vec<i64>,
    new: Vec<New>,
    updated: BTreeMap<i64, Stored>,
    events: Vec<(i64, EventRecord)>,
    results: Vec<(i64, StoredReply)>,
    questions: Vec<(i64, u16, Option<StoredReply>)>,
    /// What becomes of the entries of unresolved receipts; `None`: they go.
    open: BTreeMap<i64, Option<Open>>,
    /// Operations of which another node wants to be told.
    pub(crate) notify: Vec<String>,
    /// How the number of unresolved receipts of each workspace changes.
    pub(crate) unresolved: BTreeMap<i64, i64>,
}

impl Writes {
    pub(crate) fn is_empty(&self) -> bool {
        self.deleted.is_empty() && self.new.is_empty() && self.updated.is_empty()
    }

    /// Deletes a receipt with everything that hangs on it.
    pub(crate) fn delete(&mut self, id: i64) {
        self.deleted.push(id);
    }

    /// Deletes the answers of a receipt; a tombstone is left.
    pub(crate) fn forget(&mut self, stored: &mut Stored) {
        stored.receipt.kept = counterfoil_core::Kept::Nothing;
        self.forgotten.push(stored.id);
        self.updated.insert(stored.id, stored.clone());
    }

    /// Inserts a receipt as `id`, or in the place of one that is over and past every window: an
    /// admission repeated after all its windows is still one operation.
    pub(crate) fn insert(
        &mut self,
        id: i64,
        scope: Scope,
        locator: Locator,
        replaced: Option<&Stored>,
        change: &Change<'_>,
    ) {
        let same =
            |replaced: &&Stored| replaced.receipt.operation_id == change.receipt.operation_id;
        let id = replaced.filter(same).map_or(id, |replaced| replaced.id);
        self.deleted.extend(replaced.map(|replaced| replaced.id));
        *self.unresolved.entry(scope.workspace).or_default() += change.unresolved();
        self.events.push((first_event(id), change.event.clone()));
        if let Answer::Result(reply) = change.answer {
            self.results.push((id, reply.clone()));
        }
        self.track(id, scope.workspace, State::Free, &change.receipt);
        self.new.push(New {
            id,
            scope,
            locator,
            receipt: change.receipt.clone(),
        });
    }

    /// Changes a receipt, and `stored` with it.
    pub(crate) fn update(&mut self, stored: &mut Stored, change: &Change<'_>) {
        *self.unresolved.entry(stored.workspace).or_default() += change.unresolved();
        let id = first_event(stored.id).saturating_add(stored.event_count);
        // Beyond a million rows the log is full.
        if id <= last_event(stored.id) {
            stored.event_count += 1;
            self.events.push((id, change.event.clone()));
        }
        match change.answer {
            Answer::Nothing => {}
            Answer::Result(reply) => self.results.push((stored.id, reply.clone())),
            Answer::Question(round, reply) => {
                self.questions.push((stored.id, round, reply.cloned()));
            }
        }
        stored.receipt = change.receipt.clone();
        self.track(stored.id, stored.workspace, change.before, &stored.receipt);
        self.updated.insert(stored.id, stored.clone());
    }

    fn track(&mut self, id: i64, workspace: i64, before: State, receipt: &Receipt) {
        let open = Open::of(workspace, receipt);
        if open.is_some() || before.is_unresolved() {
            self.open.insert(id, open);
        }
    }

    /// Changes a lease, which leaves no row in the log.
    pub(crate) fn renew(&mut self, stored: &mut Stored, until: Timestamp) {
        stored.receipt.lease_until = until;
        let state = stored.receipt.status.state;
        self.track(stored.id, stored.workspace, state, &stored.receipt);
        self.updated.insert(stored.id, stored.clone());
    }

    /// Adds everything that hangs on a receipt of another store, whose row is there already.
    pub(crate) fn bring(&mut self, id: i64, scope: Scope, whole: &Whole) {
        let unresolved = i64::from(whole.receipt.status.state.is_unresolved());
        *self.unresolved.entry(scope.workspace).or_default() += unresolved;
        self.track(id, scope.workspace, State::Free, &whole.receipt);
        let events = (first_event(id)..).zip(whole.events.iter().cloned());
        self.events.extend(events);
        self.results
            .extend(whole.result.iter().map(|result| (id, result.clone())));
        // Sent as they are: of several questions of a receipt, none takes the place of another.
        let questions = whole.questions.iter();
        self.questions
            .extend(questions.map(|(round, question)| (id, *round, Some(question.clone()))));
    }

    /// Makes everything ready that will be sent.
    pub(crate) async fn ready(&self, session: &Session) -> Done<Flight<'_>> {
        let mut flight = Flight(Vec::with_capacity(8));
        if !self.deleted.is_empty() {
            let first: Vec<i64> = self.deleted.iter().copied().map(first_event).collect();
            let last: Vec<i64> = self.deleted.iter().copied().map(last_event).collect();
            flight
                .add(session, &DELETE_EVENTS, boxed![first, last])
                .await?;
            let ids = self.deleted.as_slice();
            flight.add(session, &DELETE_RECEIPTS, boxed![ids]).await?;
        }
        let without = [self.deleted.as_slice(), &self.forgotten].concat();
        if !without.is_empty() {
            flight
                .add(session, &DELETE_RESULTS, boxed![without.clone()])
                .await?;
            flight
                .add(session, &DELETE_QUESTIONS, boxed![without])
                .await?;
        }
        if !self.new.is_empty() {
            flight.add(session, &INSERT, self.inserts()).await?;
        }
        if !self.updated.is_empty() {
            flight.add(session, &UPDATE, self.updates()).await?;
        }
        let open = || {
            self.open
                .iter()
                .filter_map(|(id, open)| Some((id, open.as_ref()?)))
        };
        if open().next().is_some() {
            let parameters = boxed![
                collect(open(), |(id, _)| *id),
                collect(open(), |(_, open)| open.workspace),
                collect(open(), |(_, open)| open.lapse_at),
                collect(open(), |(_, open)| open.doubt)
            ];
            flight.add(session, &OPEN, parameters).await?;
        }
        let closed: Vec<i64> = self
            .open
            .iter()
            .filter(|(_, open)| open.is_none())
            .map(|(id, _)| *id)
            .collect();
        if !closed.is_empty() {
            flight.add(session, &CLOSE, boxed![closed]).await?;
        }
        if !self.events.is_empty() {
            flight.add(session, &EVENTS, self.logged()).await?;
        }
        if !self.results.is_empty() {
            let ids: Vec<i64> = self.results.iter().map(|(id, _)| *id).collect();
            let replies = self.results.iter().map(|(_, reply)| reply);
            let (status, sealed, content_type, headers, body) = columns(replies);
            flight
                .add(
                    session,
                    &RESULTS,
                    boxed![ids, status, sealed, content_type, headers, body],
                )
                .await?;
        }
        if !self.questions.is_empty() {
            let ids: Vec<i64> = self.questions.iter().map(|(id, ..)| *id).collect();
            let rounds: Vec<i32> = self
                .questions
                .iter()
                .map(|(_, n, _)| i32::from(*n))
                .collect();
            flight
                .add(session, &FORGET_QUESTIONS, boxed![ids, rounds])
                .await?;
            let kept = || {
                let kept = self.questions.iter();
                kept.filter_map(|(id, n, reply)| Some((*id, i32::from(*n), reply.as_ref()?)))
            };
            let ids: Vec<i64> = kept().map(|(id, ..)| id).collect();
            let rounds: Vec<i32> = kept().map(|(_, round, _)| round).collect();
            let (status, sealed, content_type, headers, body) =
                columns(kept().map(|(.., reply)| reply));
            flight
                .add(
                    session,
                    &QUESTIONS,
                    boxed![ids, rounds, status, sealed, content_type, headers, body],
                )
                .await?;
        }
        if !self.notify.is_empty() {
            let ids = self.notify.as_slice();
            flight.add(session, &NOTIFY, boxed![ids]).await?;
        }
        Ok(flight)
    }

    fn inserts(&self) -> Vec<Boxed<'_>> {
        let rows = self.new.iter().map(|new| Inserted {
            id: new.id,
            scope: new.scope,
            locator: new.locator.id,
            event_count: 1,
            receipt: &new.receipt,
        });
        insertion(&rows.collect::<Vec<_>>())
    }

    fn updates(&self) -> Vec<Boxed<'_>> {
        let rows = || self.updated.values();
        let receipts = || rows().map(|stored| &stored.receipt);
        vec![
            Box::new(collect(rows(), |s| s.id)),
            Box::new(collect(receipts(), |r| {
                Uuid::from_bytes(r.token.to_bytes())
            })),
            Box::new(collect(receipts(), |r| i16::from(r.status.state.to_byte()))),
            Box::new(collect(receipts(), |r| i16::from(r.mode.to_byte()))),
            Box::new(collect(receipts(), |r| i16::from(r.kept.to_byte()))),
            Box::new(collect(receipts(), |r| r.status.committed)),
            Box::new(collect(receipts(), |r| i64::from(r.version))),
            Box::new(collect(rows(), |s| s.event_count)),
            Box::new(collect(receipts(), |r| r.status.attempts.to_bytes())),
            Box::new(collect(receipts(), |r| i32::from(r.status.round))),
            Box::new(collect(receipts(), |r| r.rounds.as_flattened().to_vec())),
            Box::new(collect(receipts(), |r| r.lease_until.as_millis())),
            Box::new(collect(receipts(), |r| r.hard_deadline.as_millis())),
            Box::new(collect(receipts(), |r| {
                r.finished_at.map(Timestamp::as_millis)
            })),
            Box::new(collect(receipts(), |r| millis(r.retention.replay_for))),
            Box::new(collect(receipts(), |r| millis(r.retention.tombstone_for))),
        ]
    }

    fn logged(&self) -> Vec<Boxed<'_>> {
        let events = || self.events.iter().map(|(_, event)| event);
        vec![
            Box::new(collect(&self.events, |(id, _)| *id)),
            Box::new(collect(events(), |e| e.at.as_millis())),
            Box::new(collect(events(), |e| i64::from(e.attempt))),
            Box::new(collect(events(), |e| {
                e.from.map(|s| i16::from(s.to_byte()))
            })),
            Box::new(collect(events(), |e| i16::from(e.to.to_byte()))),
            Box::new(collect(events(), |e| clean(&e.reason))),
            Box::new(collect(events(), |e| e.evidence.as_deref().map(clean))),
        ]
    }
}

/// What [`INSERT`] and [`INSERT_MISSING`] are told.
pub(crate) fn insertion(new: &[Inserted<'_>]) -> Vec<Boxed<'static>> {
    let receipts = || new.iter().map(|new| new.receipt);
    vec![
        Box::new(collect(new, |n| n.id)),
        Box::new(collect(receipts(), |r| uuid_of(r.operation_id))),
        Box::new(collect(new, |n| n.scope.id)),
        Box::new(collect(new, |n| n.scope.workspace)),
        Box::new(collect(new, |n| n.locator)),
        Box::new(collect(receipts(), |r| {
            Uuid::from_bytes(r.token.to_bytes())
        })),
        Box::new(collect(receipts(), |r| r.fingerprint.to_bytes().to_vec())),
        Box::new(collect(receipts(), |r| i16::from(r.status.state.to_byte()))),
        Box::new(collect(receipts(), |r| i16::from(r.mode.to_byte()))),
        Box::new(collect(receipts(), |r| i16::from(r.kept.to_byte()))),
        Box::new(collect(receipts(), |r| r.status.committed)),
        Box::new(collect(receipts(), |r| i64::from(r.version))),
        Box::new(collect(new, |n| n.event_count)),
        Box::new(collect(receipts(), |r| r.status.attempts.to_bytes())),
        Box::new(collect(receipts(), |r| i32::from(r.status.round))),
        Box::new(collect(receipts(), |r| r.rounds.as_flattened().to_vec())),
        Box::new(collect(receipts(), |r| r.created_at.as_millis())),
        Box::new(collect(receipts(), |r| r.lease_until.as_millis())),
        Box::new(collect(receipts(), |r| r.hard_deadline.as_millis())),
        Box::new(collect(receipts(), |r| {
            r.finished_at.map(Timestamp::as_millis)
        })),
        Box::new(collect(receipts(), |r| millis(r.retention.replay_for))),
        Box::new(collect(receipts(), |r| millis(r.retention.tombstone_for))),
        Box::new(collect(receipts(), |r| millis(r.provider_window))),
        Box::new(collect(receipts(), |r| parameters_of(&r.identity))),
        Box::new(collect(receipts(), |r| r.identity.key.as_str().to_owned())),
    ]
}

/// A parameter of a statement that is ready to be sent.
pub(crate) type Boxed<'a> = Box<dyn ToSql + Sync + Send + 'a>;

/// Statements in their order, ready to be sent without waiting in between.
pub(crate) struct Flight<'a>(Vec<(Ready, Vec<Boxed<'a>>)>);

/// What became of a flight.
pub(crate) enum Sent {
    /// All of it is done, and committed if that was asked for.
    Done,
    /// A statement was refused: nothing is committed.
    Refused(Fault),
    /// The connection broke after COMMIT was sent: nobody knows.
    InDoubt(String),
}

impl<'a> Flight<'a> {
    async fn add(
        &mut self,
        session: &Session,
        text: &'static Text,
        parameters: Vec<Boxed<'a>>,
    ) -> Done<()> {
        self.0.push((session.ready(text).await?, parameters));
        Ok(())
    }

    /// Sends it in one go: `first` (nothing, or plain statements) before it, and COMMIT behind it
    /// if the transaction is to end.
    pub(crate) async fn send(&self, session: &Session, first: &str, commit: bool) -> Sent {
        let start = Instant::now();
        let first = (!first.is_empty()).then(|| {
            let sending: BoxFuture<'_, Done<()>> = Box::pin(session.run(first));
            sending
        });
        let statements = self.0.iter().map(|(ready, parameters)| {
            let sending: BoxFuture<'_, Done<()>> = Box::pin(async move {
                let parameters: Vec<Parameter<'_>> = parameters
                    .iter()
                    .map(|parameter| &**parameter as Parameter<'_>)
                    .collect();
                session.execute(ready, &parameters).await.map(drop)
            });
            sending
        });
        let commit = commit.then(|| {
            let sending: BoxFuture<'_, Done<()>> = Box::pin(session.commit());
            sending
        });
        let commits = commit.is_some();
        let done = join_all(first.into_iter().chain(statements).chain(commit)).await;
        if commits {
            metrics::histogram!("counterfoil_store_commit_seconds").record(start.elapsed());
        }
        for done in done {
            match done {
                Ok(()) => {}
                Err(Fault::Lost(why)) if commits => return Sent::InDoubt(why),
                Err(fault) => return Sent::Refused(fault),
            }
        }
        Sent::Done
    }
}

pub(crate) fn collect<I: IntoIterator, T>(rows: I, column: impl Fn(I::Item) -> T) -> Vec<T> {
    rows.into_iter().map(column).collect()
}

/// PostgreSQL's text holds no NUL.
fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

type Columns<'a> = (
    Vec<i32>,
    Vec<Option<i64>>,
    Vec<Option<String>>,
    Vec<Option<String>>,
    Vec<&'a [u8]>,
);

/// Answers, column by column: status, sealing key, content type, headers, body.
fn columns<'a>(replies: impl Iterator<Item = &'a StoredReply>) -> Columns<'a> {
    let mut columns: Columns<'a> = Columns::default();
    for stored in replies {
        let reply = &stored.reply;
        columns.0.push(i32::from(reply.status));
        columns.1.push(stored.sealed.map(i64::from));
        columns.2.push(reply.content_type.as_deref().map(clean));
        columns.3.push(headers_text(reply));
        columns.4.push(&reply.body);
    }
    columns
}

/// Makes the statements of an ordinary change ready on a connection, once.
pub(crate) async fn prepare(session: &Session) -> Done<()> {
    for text in [&INSERT, &UPDATE, &OPEN, &CLOSE, &EVENTS, &RESULTS, &NOTIFY] {
        session.ready(text).await?;
    }
    Ok(())
}
