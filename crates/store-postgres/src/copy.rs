//! Whole receipts, out of the store and into it, and a look at the database they are in.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use counterfoil_core::{EventRecord, Mode, OperationId, State};
use counterfoil_store::{
    Census, Clash, Damaged, EXPORT_BYTES, Error, Imported, Inspection, Part, StoredReply, Whole,
};
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use crate::{
    connect::{Parameter, Session, Text},
    error::{Done, Fault, corrupt},
    lane::LOCK,
    rows::{
        NAMED_COLUMNS, Stored, decode, decode_event, decode_reply, first_event, last_event,
        locator_of, named_columns, named_tables, reply_columns, uuid_of,
    },
    schema,
    scopes::{self, Scope},
    shared::Shared,
    write::{INSERT_MISSING, Inserted, Sent, Writes, collect, insertion, is_doubt, may_lapse},
};

/// How long one statement of a census may take.
const CENSUS_TIMEOUT: &str = "SET LOCAL statement_timeout = '1h'";
const CENSUS_LIMIT: Duration = Duration::from_secs(3600);
/// How long an import waits, at least, before it looks again because somebody else has to do with
/// one of its rows; at most twice that.
const HELD_PAUSE_MILLIS: u32 = 20;
/// What a row of the log takes, about, in bytes.
const EVENT_BYTES: i64 = 128;

static PAGE: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        ", coalesce((SELECT octet_length(body) FROM counterfoil_results WHERE receipt = r.id), 0) \
         + coalesce((SELECT sum(octet_length(body)) FROM counterfoil_questions \
                     WHERE receipt = r.id), 0)::bigint",
        named_tables!(),
        "WHERE r.id > $1 ORDER BY r.id LIMIT $2"
    ),
    types: &[Type::INT8, Type::INT8],
};
static STANDING: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        named_tables!(),
        "WHERE r.operation_id = ANY($1) OR r.locator = ANY($2)"
    ),
    types: &[Type::UUID_ARRAY, Type::UUID_ARRAY],
};
static RESULTS: Text = Text {
    sql: concat!(
        "SELECT a.receipt, ",
        reply_columns!(),
        " FROM counterfoil_results AS a WHERE a.receipt = ANY($1)"
    ),
    types: &[Type::INT8_ARRAY],
};
static QUESTIONS: Text = Text {
    sql: concat!(
        "SELECT a.receipt, a.round, ",
        reply_columns!(),
        " FROM counterfoil_questions AS a WHERE a.receipt = ANY($1) ORDER BY a.receipt, a.round"
    ),
    types: &[Type::INT8_ARRAY],
};
static EVENTS: Text = Text {
    sql: "SELECT e.at, e.attempt, e.from_state, e.to_state, e.reason, e.evidence, e.id >> 20
          FROM unnest($1, $2) AS t(first, last)
          JOIN counterfoil_events AS e ON e.id BETWEEN t.first AND t.last
          ORDER BY e.id",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY],
};
static STATES: Text = Text {
    sql: "SELECT state, count(*) FROM counterfoil_receipts GROUP BY state ORDER BY state",
    types: &[],
};
static STRAYS: Text = Text {
    sql: "SELECT
            (SELECT count(*) FROM counterfoil_results AS a WHERE NOT EXISTS
                (SELECT 1 FROM counterfoil_receipts AS r WHERE r.id = a.receipt)),
            (SELECT count(*) FROM counterfoil_questions AS q WHERE NOT EXISTS
                (SELECT 1 FROM counterfoil_receipts AS r WHERE r.id = q.receipt)),
            (SELECT count(*) FROM counterfoil_events AS e WHERE NOT EXISTS
                (SELECT 1 FROM counterfoil_receipts AS r WHERE r.id = e.id >> 20))",
    types: &[],
};
/// Entries of no unresolved receipt, unresolved receipts without an entry, and entries that do not
/// say what their receipts do. One statement: a server may be at work.
static ENTRIES: Text = Text {
    sql: "SELECT
            (SELECT count(*) FROM counterfoil_open AS o WHERE NOT EXISTS
                (SELECT 1 FROM counterfoil_receipts AS r
                 WHERE r.id = o.receipt AND r.state = ANY($1))),
            (SELECT count(*) FROM counterfoil_receipts AS r
             WHERE r.state = ANY($1) AND NOT EXISTS
                (SELECT 1 FROM counterfoil_open AS o WHERE o.receipt = r.id)),
            (SELECT count(*) FROM counterfoil_open AS o
             JOIN counterfoil_receipts AS r ON r.id = o.receipt
             WHERE r.state = ANY($1) AND (o.workspace <> r.workspace
                OR o.doubt <> (r.state = ANY($2))
                OR o.lapse_at IS DISTINCT FROM CASE
                    WHEN (r.mode, r.state) IN (SELECT mode, state FROM unnest($3, $4) AS t(mode, state))
                    THEN r.lease_until END))",
    types: &[
        Type::INT2_ARRAY,
        Type::INT2_ARRAY,
        Type::INT2_ARRAY,
        Type::INT2_ARRAY,
    ],
};
static SETTINGS: Text = Text {
    sql: "SELECT current_setting('server_version'), current_database()::text,
            current_setting('fsync'), current_setting('synchronous_commit'),
            current_setting('full_page_writes'),
            coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)",
    types: &[],
};

