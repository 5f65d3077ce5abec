//! A connection that writes: reservations and what is learned of them, many callers in one
//! transaction. Each is answered after the commit it was in.
//!
//! Nothing in it waits for another transaction. Identities are tried with an advisory lock, rows
//! are locked with SKIP LOCKED, and what is held elsewhere goes back into the queue; so one
//! identity held open stalls nobody else, and two batches cannot deadlock.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use counterfoil_core::{Decision, OperationId, Receipt, Timestamp};
use counterfoil_store::{Admission, Change, Completion, Error, Fence, Found, recorded, renewed};
use futures_util::{FutureExt as _, future::join4};
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use crate::{
    answers::found_for,
    connect::{Session, Text},
    error::{Done, Fault, busy},
    locator::Locator,
    queue::{Batch, Entered, Entry, Learn, Learned, Lesson, Reserved},
    rows::{
        Stored, decode, decode_as, locator_of, named_columns, named_tables, receipt_columns,
        uuid_of,
    },
    scopes::Scope,
    shared::Shared,
    write::{Sent, Writes},
};

/// How soon something that is held elsewhere is looked at again.
const HELD_PAUSE: Duration = Duration::from_millis(5);
/// How often, before a caller that wants to run is told.
const HELD_TRIES: u32 = 4;
/// Pauses between two tries to connect.
/// The first pause after a commit whose answer was lost, doubled up to 32 times this.
const DOUBT_PAUSE: Duration = Duration::from_millis(50);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
const CONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Tries the locks, and says what time it is, which ids new rows may have, and how many of the
/// scopes are what they were. The look at the rows is a statement of its own
/// behind it: a snapshot taken before the lock was had would be older than what its last holder
/// committed.
pub(crate) static LOCK: Text = Text {
    sql: "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
            ARRAY(SELECT pg_try_advisory_xact_lock(t.lock) FROM unnest($1) AS t(lock)),
            ARRAY(SELECT nextval('counterfoil_receipts_id_seq') FROM unnest($1)),
            (SELECT count(*) FROM unnest($2, $3) AS t(id, name)
             JOIN counterfoil_scopes AS s ON s.id = t.id AND s.name = t.name)",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY, Type::UUID_ARRAY],
};
pub(crate) static LOOK: Text = Text {
    sql: concat!(
        "SELECT ",
        receipt_columns!(),
        " FROM counterfoil_receipts AS r WHERE r.locator = ANY($1)"
    ),
    types: &[Type::UUID_ARRAY],
};
pub(crate) static LOCK_ROWS: Text = Text {
    sql: concat!(
        "SELECT ",
        receipt_columns!(),
        " FROM counterfoil_receipts AS r WHERE r.locator = ANY($1) \
          ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED"
    ),
    types: &[Type::UUID_ARRAY],
};
static LOCK_OPERATIONS: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        named_tables!(),
        "WHERE r.operation_id = ANY($1) ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED"
    ),
    types: &[Type::UUID_ARRAY],
};
static EXISTING: Text = Text {
    sql: "SELECT operation_id FROM counterfoil_receipts WHERE operation_id = ANY($1)",
    types: &[Type::UUID_ARRAY],
};
/// One lane; runs until the store is closed and nothing waits. A fault in it (a table that somebody
/// changed) costs the batch it happened in: its callers are told that nobody knows.
pub(crate) async fn keep_running(shared: Arc<Shared>, first: Session) {
    let mut session = Some(first);
    loop {
        let running = run(Arc::clone(&shared), session.take());
        if AssertUnwindSafe(running).catch_unwind().await.is_ok() {
            return;
        }
        tracing::error!("a lane of the receipt store failed; it begins anew");
        tokio::time::sleep(CONNECT_PAUSE).await;
    }
}

async fn run(shared: Arc<Shared>, mut session: Option<Session>) {
    let mut pause = CONNECT_PAUSE;
    let mut doubts = 0;
    let mut answered = 0;
    while let Some(batch) = shared.queue.take_after(answered).await {
        answered = batch.len();
        let connected = match session.take().filter(Session::is_clean) {
            Some(open) => Ok(open),
            None => shared.connector.connect().await.map(|(open, _)| open),
        };
        match connected {
            Ok(open) => {
                pause = CONNECT_PAUSE;
                // A commit whose answer does not come (a synchronous standby is away) leaves its
                // old connection behind in the database: not one after the other of them.
                if work(&shared, &open, batch).await {
                    doubts += 1;
                    tokio::time::sleep(DOUBT_PAUSE * (1 << doubts.min(5))).await;
                } else {
                    doubts = 0;
                }
                session = Some(open);
            }
            Err(fault) => {
                let because = Error::from(fault);
                tracing::warn!(%because, "the database cannot be reached");
                give_back(&shared, batch, &because, false);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(CONNECT_PAUSE_MAX);
            }
        }
    }
}

