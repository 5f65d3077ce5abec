//! An application's code on the store's connections.

use std::{panic::AssertUnwindSafe, time::Duration};

use counterfoil_store::{BoxFuture, Dialect, Error, Fence, Row, Sql, Value, marked_committed};
use futures_util::{FutureExt as _, future::join};
use tokio_postgres::types::Type;

use crate::{
    connect::{Session, Text},
    error::{Done, Fault},
    rows::{Stored, decode, first_event, last_event, named_columns, named_tables, uuid_of},
    statement,
    write::{Sent, Writes},
};

static LOCK_OPERATION: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        named_tables!(),
        "WHERE r.operation_id = $1 FOR NO KEY UPDATE OF r"
    ),
    types: &[Type::UUID],
};
static LAST_EVENT: Text = Text {
    sql: "SELECT at FROM counterfoil_events WHERE id BETWEEN $1 AND $2 ORDER BY id DESC LIMIT 1",
    types: &[Type::INT8, Type::INT8],
};

/// A transaction as an application sees it.
pub(crate) struct Scene<'s> {
    session: &'s Session,
    reads_only: bool,
    /// Its transaction has begun.
    begun: bool,
    /// The first fault that running everything again may mend.
    again: Option<Fault>,
}

impl<'s> Scene<'s> {
    /// In a transaction that has begun.
    pub(crate) const fn new(session: &'s Session) -> Self {
        Self {
            session,
            reads_only: false,
            begun: true,
            again: None,
        }
    }

    /// In a transaction that only reads. It begins with the first query, in the same flight.
    pub(crate) const fn reading(session: &'s Session) -> Self {
        Self {
            session,
            reads_only: true,
            begun: false,
            again: None,
        }
    }

    /// The fault that running everything again may mend, if there was one.
    pub(crate) fn check(self) -> Done<()> {
        self.again.map_or(Ok(()), Err)
    }

    fn told<T>(&mut self, done: Done<T>) -> Result<T, Error> {
        done.map_err(|fault| {
            let told = match &fault {
                Fault::Lost(why) => Fault::Lost(why.clone()),
                Fault::Deadlock => Fault::Deadlock,
                Fault::Locked => Fault::Locked,
                Fault::Stale => Fault::Stale,
                Fault::Said(error) => return error.clone(),
            };
            self.again.get_or_insert(fault);
            told.into()
        })
    }

    fn may_write(&self) -> Result<(), Error> {
        if self.reads_only {
            return Err(Error::Handler(
                "a reading connection cannot write".to_owned(),
            ));
        }
        Ok(())
    }
}

impl Sql for Scene<'_> {
    fn execute<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            self.may_write()?;
            statement::check(sql)?;
            let told = statement::told(parameters)?;
            let done = self
                .session
                .execute_for(sql, &statement::typed(&told))
                .await;
            self.told(done)
        })
    }

    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
        Box::pin(async move {
            statement::check(sql)?;
            let told = statement::told(parameters)?;
            let typed = statement::typed(&told);
            let query = self.session.query_for(sql, &typed);
            let done = if std::mem::replace(&mut self.begun, true) {
                query.await
            } else {
                match join(self.session.begin_reading(), query).await {
                    (Ok(()), rows) => rows,
                    (Err(fault), _) => Err(fault),
                }
            };
            self.told(done)?.iter().map(statement::row).collect()
        })
    }

    fn mark_committed<'a>(&'a mut self, fence: Fence) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.may_write()?;
            let done = mark(self.session, fence).await;
            self.told(done)
        })
    }

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }
}

async fn mark(session: &Session, fence: Fence) -> Done<()> {
    let id = uuid_of(fence.operation_id);
    let rows = session.ask(&LOCK_OPERATION, &[&id]).await?;
    let row = rows.first().ok_or(Fault::Said(Error::NotFound))?;
    let mut stored: Stored = decode(row)?;
    let log = [first_event(stored.id), last_event(stored.id)];
    let last = session.ask(&LAST_EVENT, &[&log[0], &log[1]]).await?;
    let at = last.first().map_or(stored.receipt.created_at, |row| {
        counterfoil_core::Timestamp::from_millis(row.get(0))
    });
    let Some(change) = marked_committed(&stored.receipt, fence, at)? else {
        return Ok(());
    };
    let mut writes = Writes::default();
    writes.update(&mut stored, &change);
    let flight = writes.ready(session).await?;
    match flight.send(session, "", false).await {
        Sent::Done => Ok(()),
        Sent::Refused(fault) => Err(fault),
        Sent::InDoubt(why) => Err(Fault::Lost(why)),
    }
}

/// Runs an application's code within `limit`. Its panics are errors.
pub(crate) async fn bounded<T>(limit: Duration, running: impl Future<Output = T>) -> Done<T> {
    let running = AssertUnwindSafe(running).catch_unwind();
    match tokio::time::timeout(limit, running).await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(_)) => Err(Fault::Said(Error::Handler("it panicked".to_owned()))),
        Err(_) => Err(Fault::Said(Error::Handler(format!(
            "it took longer than {} ms",
            limit.as_millis()
        )))),
    }
}