/// The receipts after the place `after`, all of one state of the database.
pub(crate) async fn export(
    shared: &Shared,
    session: &Session,
    after: i64,
    limit: u32,
) -> Done<Part> {
    session.begin_reading().await?;
    let part = part(shared, session, after, limit).await;
    session.rollback().await;
    part
}

async fn part(shared: &Shared, session: &Session, after: i64, limit: u32) -> Done<Part> {
    let limit = i64::from(limit.max(1));
    let found = session.ask(&PAGE, &[&after, &limit]).await?;
    let most = i64::try_from(EXPORT_BYTES).unwrap_or(i64::MAX);
    let (mut bytes, mut count) = (0, 0);
    let mut part = Part::default();
    let mut readable = Vec::new();
    for row in &found {
        count += 1;
        match read(shared, row) {
            Ok(stored) => {
                bytes += row.get::<_, i64>(NAMED_COLUMNS) + stored.event_count * EVENT_BYTES;
                readable.push(stored);
            }
            Err(error) => part.damaged.push(damaged(row, error)?),
        }
        if bytes >= most || count == limit {
            part.next = Some(row.get(0));
            break;
        }
    }
    let counts: Vec<i64> = readable.iter().map(|stored| stored.event_count).collect();
    let wholes = wholes(session, readable).await?;
    for (whole, event_count) in wholes.into_iter().zip(counts) {
        if i64::try_from(whole.events.len()) == Ok(event_count) {
            part.rows.push(whole);
        } else {
            part.damaged.push(Damaged {
                operation_id: Some(whole.receipt.operation_id),
                why: "its number of log rows is not that of its log".to_owned(),
            });
        }
    }
    Ok(part)
}

fn read(shared: &Shared, row: &Row) -> Result<Stored, Error> {
    let stored = decode(row)?;
    let scope = Scope {
        id: row.get(1),
        workspace: stored.workspace,
        name: scopes::name(&stored.receipt.identity),
    };
    let locator = shared.locate(scope, &stored.receipt.identity);
    if locator.id != locator_of(row) {
        return Err(corrupt("locator, so that its key would not find it,"));
    }
    Ok(stored)
}

fn damaged(row: &Row, error: Error) -> Done<Damaged> {
    let Error::Corrupt(why) = error else {
        return Err(error.into());
    };
    let operation_id: Uuid = row.get(4);
    Ok(Damaged {
        operation_id: Some(OperationId::from_bytes(operation_id.into_bytes())),
        why,
    })
}