/// Puts a batch back, each member with the reason why it has not been done.
fn give_back(shared: &Shared, batch: Batch, because: &Error, in_doubt: bool) {
    let mut again = Batch::default();
    for Lesson {
        operation_id,
        what,
        wait,
    } in batch.lessons
    {
        let wait = wait.again(because.clone(), in_doubt);
        again.lessons.extend(wait.map(|wait| Lesson {
            operation_id,
            what,
            wait,
        }));
    }
    for Entry { admission, wait } in batch.entries {
        let wait = wait.again(because.clone(), in_doubt);
        again
            .entries
            .extend(wait.map(|wait| Entry { admission, wait }));
    }
    shared.queue.put_back(again);
}

/// One batch, then, if the database refused it as a whole, each member by itself.
/// Whether a commit is in doubt afterwards.
async fn work(shared: &Arc<Shared>, session: &Session, batch: Batch) -> bool {
    let alone = batch.len() == 1;
    let mut transaction = Transaction::new(shared, session, batch);
    match transaction.run().await {
        Ok(()) => false,
        Err(Fault::Said(error)) if alone => {
            session.rollback().await;
            shared.note_failure(&error);
            for lesson in transaction.batch.lessons {
                lesson.wait.fail(error.clone());
            }
            for entry in transaction.batch.entries {
                entry.wait.fail(error.clone());
            }
            false
        }
        Err(Fault::Said(error)) => {
            tracing::warn!(%error, "a batch was refused; its members are run one by one");
            session.rollback().await;
            let Batch { lessons, entries } = transaction.batch;
            let lessons = lessons.into_iter().map(|lesson| Batch {
                lessons: vec![lesson],
                entries: Vec::new(),
            });
            let entries = entries.into_iter().map(|entry| Batch {
                lessons: Vec::new(),
                entries: vec![entry],
            });
            let mut in_doubt = false;
            for one in lessons.chain(entries) {
                in_doubt |= Box::pin(work(shared, session, one)).await;
            }
            in_doubt
        }
        Err(fault) => {
            let in_doubt = transaction.in_doubt;
            let batch = transaction.batch;
            if !session.is_closed() {
                session.rollback().await;
            }
            give_back(shared, batch, &fault.into(), in_doubt);
            in_doubt
        }
    }
}

/// What becomes of a member of a batch.
enum Said<T> {
    /// It is told so, once the batch is committed.
    Now(Result<T, Error>),
    /// Another transaction holds its row: it goes back into the queue.
    Held,
}

/// What stands under an identity while a batch is decided.
enum Standing {
    /// As it was read.
    Seen(Box<Stored>),
    /// As it was read under a lock, with what this batch makes of it.
    Locked(Box<Stored>),
    /// Reserved by this batch.
    New(Box<Receipt>),
}

impl Standing {
    fn receipt(&self) -> &Receipt {
        match self {
            Self::Seen(stored) | Self::Locked(stored) => &stored.receipt,
            Self::New(receipt) => receipt,
        }
    }
}

struct Transaction<'a> {
    shared: &'a Arc<Shared>,
    session: &'a Session,
    /// What is not answered yet.
    batch: Batch,
    in_doubt: bool,
}

impl<'a> Transaction<'a> {
    const fn new(shared: &'a Arc<Shared>, session: &'a Session, batch: Batch) -> Self {
        Self {
            shared,
            session,
            batch,
            in_doubt: false,
        }
    }

    /// Decides, writes, commits and answers.
    async fn run(&mut self) -> Done<()> {
        let (shared, session) = (self.shared, self.session);
        let identities: Vec<_> = self
            .batch
            .entries
            .iter()
            .map(|entry| &entry.admission.identity)
            .collect();
        let scopes = shared.scopes.all(session, &identities).await?;
        let places: Vec<(Scope, Locator)> = scopes
            .into_iter()
            .zip(&identities)
            .map(|(scope, identity)| (scope, shared.locate(scope, identity)))
            .collect();
        let look = self.look(&places).await?;
        let mut writes = Writes::default();
        let lessons = self.learn(look.operations, look.now, &mut writes).await?;
        let mut standing = self.standing(&look.rows, &places)?;
        self.lock(&mut standing, &places, &look.granted, look.now)
            .await?;
        let mut entries = Vec::with_capacity(places.len());
        for (index, (scope, locator)) in places.iter().enumerate() {
            let granted = look.granted.get(index).is_some_and(|granted| *granted);
            let said = match look.new_ids.get(index) {
                Some(new_id) if granted => {
                    let place = Place {
                        new_id: *new_id,
                        scope: *scope,
                        locator: *locator,
                    };
                    self.enter(index, place, &mut standing, look.now, &mut writes)
                        .await?
                }
                Some(_) | None => Said::Held,
            };
            entries.push(said);
        }
        self.end(&writes).await?;
        let members = u32::try_from(self.batch.len()).unwrap_or(u32::MAX);
        metrics::histogram!("counterfoil_store_batch_size").record(f64::from(members));
        shared.note_success();
        shared.tally.add(&writes.unresolved);
        self.answer(lessons, entries);
        Ok(())
    }

