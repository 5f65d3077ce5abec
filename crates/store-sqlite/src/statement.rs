//! Statements of an application, with `$1`, `$2`, … bound by their numbers.

use counterfoil_store::{Error, Row, Value};
use rusqlite::{CachedStatement, Connection, Error as Sqlite, types::ValueRef};

use crate::error::map;

/// Prepares and binds. The mark keeps an application's statement from being the same as one of the
/// store's own in the connection's collection, which was prepared with other rights.
fn prepared<'c>(
    connection: &'c Connection,
    sql: &str,
    parameters: &[Value],
) -> Result<CachedStatement<'c>, Error> {
    let mut statement = connection
        .prepare_cached(&format!("/* app */ {sql}"))
        .map_err(|error| map(&error))?;
    let mut highest = 0;
    for index in 1..=statement.parameter_count() {
        let number = statement
            .parameter_name(index)
            .and_then(|name| name.strip_prefix('$'))
            .and_then(|digits| digits.parse::<usize>().ok())
            .filter(|number| *number > 0)
            .ok_or_else(|| Error::Statement("placeholders are $1, $2, …".to_owned()))?;
        let value = parameters
            .get(number - 1)
            .ok_or_else(|| Error::Statement(format!("there is no value for ${number}")))?;
        highest = highest.max(number);
        bind(&mut statement, index, value).map_err(|error| map(&error))?;
    }
    if highest < parameters.len() {
        return Err(Error::Statement(format!(
            "{} values were given, the statement uses {highest}",
            parameters.len()
        )));
    }
    Ok(statement)
}

fn bind(statement: &mut CachedStatement<'_>, index: usize, value: &Value) -> Result<(), Sqlite> {
    match value {
        Value::Null => statement.raw_bind_parameter(index, rusqlite::types::Null),
        Value::Int(int) => statement.raw_bind_parameter(index, int),
        Value::Text(text) => statement.raw_bind_parameter(index, text),
        Value::Blob(bytes) => statement.raw_bind_parameter(index, bytes),
    }
}

/// Runs a statement; how many rows it changed.
pub(crate) fn execute(
    connection: &Connection,
    sql: &str,
    parameters: &[Value],
) -> Result<u64, Error> {
    let mut statement = prepared(connection, sql, parameters)?;
    let changed = statement.raw_execute().map_err(|error| map(&error))?;
    Ok(u64::try_from(changed).unwrap_or(u64::MAX))
}

/// Runs a query; all its rows.
pub(crate) fn query(
    connection: &Connection,
    sql: &str,
    parameters: &[Value],
) -> Result<Vec<Row>, Error> {
    let mut statement = prepared(connection, sql, parameters)?;
    let columns = statement.column_count();
    let mut found = statement.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = found.next().map_err(|error| map(&error))? {
        let values = (0..columns).map(|column| value(row, column));
        rows.push(Row(values.collect::<Result<_, _>>()?));
    }
    Ok(rows)
}

fn value(row: &rusqlite::Row<'_>, column: usize) -> Result<Value, Error> {
    Ok(match row.get_ref(column).map_err(|error| map(&error))? {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(int) => Value::Int(int),
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
        ValueRef::Real(_) => {
            return Err(Error::Statement(format!(
                "column {column} holds a floating-point number; CAST it to INTEGER or TEXT"
            )));
        }
    })
}