/// Receipts with everything that hangs on them.
async fn wholes(session: &Session, rows: Vec<Stored>) -> Done<Vec<Whole>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = rows.iter().map(|stored| stored.id).collect();
    let first: Vec<i64> = ids.iter().copied().map(first_event).collect();
    let last: Vec<i64> = ids.iter().copied().map(last_event).collect();
    let mut results: HashMap<i64, StoredReply> = HashMap::new();
    for row in session.ask(&RESULTS, &[&ids]).await? {
        results.extend(decode_reply(&row, 1)?.map(|reply| (row.get(0), reply)));
    }
    let mut questions: HashMap<i64, Vec<(u16, StoredReply)>> = HashMap::new();
    for row in session.ask(&QUESTIONS, &[&ids]).await? {
        let round = u16::try_from(row.get::<_, i32>(1)).map_err(|_| corrupt("round"))?;
        let of_receipt = questions.entry(row.get(0)).or_default();
        of_receipt.extend(decode_reply(&row, 2)?.map(|reply| (round, reply)));
    }
    let mut events: HashMap<i64, Vec<EventRecord>> = HashMap::new();
    for row in session.ask(&EVENTS, &[&first, &last]).await? {
        let of_receipt = events.entry(row.get(6)).or_default();
        of_receipt.push(decode_event(&row)?);
    }
    let whole = |stored: Stored| Whole {
        events: events.remove(&stored.id).unwrap_or_default(),
        result: results.remove(&stored.id),
        questions: questions.remove(&stored.id).unwrap_or_default(),
        receipt: stored.receipt,
    };
    Ok(rows.into_iter().map(whole).collect())
}

/// Writes what is not there yet of `brought`, of which each is in its portable form and none is
/// there twice. May be run again if its commit is in doubt.
pub(crate) async fn import(
    shared: &Shared,
    session: &Session,
    brought: &[Whole],
) -> Done<Result<Imported, Clash>> {
    let identities: Vec<_> = brought
        .iter()
        .map(|whole| &whole.receipt.identity)
        .collect();
    let scopes = shared.scopes.all(session, &identities).await?;
    let deadline = Instant::now() + shared.options.patience;
    loop {
        session.begin().await?;
        match on(shared, session, brought, &scopes).await {
            Ok(Ended::Committed(imported)) => return Ok(Ok(imported)),
            Ok(Ended::Clashes(clash)) => {
                session.rollback().await;
                return Ok(Err(clash));
            }
            Ok(Ended::Overtaken | Ended::Held) => session.rollback().await,
            Err(fault) => {
                session.rollback().await;
                return Err(fault);
            }
        }
        // Two imports of the same rows may take locks from each other: not in step for ever.
        let random = getrandom::u32().unwrap_or_default() % HELD_PAUSE_MILLIS;
        let pause = Duration::from_millis(u64::from(HELD_PAUSE_MILLIS + random));
        if Instant::now() + pause >= deadline {
            return Err(Fault::Locked);
        }
        tokio::time::sleep(pause).await;
    }
}

/// How one try of an import ended.
enum Ended {
    Committed(Imported),
    Clashes(Clash),
    /// Somebody wrote one of the rows after it was looked for.
    Overtaken,
    /// Somebody decides on one of the identities.
    Held,
}

