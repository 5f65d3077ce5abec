//! What the PostgreSQL store is measured against: one plain table, one row a call, one durable
//! commit each, prepared statements on a few connections.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio_postgres::{Client, NoTls, Statement, types::Type};

use crate::{
    Error,
    callers::BODY,
    drive::drive,
    keys::Series,
    load::{Round, Until, spread},
};

/// Rows of one statement while the table is filled.
const CHUNK: u64 = 10_000;
const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS bench_plain(key text PRIMARY KEY, body bytea NOT NULL)";
const INSERT: &str = "INSERT INTO bench_plain(key, body) VALUES ($1, $2) ON CONFLICT DO NOTHING";
const LOOK: &str = "SELECT body FROM bench_plain WHERE key = $1";
const FILL: &str = "INSERT INTO bench_plain(key, body) SELECT key, $2 FROM unnest($1) AS t(key)";

/// A plain table and connections to it.
#[derive(Clone)]
pub(crate) struct Plain {
    connections: Arc<[Connection]>,
    series: Series,
    next: Arc<AtomicU64>,
}

struct Connection {
    client: Client,
    insert: Statement,
    look: Statement,
}

impl Plain {
    /// Connects, and makes the table if it is not there. Needs a runtime.
    pub(crate) async fn open(url: &str, connections: usize, series: Series) -> Result<Self, Error> {
        let mut open = Vec::with_capacity(connections);
        for number in 0..connections {
            let (client, driver) = tokio_postgres::connect(url, NoTls).await?;
            // The client tells whatever ends it.
            tokio::spawn(driver);
            if number == 0 {
                client.batch_execute(TABLE).await?;
            }
            open.push(Connection {
                insert: client
                    .prepare_typed(INSERT, &[Type::TEXT, Type::BYTEA])
                    .await?,
                look: client.prepare_typed(LOOK, &[Type::TEXT]).await?,
                client,
            });
        }
        Ok(Self {
            connections: open.into(),
            series,
            next: Arc::default(),
        })
    }

    fn connection(&self, caller: usize) -> Result<&Connection, Error> {
        let connection = self.connections.get(caller % self.connections.len().max(1));
        connection.ok_or(Error::Form("the number of connections"))
    }

    /// Inserts, one caller on each connection.
    pub(crate) async fn insert(&self, until: Until) -> Result<Round, Error> {
        let plain = self.clone();
        drive(
            self.connections.len(),
            &self.next,
            until,
            move |caller, index| {
                let plain = plain.clone();
                async move {
                    let Connection { client, insert, .. } = plain.connection(caller)?;
                    let key = plain.series.key(index);
                    let made = client.execute(insert, &[&key, &BODY]).await?;
                    if made == 1 {
                        Ok(())
                    } else {
                        Err(Error::Decided(format!("{made} rows")))
                    }
                }
            },
        )
        .await
    }

    /// Makes rows until there are so many, in a few large statements.
    pub(crate) async fn fill(&self, rows: u64) -> Result<(), Error> {
        let client = &self.connection(0)?.client;
        let fill = client
            .prepare_typed(FILL, &[Type::TEXT_ARRAY, Type::BYTEA])
            .await?;
        loop {
            let first = self.next.fetch_add(CHUNK, Ordering::Relaxed);
            if first >= rows {
                return Ok(());
            }
            let last = rows.min(first + CHUNK);
            let keys: Vec<String> = (first..last).map(|index| self.series.key(index)).collect();
            client.execute(&fill, &[&keys, &BODY]).await?;
        }
    }

    /// Looks up, all over the first `count` rows. Callers on one connection do not wait for each
    /// other's answers.
    pub(crate) async fn look(
        &self,
        count: u64,
        callers: usize,
        until: Until,
    ) -> Result<Round, Error> {
        let plain = self.clone();
        drive(callers, &Arc::default(), until, move |caller, index| {
            let plain = plain.clone();
            async move {
                let Connection { client, look, .. } = plain.connection(caller)?;
                let key = plain.series.key(spread(index, count));
                let row = client.query_one(look, &[&key]).await?;
                if row.get::<_, &[u8]>(0) == BODY {
                    Ok(())
                } else {
                    Err(Error::Decided("another body".to_owned()))
                }
            }
        })
        .await
    }
}