    /// The first flight: the locks, the time, and the rows.
    async fn look(&self, places: &[(Scope, Locator)]) -> Done<Look> {
        let session = self.session;
        let locks: Vec<i64> = places.iter().map(|(_, locator)| locator.lock).collect();
        let ids: Vec<Uuid> = places.iter().map(|(_, locator)| locator.id).collect();
        let lessons = &self.batch.lessons;
        let operations: Vec<Uuid> = lessons.iter().map(|l| uuid_of(l.operation_id)).collect();
        let scopes: BTreeMap<i64, Uuid> = places.iter().map(|(s, _)| (s.id, s.name)).collect();
        let (scope_ids, scope_names): (Vec<i64>, Vec<Uuid>) = scopes.into_iter().unzip();
        let lock = session.ready(&LOCK).await?;
        let look = session.ready(&LOOK).await?;
        let lock_operations = session.ready(&LOCK_OPERATIONS).await?;
        let sent = Instant::now();
        let (begun, locked, rows, operations) = join4(
            session.begin(),
            session.query(&lock, &[&locks, &scope_ids, &scope_names]),
            async {
                if ids.is_empty() {
                    return Ok(Vec::new());
                }
                session.query(&look, &[&ids]).await
            },
            async {
                if operations.is_empty() {
                    return Ok(Vec::new());
                }
                session.query(&lock_operations, &[&operations]).await
            },
        )
        .await;
        begun?;
        let locked = locked?;
        self.shared.check_scopes(&locked, scope_ids.len())?;
        let said = locked.first().map_or(0, |row| row.get(0));
        let now = Timestamp::from_millis(said);
        self.shared.clock.read(now, sent);
        let granted = locked.first().map_or_else(Vec::new, |row| row.get(1));
        let new_ids = locked.first().map_or_else(Vec::new, |row| row.get(2));
        Ok(Look {
            now,
            granted,
            new_ids,
            rows: rows?,
            operations: operations?,
        })
    }

    /// What is learned of operations that are locked now.
    async fn learn(
        &self,
        rows: Vec<Row>,
        now: Timestamp,
        writes: &mut Writes,
    ) -> Done<Vec<Said<Learned>>> {
        let lessons = &self.batch.lessons;
        let mut locked: HashMap<OperationId, Stored> = HashMap::new();
        for row in &rows {
            let stored = decode(row)?;
            locked.insert(stored.receipt.operation_id, stored);
        }
        let missing: Vec<Uuid> = lessons
            .iter()
            .filter(|lesson| !locked.contains_key(&lesson.operation_id))
            .map(|lesson| uuid_of(lesson.operation_id))
            .collect();
        let mut held = HashSet::new();
        if !missing.is_empty() {
            for row in self.session.ask(&EXISTING, &[&missing]).await? {
                held.insert(row.get::<_, Uuid>(0));
            }
        }
        let mut said = Vec::with_capacity(lessons.len());
        for lesson in lessons {
            said.push(match locked.get_mut(&lesson.operation_id) {
                Some(stored) => Said::Now(self.learn_one(lesson, stored, now, writes)),
                None if held.contains(&uuid_of(lesson.operation_id)) => Said::Held,
                None => Said::Now(Err(Error::NotFound)),
            });
        }
        Ok(said)
    }