async fn on(
    shared: &Shared,
    session: &Session,
    brought: &[Whole],
    scopes: &[Scope],
) -> Done<Ended> {
    let operations = collect(brought, |whole| uuid_of(whole.receipt.operation_id));
    let locators = collect(brought.iter().zip(scopes), |(whole, scope)| {
        shared.locate(*scope, &whole.receipt.identity)
    });
    let ids = collect(&locators, |locator| locator.id);
    let found = session.ask(&STANDING, &[&operations, &ids]).await?;
    let stored: Result<Vec<Stored>, Error> = found.iter().map(decode).collect();
    let standing: Vec<Whole> = wholes(session, stored?)
        .await?
        .into_iter()
        .map(Whole::portable)
        .collect();
    let by_operation: HashMap<_, _> = standing
        .iter()
        .map(|whole| (whole.receipt.operation_id, whole))
        .collect();
    let by_identity: HashMap<_, _> = standing
        .iter()
        .map(|whole| (&whole.receipt.identity, whole))
        .collect();
    let mut imported = Imported::default();
    let mut new = Vec::new();
    for (index, whole) in brought.iter().enumerate() {
        let receipt = &whole.receipt;
        let of_operation = by_operation.get(&receipt.operation_id).copied();
        let of_identity = by_identity.get(&receipt.identity).copied();
        match whole.is_new(of_operation, of_identity) {
            Ok(true) => new.push((whole, scopes[index], locators[index])),
            Ok(false) => imported.same += 1,
            Err(clash) => return Ok(Ended::Clashes(clash)),
        }
    }
    if new.is_empty() {
        session.commit().await?;
        return Ok(Ended::Committed(imported));
    }
    // As a reservation does: whoever decides on an identity holds its lock, so that nobody waits
    // for a row of it that is not committed yet.
    let locks = collect(&new, |(.., locator)| locator.lock);
    let scopes: BTreeMap<i64, Uuid> = new.iter().map(|(_, s, _)| (s.id, s.name)).collect();
    let (scope_ids, scope_names): (Vec<i64>, Vec<Uuid>) = scopes.into_iter().unzip();
    let locked = session
        .ask(&LOCK, &[&locks, &scope_ids, &scope_names])
        .await?;
    shared.check_scopes(&locked, scope_ids.len())?;
    let granted: Vec<bool> = locked.first().map_or_else(Vec::new, |row| row.get(1));
    if granted.iter().filter(|granted| **granted).count() != new.len() {
        return Ok(Ended::Held);
    }
    let mut ids: Vec<i64> = locked.first().map_or_else(Vec::new, |row| row.get(2));
    // The order of the list is that of the ids.
    ids.sort_unstable();
    let rows: Vec<Inserted<'_>> = ids
        .iter()
        .zip(&new)
        .map(|(id, (whole, scope, locator))| Inserted {
            id: *id,
            scope: *scope,
            locator: locator.id,
            event_count: i64::try_from(whole.events.len()).unwrap_or(i64::MAX),
            receipt: &whole.receipt,
        })
        .collect();
    let columns = insertion(&rows);
    let columns = collect(&columns, |column| &**column as Parameter<'_>);
    if session.tell(&INSERT_MISSING, &columns).await? != new.len() as u64 {
        return Ok(Ended::Overtaken);
    }
    let mut writes = Writes::default();
    for (id, (whole, scope, _)) in ids.into_iter().zip(&new) {
        writes.bring(id, *scope, whole);
        imported.new += 1;
    }
    let flight = writes.ready(session).await?;
    match flight.send(session, "", true).await {
        Sent::Done => {
            shared.tally.add(&writes.unresolved);
            Ok(Ended::Committed(imported))
        }
        Sent::Refused(fault) => Err(fault),
        Sent::InDoubt(why) => Err(Fault::Lost(why)),
    }
}

/// Counts everything there is.
pub(crate) async fn census(session: &Session) -> Done<Census> {
    session.begin_reading().await?;
    let counted = count(session).await;
    session.rollback().await;
    counted
}

async fn count(session: &Session) -> Done<Census> {
    session.run(CENSUS_TIMEOUT).await?;
    let number = |row: &Row, column: usize| {
        let count: i64 = row.get(column);
        u64::try_from(count).unwrap_or_default()
    };
    let mut census = Census::default();
    for row in session.ask_for(CENSUS_LIMIT, &STATES, &[]).await? {
        let state = u8::try_from(row.get::<_, i16>(0)).ok();
        match state.and_then(State::from_byte) {
            Some(state) => census.receipts.push((state, number(&row, 1))),
            None => census.impossible += number(&row, 1),
        }
    }
    let strays = session.ask_for(CENSUS_LIMIT, &STRAYS, &[]).await?;
    let row = strays.first().ok_or(Fault::Said(corrupt("count")))?;
    census.stray_results = number(row, 0);
    census.stray_questions = number(row, 1);
    census.stray_events = number(row, 2);
    Ok(census)
}

/// Looks at the database.
pub(crate) async fn inspect(session: &Session) -> Done<Inspection> {
    let rows = session.ask(&SETTINGS, &[]).await?;
    let row = rows.first().ok_or(Fault::Said(corrupt("setting")))?;
    let (fsync, commit, pages): (String, String, String) = (row.get(2), row.get(3), row.get(4));
    let mut inspection = Inspection::default();
    if fsync == "off" {
        inspection.warnings.push(
            "fsync is off: a crash of the database's machine can lose what was acknowledged; \
             set fsync = on"
                .to_owned(),
        );
    }
    if commit == "off" {
        inspection.warnings.push(
            "synchronous_commit is off: a crash of the database can lose what was acknowledged; \
             set synchronous_commit = on"
                .to_owned(),
        );
    }
    if pages == "off" {
        inspection.warnings.push(
            "full_page_writes is off: a crash of the database's machine can damage its files; \
             set full_page_writes = on"
                .to_owned(),
        );
    }
    inspection.problems = entries(session).await?;
    let schema = schema::version(session, schema::STORE).await?;
    inspection.facts = vec![
        ("kind", "PostgreSQL".to_owned()),
        ("version", row.get(0)),
        ("schema", schema.to_string()),
        ("database", row.get(1)),
        ("tls", if row.get(5) { "on" } else { "off" }.to_owned()),
        ("fsync", fsync),
        ("synchronous_commit", commit),
        ("full_page_writes", pages),
    ];
    Ok(inspection)
}

/// What is wrong with the entries of unresolved receipts.
async fn entries(session: &Session) -> Done<Vec<String>> {
    let bytes = |fits: fn(&State) -> bool| -> Vec<i16> {
        collect(State::all().filter(fits), |state| state.to_byte().into())
    };
    let unresolved = bytes(|state| state.is_unresolved());
    let doubt = bytes(|state| is_doubt(*state));
    let modes = (0..=u8::MAX).filter_map(Mode::from_byte);
    let (lapsing_modes, lapsing_states): (Vec<i16>, Vec<i16>) = modes
        .flat_map(|mode| State::all().map(move |state| (mode, state)))
        .filter(|(mode, state)| may_lapse(*mode, *state))
        .map(|(mode, state)| (i16::from(mode.to_byte()), i16::from(state.to_byte())))
        .unzip();
    session.begin_reading().await?;
    let found = count_entries(
        session,
        &[&unresolved, &doubt, &lapsing_modes, &lapsing_states],
    )
    .await;
    session.rollback().await;
    let counts = found?;
    let hint = "nobody is to write to these tables: look at who does. `counterfoil store copy` to \
                an empty database makes every entry anew";
    let said = [
        "entries of unresolved receipts belong to none: they count against a quota for nothing",
        "unresolved receipts have no entry: they never lapse, and the list of what is in doubt and \
         the quota leave them out",
        "entries of unresolved receipts are not what their receipts say: they lapse at another \
         time, or are listed wrongly",
    ];
    let problems = counts.into_iter().zip(said).filter(|(count, _)| *count > 0);
    Ok(problems
        .map(|(count, said)| format!("{count} {said}; {hint}"))
        .collect())
}

async fn count_entries(session: &Session, parameters: &[Parameter<'_>]) -> Done<[i64; 3]> {
    session.run(CENSUS_TIMEOUT).await?;
    let rows = session.ask_for(CENSUS_LIMIT, &ENTRIES, parameters).await?;
    let row = rows.first().ok_or(Fault::Said(corrupt("count")))?;
    Ok([row.get(0), row.get(1), row.get(2)])
}
