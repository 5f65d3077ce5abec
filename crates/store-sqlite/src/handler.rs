//! An application's code on the store's connections.

use std::panic::{AssertUnwindSafe, catch_unwind};

use counterfoil_store::{BoxFuture, Dialect, Error, Fence, Row, Sql, Value, Watched};

use crate::{
    connection::Guarded,
    guard::Running,
    record::mark_committed,
    statement,
    tx::{Halt, Tx},
};

/// The writer's transaction as an application sees it.
pub(crate) struct Session<'s, 'c>(pub(crate) &'s mut Tx<'c>);

impl Session<'_, '_> {
    /// A statement after the end of the transaction would be one of its own.
    fn check(&self) -> Result<(), Error> {
        if self.0.has_ended() {
            Err(ended())
        } else if self.0.guard().is_over() {
            Err(Error::Handler(
                "its statements ran longer than they may".to_owned(),
            ))
        } else {
            Ok(())
        }
    }
}

/// What a handler is told whose transaction is over before it is.
pub(crate) fn ended() -> Error {
    Error::Handler(
        "its transaction was rolled back in the middle (a ROLLBACK conflict clause, or the disk)"
            .to_owned(),
    )
}

impl Sql for Session<'_, '_> {
    fn execute<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            self.check()?;
            statement::execute(self.0.sqlite(), sql, parameters)
        })
    }

    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
        Box::pin(async move {
            self.check()?;
            statement::query(self.0.sqlite(), sql, parameters)
        })
    }

    fn mark_committed<'a>(&'a mut self, fence: Fence) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.check()?;
            let left = self.0.guard().leave_for_own();
            let marked = mark_committed(self.0, fence);
            self.0.guard().back(left);
            marked.map_err(|halt| match halt {
                Halt::Said(error) | Halt::Broke(error) => error,
            })
        })
    }

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }
}

/// Runs an application's code on the writer's thread, where nothing may be waited for: the
/// transaction is always ready, so `once` polls the future once, and `None` is a mistake. With the
/// output comes the first error of a statement: nothing it wrote may stay then.
pub(crate) fn run<T>(
    tx: &mut Tx<'_>,
    once: impl FnOnce(&mut dyn Sql) -> Option<T>,
) -> Result<(T, Option<Error>), Error> {
    let limit = tx.shared.options.handler_limit;
    tx.guard().enter(Running::Handler, limit);
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let mut session = Session(&mut *tx);
        let mut watched = Watched::new(&mut session);
        let output = once(&mut watched);
        (output, watched.failed())
    }));
    tx.guard().leave();
    match polled {
        Ok((Some(output), failed)) => Ok((output, failed)),
        Ok((None, _)) => Err(Error::Handler(
            "it awaited something other than its transaction".to_owned(),
        )),
        Err(_) => Err(Error::Handler("it panicked".to_owned())),
    }
}

/// Opens the part of the transaction that can be undone alone.
pub(crate) fn open_savepoint(tx: &Tx<'_>) -> Result<(), Halt> {
    run_plain(tx, "SAVEPOINT handler")
}

/// Keeps what was written since.
pub(crate) fn keep_savepoint(tx: &Tx<'_>) -> Result<(), Halt> {
    run_plain(tx, "RELEASE handler")
}

/// Undoes what was written since.
pub(crate) fn undo_savepoint(tx: &Tx<'_>) -> Result<(), Halt> {
    run_plain(tx, "ROLLBACK TO handler")?;
    run_plain(tx, "RELEASE handler")
}

fn run_plain(tx: &Tx<'_>, sql: &str) -> Result<(), Halt> {
    tx.sqlite().prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// A reading connection as an application sees it.
pub(crate) struct Reading<'s> {
    pub(crate) connection: &'s mut Guarded,
    pub(crate) limit: std::time::Duration,
}

fn cannot_write() -> Error {
    Error::Handler("a reading connection cannot write".to_owned())
}

impl Sql for Reading<'_> {
    fn execute<'a>(
        &'a mut self,
        _sql: &'a str,
        _parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(std::future::ready(Err(cannot_write())))
    }

    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
        Box::pin(async move {
            self.connection.guard.enter(Running::Reader, self.limit);
            let rows = statement::query(&self.connection.sqlite, sql, parameters);
            self.connection.guard.leave();
            rows
        })
    }

    fn mark_committed<'a>(&'a mut self, _fence: Fence) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::ready(Err(cannot_write())))
    }

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }
}
