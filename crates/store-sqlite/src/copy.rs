//! Whole receipts, out of the store and into it, and a look at the file they are in.

use counterfoil_core::State;
use counterfoil_store::{
    Census, Clash, Damaged, EXPORT_BYTES, Error, Imported, Inspection, Part, Whole,
};
use rusqlite::Connection;

use crate::{
    error::{corrupt, is_wrong_content, message},
    rows::{self, RECEIPT_COLUMNS, Stored, Unreadable, receipt_columns, receipt_tables},
    schema,
    tx::{Halt, Shared, Stepped, Tx, of_operation},
};

/// Most damages of a file that are named.
const DAMAGES_MAX: usize = 20;

/// The receipts after the place `after`.
pub(crate) fn export(
    connection: &Connection,
    shared: &Shared,
    after: i64,
    limit: u32,
) -> Result<Part, Unreadable> {
    let limit = i64::from(limit.max(1));
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        receipt_columns!(),
        ", r.locator",
        receipt_tables!(),
        "WHERE r.id > ?1 ORDER BY r.id LIMIT ?2"
    ))?;
    let mut found = statement.query([after, limit])?;
    let mut part = Part::default();
    let (mut bytes, mut count) = (0, 0);
    while let Some(row) = found.next()? {
        count += 1;
        let id: i64 = row.get(0)?;
        match read(connection, shared, row) {
            Ok(whole) => {
                bytes += whole.size();
                part.rows.push(whole);
            }
            Err(error) => part.damaged.push(Damaged {
                operation_id: row
                    .get(4)
                    .ok()
                    .map(counterfoil_core::OperationId::from_bytes),
                why: why(error)?,
            }),
        }
        if bytes >= EXPORT_BYTES || count == limit {
            part.next = Some(id);
            break;
        }
    }
    Ok(part)
}

fn read(
    connection: &Connection,
    shared: &Shared,
    row: &rusqlite::Row<'_>,
) -> Result<Whole, Unreadable> {
    let stored = rows::decode(row)?;
    let identity = &stored.receipt.identity;
    let parameters = rows::parameters_of(identity);
    let locator = shared.locator(stored.scope, parameters.as_deref(), identity.key.as_str());
    if row.get::<_, i64>(RECEIPT_COLUMNS)? != locator {
        return Err(corrupt("locator, so that its key would not find it").into());
    }
    let event_count = stored.event_count;
    let whole = whole(connection, stored)?;
    if i64::try_from(whole.events.len()) != Ok(event_count) {
        return Err(corrupt("number of log rows").into());
    }
    Ok(whole)
}

/// What is wrong with a row that cannot be read; the error itself if it is not the row's.
fn why(error: Unreadable) -> Result<String, Unreadable> {
    match error {
        Unreadable::Corrupt(Error::Corrupt(why)) => Ok(why),
        Unreadable::Sqlite(error) if is_wrong_content(&error) => Ok(message(&error)),
        other @ (Unreadable::Corrupt(_) | Unreadable::Sqlite(_)) => Err(other),
    }
}

/// A receipt with everything that hangs on it.
fn whole(connection: &Connection, stored: Stored) -> Result<Whole, Unreadable> {
    let mut questions = Vec::new();
    let mut statement = connection.prepare_cached(
        "SELECT round, status, sealed, content_type, headers, body
         FROM counterfoil_questions WHERE receipt = ?1 ORDER BY round",
    )?;
    let mut found = statement.query([stored.id])?;
    while let Some(row) = found.next()? {
        let round = row.get(0)?;
        questions.extend(rows::decode_reply(row, 1)?.map(|question| (round, question)));
    }
    Ok(Whole {
        events: rows::events(connection, stored.id, i64::MAX)?,
        result: rows::result(connection, stored.id)?,
        questions,
        receipt: stored.receipt,
    })
}

/// Writes what is not there yet of `brought`, of which each is in its portable form and none is
/// there twice.
pub(crate) fn import(tx: &mut Tx<'_>, brought: &[Whole]) -> Stepped<Result<Imported, Clash>> {
    let mut imported = Imported::default();
    let mut new = Vec::with_capacity(brought.len());
    // Everything is judged before anything is written.
    for whole in brought {
        let receipt = &whole.receipt;
        let stands = |tx: &Tx<'_>, stored: Option<Stored>| -> Stepped<Option<Whole>> {
            let stood = stored.map(|stored| self::whole(tx.sqlite(), stored));
            Ok(stood.transpose()?.map(Whole::portable))
        };
        let of_operation = of_operation(tx.sqlite(), receipt.operation_id)?;
        let of_operation = stands(tx, of_operation)?;
        let of_identity = tx.of_identity(&receipt.identity)?;
        let of_identity = stands(tx, of_identity)?;
        match whole.is_new(of_operation.as_ref(), of_identity.as_ref()) {
            Ok(true) => new.push(whole),
            Ok(false) => imported.same += 1,
            Err(clash) => return Ok(Err(clash)),
        }
    }
    for whole in new {
        put(tx, whole)?;
        imported.new += 1;
    }
    Ok(Ok(imported))
}

