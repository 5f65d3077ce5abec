//! Statements of an application.

use counterfoil_store::{Error, Row, Value};
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use crate::connect::Parameter;

/// Words that begin a statement which would end the transaction, or outlive it on a connection
/// that others use afterwards.
const REFUSED: [&str; 20] = [
    "ABORT",
    "BEGIN",
    "CHECKPOINT",
    "CLOSE",
    "COMMIT",
    "COPY",
    "DEALLOCATE",
    "DECLARE",
    "DISCARD",
    "END",
    "LISTEN",
    "LOAD",
    "PREPARE",
    "RELEASE",
    "RESET",
    "ROLLBACK",
    "SAVEPOINT",
    "SET",
    "START",
    "UNLISTEN",
];
/// What outlives a transaction on its connection, or meddles with the store's locks.
const LASTING: [&str; 3] = ["set_config", "pg_advisory_", "pg_try_advisory_"];
/// The store's own tables. The database cannot keep them from a handler that runs as the same
/// role; this keeps mistakes from them.
const OWN_TABLES: [&str; 11] = [
    "counterfoil_meta",
    "counterfoil_notes",
    "counterfoil_components",
    "counterfoil_workspaces",
    "counterfoil_scopes",
    "counterfoil_receipts",
    "counterfoil_results",
    "counterfoil_questions",
    "counterfoil_events",
    "counterfoil_open",
    "counterfoil_marks",
];

/// Refuses what an application may not say.
pub(crate) fn check(sql: &str) -> Result<(), Error> {
    let word: String = beginning(sql)
        .chars()
        .take_while(|c| c.is_ascii_alphabetic())
        .collect::<String>()
        .to_ascii_uppercase();
    if REFUSED.contains(&word.as_str()) {
        return Err(Error::Handler(format!(
            "a handler may not say {word}: its transaction and its connection are the store's"
        )));
    }
    let lower = sql.to_ascii_lowercase();
    if let Some(name) = LASTING.into_iter().find(|name| lower.contains(name)) {
        return Err(Error::Handler(format!(
            "a handler may not use {name}: what it leaves on its connection, others would find"
        )));
    }
    let temporary = ["temp", "temporary"].into_iter().any(|kind| {
        let words: Vec<&str> = lower.split_whitespace().take(4).collect();
        word == "CREATE" && words.contains(&kind)
    });
    if temporary {
        return Err(Error::Handler(
            "a handler may not create temporary tables: they would outlive it on its connection"
                .to_owned(),
        ));
    }
    if lower.contains("counterfoil_") && OWN_TABLES.iter().any(|table| lower.contains(table)) {
        return Err(Error::Handler(
            "the store's own tables are out of a handler's reach".to_owned(),
        ));
    }
    Ok(())
}

/// What is left of a statement without the blanks and comments before it.
fn beginning(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    loop {
        rest = if let Some(line) = rest.strip_prefix("--") {
            line.split_once('\n').map_or("", |(_, after)| after)
        } else if let Some(block) = rest.strip_prefix("/*") {
            after_comment(block)
        } else if let Some(inner) = rest.strip_prefix(['(', ';']) {
            inner
        } else {
            return rest;
        }
        .trim_start();
    }
}

/// What follows a block comment, which may hold others.
fn after_comment(mut rest: &str) -> &str {
    let mut depth = 1;
    while depth > 0 {
        let next = match (rest.find("*/"), rest.find("/*")) {
            (Some(end), Some(inner)) if inner < end => {
                depth += 1;
                inner
            }
            (Some(end), _) => {
                depth -= 1;
                end
            }
            (None, _) => return "",
        };
        rest = &rest[next + 2..];
    }
    rest
}

/// A value as PostgreSQL is told it.
#[derive(Debug)]
pub(crate) struct Told<'a>(&'a Value);

impl ToSql for Told<'_> {
    fn to_sql(
        &self,
        wanted: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self.0 {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(int) => int.to_sql(wanted, out),
            Value::Text(text) => text.to_sql(wanted, out),
            Value::Blob(bytes) => bytes.to_sql(wanted, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        // Every value is sent as what its type below says.
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Binary
    }

    to_sql_checked!();
}

const fn type_of(value: &Value) -> Type {
    match value {
        // PostgreSQL works it out.
        Value::Null => Type::UNKNOWN,
        Value::Int(_) => Type::INT8,
        Value::Text(_) => Type::TEXT,
        Value::Blob(_) => Type::BYTEA,
    }
}

/// The values of a statement.
pub(crate) fn told(values: &[Value]) -> Result<Vec<Told<'_>>, Error> {
    let nul = values
        .iter()
        .any(|value| matches!(value, Value::Text(text) if text.contains('\0')));
    if nul {
        return Err(Error::Statement(
            "PostgreSQL's text cannot hold a NUL character".to_owned(),
        ));
    }
    Ok(values.iter().map(Told).collect())
}

/// The values with their types.
pub(crate) fn typed<'a>(told: &'a [Told<'a>]) -> Vec<(Parameter<'a>, Type)> {
    told.iter()
        .map(|value| (value as Parameter<'a>, type_of(value.0)))
        .collect()
}

/// A row of the application.
pub(crate) fn row(found: &tokio_postgres::Row) -> Result<Row, Error> {
    let values = (0..found.len()).map(|column| value(found, column));
    values.collect::<Result<_, _>>().map(Row)
}

fn value(row: &tokio_postgres::Row, column: usize) -> Result<Value, Error> {
    let wrong = |_| Error::Corrupt(format!("column {column} cannot be read"));
    let kind = row.columns()[column].type_();
    let value = match *kind {
        Type::INT2 => row
            .try_get::<_, Option<i16>>(column)
            .map(|int| int.map(i64::from).into()),
        Type::INT4 => row
            .try_get::<_, Option<i32>>(column)
            .map(|int| int.map(i64::from).into()),
        Type::INT8 => row.try_get::<_, Option<i64>>(column).map(Into::into),
        Type::BOOL => row
            .try_get::<_, Option<bool>>(column)
            .map(|bool| bool.map(i64::from).into()),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN => {
            row.try_get::<_, Option<String>>(column).map(Into::into)
        }
        Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(column).map(Into::into),
        _ => {
            return Err(Error::Statement(format!(
                "column {column} is of type {kind}; cast it to bigint, text or bytea"
            )));
        }
    };
    value.map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::{Error, check};

    #[test]
    fn a_handler_may_not_control_its_transaction_or_reach_the_stores_tables() {
        for sql in [
            "COMMIT",
            "  rollback to handler",
            "-- a word\nCOMMIT",
            "/* a word */ set role other",
            "/* a /* word */ */ COMMIT",
            "SELECT set_config('synchronous_commit', 'off', false)",
            "SELECT pg_advisory_lock(1)",
            "CREATE TEMP TABLE notes (x int)",
            ";COMMIT",
            "PREPARE TRANSACTION 'x'",
            "DELETE FROM Counterfoil_Receipts",
            "SELECT * FROM \"counterfoil_events\"",
        ] {
            assert!(matches!(check(sql), Err(Error::Handler(_))), "{sql}");
        }
        for sql in [
            "SELECT 1",
            "INSERT INTO settings VALUES ($1)",
            "WITH x AS (SELECT 1) SELECT * FROM x",
            "UPDATE counterfoil_app SET a = 1",
        ] {
            assert_eq!(check(sql), Ok(()), "{sql}");
        }
    }
}
