use std::{future::Future, pin::Pin};

use crate::Error;

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Which SQL a store speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// The test kit's memory store, which keeps statements instead of running them.
    Memory,
}

/// A parameter or a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL.
    Null,
    /// A 64-bit integer.
    Int(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

impl From<i64> for Value {
    fn from(int: i64) -> Self {
        Self::Int(int)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Blob(bytes)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// One row of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// The text in `column` (from 0).
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no text there.
    pub fn text(&self, column: usize) -> Result<&str, Error> {
        match self.0.get(column) {
            Some(Value::Text(text)) => Ok(text),
            other => Err(wrong("text", column, other)),
        }
    }

    /// The text in `column`, or `None` for NULL.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is something else there.
    pub fn text_or_null(&self, column: usize) -> Result<Option<&str>, Error> {
        match self.0.get(column) {
            Some(Value::Null) => Ok(None),
            _ => self.text(column).map(Some),
        }
    }

    /// The integer in `column`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no integer there.
    pub fn int(&self, column: usize) -> Result<i64, Error> {
        match self.0.get(column) {
            Some(Value::Int(int)) => Ok(*int),
            other => Err(wrong("an integer", column, other)),
        }
    }

    /// The integer in `column`, or `None` for NULL.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is something else there.
    pub fn int_or_null(&self, column: usize) -> Result<Option<i64>, Error> {
        match self.0.get(column) {
            Some(Value::Null) => Ok(None),
            _ => self.int(column).map(Some),
        }
    }

    /// The bytes in `column`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there are no bytes there.
    pub fn blob(&self, column: usize) -> Result<&[u8], Error> {
        match self.0.get(column) {
            Some(Value::Blob(bytes)) => Ok(bytes),
            other => Err(wrong("bytes", column, other)),
        }
    }
}

fn wrong(wanted: &str, column: usize, found: Option<&Value>) -> Error {
    let found = match found {
        None => "nothing",
        Some(Value::Null) => "NULL",
        Some(Value::Int(_)) => "an integer",
        Some(Value::Text(_)) => "text",
        Some(Value::Blob(_)) => "bytes",
    };
    Error::Corrupt(format!("column {column} holds {found}, not {wanted}"))
}

/// The statements a domain handler may run in a store's transaction. Placeholders are `$1`, `$2`, …
/// in both dialects. Statements that control transactions are refused with [`Error::Handler`].
///
/// After an error the transaction can only be rolled back: a handler that goes on all the same
/// gets that error as its outcome, and none of its writes stay. It may still refuse or abort.
pub trait Sql: Send {
    /// Runs a statement; how many rows it changed.
    fn execute<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<u64, Error>>;

    /// Runs a query; all its rows. Bound it with LIMIT.
    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, Error>>;

    /// Sets the committed flag of a guarded attempt in this transaction: its write and the flag
    /// are durable together or not at all. At most one transaction of an operation may: a handler
    /// that repeats its own, because the first one's commit was in doubt, gets [`Error::Fenced`],
    /// and must let its writes roll back.
    fn mark_committed<'a>(&'a mut self, fence: crate::Fence) -> BoxFuture<'a, Result<(), Error>>;

    /// Which SQL this is.
    fn dialect(&self) -> Dialect;
}

/// Remembers the first error, so that a store undoes what a handler wrote although the handler
/// went on. For stores.
pub struct Watched<'a> {
    inner: &'a mut dyn Sql,
    failed: Option<Error>,
}

impl<'a> Watched<'a> {
    /// Watches `inner`.
    #[must_use]
    pub fn new(inner: &'a mut dyn Sql) -> Self {
        Self {
            inner,
            failed: None,
        }
    }

    /// The first error, if there was one.
    #[must_use]
    pub fn failed(self) -> Option<Error> {
        self.failed
    }

    fn see<T>(failed: &mut Option<Error>, done: Result<T, Error>) -> Result<T, Error> {
        if let (None, Err(error)) = (&failed, &done) {
            *failed = Some(error.clone());
        }
        done
    }
}

impl Sql for Watched<'_> {
    fn execute<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<u64, Error>> {
        let Self { inner, failed } = self;
        Box::pin(async move { Self::see(failed, inner.execute(sql, parameters).await) })
    }

    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
        let Self { inner, failed } = self;
        Box::pin(async move { Self::see(failed, inner.query(sql, parameters).await) })
    }

    fn mark_committed<'a>(&'a mut self, fence: crate::Fence) -> BoxFuture<'a, Result<(), Error>> {
        let Self { inner, failed } = self;
        Box::pin(async move { Self::see(failed, inner.mark_committed(fence).await) })
    }

    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }
}

/// One step of an application's schema, once in each dialect. Numbers start at 1 without a gap.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The schema version after it.
    pub version: u32,
    /// The statements for SQLite.
    pub sqlite: &'static str,
    /// The statements for PostgreSQL.
    pub postgres: &'static str,
}