fn put(tx: &mut Tx<'_>, whole: &Whole) -> Stepped<()> {
    let receipt = &whole.receipt;
    let scope = tx.scope_or_create(&receipt.identity)?;
    let parameters = rows::parameters_of(&receipt.identity);
    let key = receipt.identity.key.as_str();
    let locator = tx.shared.locator(scope.id, parameters.as_deref(), key);
    let mut stored = Stored {
        id: 0,
        scope: scope.id,
        workspace: scope.workspace,
        event_count: i64::try_from(whole.events.len())
            .map_err(|_| Halt::Said(corrupt("number of log rows")))?,
        receipt: receipt.clone(),
    };
    stored.id = rows::insert(tx.sqlite(), None, &stored, locator, parameters.as_deref())?;
    stored.event_count = 0;
    for event in &whole.events {
        rows::put_event(tx.sqlite(), &mut stored, event)?;
    }
    if let Some(result) = &whole.result {
        rows::put_result(tx.sqlite(), stored.id, result)?;
    }
    for (round, question) in &whole.questions {
        rows::put_question(tx.sqlite(), stored.id, *round, Some(question))?;
    }
    tx.count(
        scope.workspace,
        i64::from(receipt.status.state.is_unresolved()),
    );
    Ok(())
}

/// Counts everything there is.
pub(crate) fn census(connection: &Connection) -> Result<Census, Unreadable> {
    let count = |sql: &str| -> Result<u64, rusqlite::Error> {
        let count: i64 = connection.query_row(sql, [], |row| row.get(0))?;
        Ok(u64::try_from(count).unwrap_or_default())
    };
    let mut census = Census {
        stray_results: count(
            "SELECT count(*) FROM counterfoil_results AS a WHERE NOT EXISTS
                (SELECT 1 FROM counterfoil_receipts AS r WHERE r.id = a.receipt)",
        )?,
        stray_questions: count(
            "SELECT count(*) FROM counterfoil_questions AS q WHERE NOT EXISTS
                (SELECT 1 FROM counterfoil_receipts AS r WHERE r.id = q.receipt)",
        )?,
        stray_events: count(
            "SELECT count(*) FROM counterfoil_events AS e WHERE NOT EXISTS
                (SELECT 1 FROM counterfoil_receipts AS r WHERE r.id = e.id >> 20)",
        )?,
        ..Census::default()
    };
    let mut statement =
        connection.prepare("SELECT state, count(*) FROM counterfoil_receipts GROUP BY state")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let count = u64::try_from(row.get::<_, i64>(1)?).unwrap_or_default();
        match row.get(0).ok().and_then(State::from_byte) {
            Some(state) => census.receipts.push((state, count)),
            None => census.impossible += count,
        }
    }
    Ok(census)
}

/// Looks at the file.
pub(crate) fn inspect(connection: &Connection) -> Result<Inspection, Unreadable> {
    let pragma = |name: &str| -> Result<String, rusqlite::Error> {
        let value: rusqlite::types::Value =
            connection.pragma_query_value(None, name, |row| row.get(0))?;
        Ok(match value {
            rusqlite::types::Value::Integer(int) => int.to_string(),
            rusqlite::types::Value::Text(text) => text,
            rusqlite::types::Value::Null
            | rusqlite::types::Value::Real(_)
            | rusqlite::types::Value::Blob(_) => String::new(),
        })
    };
    let mut inspection = Inspection {
        facts: vec![
            ("kind", "SQLite".to_owned()),
            ("version", rusqlite::version().to_owned()),
            ("schema", schema::version(connection)?.to_string()),
            ("journal_mode", pragma("journal_mode")?),
            ("page_size", pragma("page_size")?),
            ("pages", pragma("page_count")?),
        ],
        ..Inspection::default()
    };
    let mut statement = connection.prepare(&format!("PRAGMA quick_check({DAMAGES_MAX})"))?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let said: String = row.get(0)?;
        if said != "ok" {
            inspection.problems.push(format!(
                "the file is damaged: {said}; restore a copy of it, and keep this one"
            ));
        }
    }
    let miscounted: i64 = connection.query_row(
        "SELECT count(*) FROM counterfoil_workspaces AS w WHERE unresolved <>
            (SELECT count(*) FROM counterfoil_receipts AS r
             WHERE r.workspace = w.id AND r.state IN (1, 2, 3, 4, 8))",
        [],
        |row| row.get(0),
    )?;
    if miscounted > 0 {
        inspection.problems.push(format!(
            "{miscounted} workspaces have another number of unresolved receipts than is counted \
             for their quota; copy the store to a new file with `counterfoil store copy`"
        ));
    }
    Ok(inspection)
}