    fn learn_one(
        &self,
        lesson: &Lesson,
        stored: &mut Stored,
        now: Timestamp,
        writes: &mut Writes,
    ) -> Result<Learned, Error> {
        let changed = match &lesson.what {
            Learn::Complete(fence, completion) => {
                let completion = Completion {
                    at: self.shared.time(now, completion.at),
                    ..(**completion).clone()
                };
                let change = completion.apply(*fence, &stored.receipt)?;
                change.map(|change| writes.update(stored, &change))
            }
            Learn::Record {
                event,
                at,
                reason,
                evidence,
            } => {
                let at = self.shared.time(now, *at);
                let change = recorded(&stored.receipt, *event, at, reason, evidence.as_deref())?;
                change.map(|change| writes.update(stored, &change))
            }
            Learn::Renew(fence, at, lease) => {
                let until = self.shared.time(now, *at).plus(*lease);
                let until = renewed(&stored.receipt, *fence, until)?;
                if until != stored.receipt.lease_until {
                    writes.renew(stored, until);
                }
                return Ok(Learned::Until(until));
            }
        };
        if changed.is_some() {
            let wanted = self.shared.watchers.wanted(lesson.operation_id);
            writes.notify.extend(wanted);
        }
        Ok(Learned::Receipt(Box::new(stored.receipt.clone())))
    }

    /// The rows that were seen, by their locators.
    fn standing(&self, rows: &[Row], places: &[(Scope, Locator)]) -> Done<HashMap<Uuid, Standing>> {
        let mut asked = HashMap::new();
        for (entry, (scope, locator)) in self.batch.entries.iter().zip(places) {
            asked.insert(locator.id, (scope.id, &entry.admission.identity));
        }
        let mut standing = HashMap::with_capacity(places.len());
        for row in rows {
            let locator = locator_of(row);
            if let Some((scope, identity)) = asked.get(&locator) {
                let stored = decode_as(row, *scope, identity)?;
                standing.insert(locator, Standing::Seen(Box::new(stored)));
            }
        }
        Ok(standing)
    }

    /// Locks the rows that will be changed, as far as nobody else holds them.
    async fn lock(
        &self,
        standing: &mut HashMap<Uuid, Standing>,
        places: &[(Scope, Locator)],
        granted: &[bool],
        now: Timestamp,
    ) -> Done<()> {
        // Rows that a lesson of this very batch changes have been read too early.
        let busy: HashSet<OperationId> =
            self.batch.lessons.iter().map(|l| l.operation_id).collect();
        let mut wanted = Vec::new();
        for ((entry, (_, locator)), granted) in self.batch.entries.iter().zip(places).zip(granted) {
            let Some(seen) = standing.get(&locator.id).filter(|_| *granted) else {
                continue;
            };
            let receipt = seen.receipt();
            let admission = self.timed(entry, now);
            let (decision, lapse) = admission.judge(Some(receipt))?;
            let writes = lapse.is_some() || matches!(decision, Decision::Run { .. });
            if writes && !busy.contains(&receipt.operation_id) {
                wanted.push(locator.id);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let rows = self.session.ask(&LOCK_ROWS, &[&wanted]).await?;
        for (locator, found) in self.standing(&rows, places)? {
            if let Standing::Seen(stored) = found {
                standing.insert(locator, Standing::Locked(stored));
            }
        }
        Ok(())
    }

    fn timed(&self, entry: &Entry, now: Timestamp) -> Admission {
        Admission {
            now: self.shared.time(now, entry.admission.now),
            ..entry.admission.clone()
        }
    }

    /// Decides on one request to run, and reserves.
    async fn enter(
        &self,
        index: usize,
        place: Place,
        standing: &mut HashMap<Uuid, Standing>,
        now: Timestamp,
        writes: &mut Writes,
    ) -> Done<Said<Entered>> {
        let Place {
            new_id,
            scope,
            locator,
        } = place;
        let Some(entry) = self.batch.entries.get(index) else {
            return Ok(Said::Held);
        };
        let admission = self.timed(entry, now);
        let (decision, lapse) =
            admission.judge(standing.get(&locator.id).map(Standing::receipt))?;
        let runs = matches!(decision, Decision::Run { .. });
        let stored = match standing.get_mut(&locator.id) {
            None => {
                let change = admission.reserve(None)?;
                if let Some(refused) = self.quota(&change, scope.workspace, writes) {
                    return Ok(Said::Now(Err(refused)));
                }
                writes.insert(new_id, scope, locator, None, &change);
                let run = Entered::Run(reserved(&change.receipt));
                standing.insert(locator.id, Standing::New(Box::new(change.receipt)));
                return Ok(Said::Now(Ok(run)));
            }
            // Seen without a lock, or reserved a moment ago: not to be changed now.
            Some(Standing::Seen(_) | Standing::New(_)) if runs || lapse.is_some() => {
                return Ok(Said::Held);
            }
            Some(Standing::New(receipt)) => {
                return Ok(Said::Now(Ok(if decision == Decision::Own {
                    Entered::Run(reserved(receipt))
                } else {
                    let found = Found {
                        receipt: (**receipt).clone(),
                        reply: None,
                    };
                    Entered::Decided(decision, Box::new(found))
                })));
            }
            Some(Standing::Seen(stored) | Standing::Locked(stored)) => stored,
        };
        if let Some(lapse) = lapse {
            writes.update(stored, &lapse);
        }
        if let Decision::Run { replaces } = decision {
            let change = admission.reserve((!replaces).then_some(&stored.receipt))?;
            if let Some(refused) = self.quota(&change, scope.workspace, writes) {
                return Ok(Said::Now(Err(refused)));
            }
            let run = Entered::Run(reserved(&change.receipt));
            if replaces {
                writes.insert(new_id, scope, locator, Some(stored), &change);
                standing.insert(locator.id, Standing::New(Box::new(change.receipt)));
            } else {
                writes.update(stored, &change);
            }
            return Ok(Said::Now(Ok(run)));
        }
        let decision = if decision == Decision::Own {
            if stored.receipt.is_open() {
                return Ok(Said::Now(Ok(Entered::Run(reserved(&stored.receipt)))));
            }
            admission.judge_as_another(&stored.receipt)
        } else {
            decision
        };
        let found = found_for(self.session, stored, decision).await?;
        Ok(Said::Now(Ok(Entered::Decided(decision, Box::new(found)))))
    }

    /// Refuses what would go beyond the bound of unresolved receipts.
    fn quota(&self, change: &Change<'_>, workspace: i64, writes: &Writes) -> Option<Error> {
        let limit = self.shared.options.unresolved_max;
        let pending = writes
            .unresolved
            .get(&workspace)
            .copied()
            .unwrap_or_default();
        let there = self
            .shared
            .tally
            .of(workspace)
            .saturating_add_signed(pending);
        (change.unresolved() > 0 && there >= limit).then_some(Error::Quota { limit })
    }

    /// The last flight: everything that is written, and COMMIT.
    async fn end(&mut self, writes: &Writes) -> Done<()> {
        if writes.is_empty() {
            return self.session.commit().await;
        }
        let flight = writes.ready(self.session).await?;
        match flight.send(self.session, "", true).await {
            Sent::Done => Ok(()),
            Sent::Refused(fault) => Err(fault),
            Sent::InDoubt(why) => {
                self.in_doubt = true;
                Err(Fault::Lost(why))
            }
        }
    }

    fn answer(&mut self, lessons: Vec<Said<Learned>>, entries: Vec<Said<Entered>>) {
        let Batch {
            lessons: learned,
            entries: entered,
        } = std::mem::take(&mut self.batch);
        let mut held = Batch::default();
        for (lesson, said) in learned.into_iter().zip(lessons) {
            match said {
                Said::Now(said) => lesson.wait.say(said),
                Said::Held => {
                    let Lesson {
                        operation_id,
                        what,
                        wait,
                    } = lesson;
                    let wait = wait.again(busy(), false);
                    held.lessons.extend(wait.map(|wait| Lesson {
                        operation_id,
                        what,
                        wait,
                    }));
                }
            }
        }
        for (entry, said) in entered.into_iter().zip(entries) {
            match said {
                Said::Now(said) => entry.wait.say(said),
                Said::Held => held.entries.extend(hold(entry)),
            }
        }
        if held.len() > 0 {
            let shared = Arc::clone(self.shared);
            shared.queue.expect_back();
            tokio::spawn(async move {
                tokio::time::sleep(HELD_PAUSE).await;
                shared.queue.is_back(held);
            });
        }
    }
}

/// Where a request to run would go.
#[derive(Clone, Copy)]
struct Place {
    new_id: i64,
    scope: Scope,
    locator: Locator,
}

/// What a batch looks at.
struct Look {
    now: Timestamp,
    granted: Vec<bool>,
    new_ids: Vec<i64>,
    rows: Vec<Row>,
    operations: Vec<Row>,
}

/// A caller that wants to run is told after a while that somebody holds its identity; one whose
/// reservation is in doubt waits for whoever that is, for it may be its own old connection.
fn hold(entry: Entry) -> Option<Entry> {
    let Entry {
        admission,
        mut wait,
    } = entry;
    wait.held += 1;
    if wait.held > HELD_TRIES && !wait.is_in_doubt() {
        wait.say(Ok(Entered::Held));
        return None;
    }
    let wait = wait.again(busy(), false)?;
    Some(Entry { admission, wait })
}

fn reserved(receipt: &Receipt) -> Reserved {
    Reserved {
        fence: Fence {
            operation_id: receipt.operation_id,
            attempt: receipt.status.attempts.latest(),
        },
        round: receipt.status.round,
        lease_until: receipt.lease_until,
        hard_deadline: receipt.hard_deadline,
    }
}
