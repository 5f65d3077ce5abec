//! The PostgreSQL store, on a database of its own for each figure that needs one.

pub(crate) mod first;
pub(crate) mod growth;
pub(crate) mod nodes;
pub(crate) mod replays;
pub(crate) mod workspaces;

use std::sync::{Arc, OnceLock};

use counterfoil_postgres::PostgresStore;
use counterfoil_test_postgres::Database;

use crate::{
    Error,
    callers::Callers,
    keys::Series,
    parts::Bench,
    processor::{self, Watch, Whose},
};

const ABOUT: &str = "SELECT format(
    'PostgreSQL %s; fsync %s, synchronous_commit %s, full_page_writes %s, shared_buffers %s, max_wal_size %s',
    current_setting('server_version'), current_setting('fsync'),
    current_setting('synchronous_commit'), current_setting('full_page_writes'),
    current_setting('shared_buffers'), current_setting('max_wal_size'))";

/// Says once what kind of server it is.
pub(crate) fn introduce(database: &Database) -> Result<(), Error> {
    static SAID: OnceLock<()> = OnceLock::new();
    let about = database.try_psql(ABOUT)?;
    SAID.get_or_init(|| println!("\n{about}"));
    Ok(())
}

/// The process of the server itself: everything else of it is its child.
pub(crate) fn postmaster(database: &Database) -> Result<u32, Error> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'";
    let id = database.try_psql(sql)?;
    let id = id.trim().parse().map_err(|_| Error::Form("a process id"))?;
    processor::parent_of(id)
}

/// Watches PostgreSQL and this process, in which the callers are.
pub(crate) fn watch(postmaster: u32) -> Result<Watch, Error> {
    Watch::new(vec![
        ("PostgreSQL", vec![Whose::Family(postmaster)]),
        ("callers", vec![Whose::Process(std::process::id())]),
    ])
}

/// Callers of a store on this database, as one node has it.
pub(crate) async fn callers(
    bench: &Bench,
    database: &Database,
    series: Series,
    workspaces: usize,
) -> Result<Callers, Error> {
    let store = PostgresStore::open(database.url(), bench.postgres.clone()).await?;
    Callers::on(Arc::new(store), series, workspaces).await
}

/// How many transactions of the whole server have written something.
pub(crate) fn transactions(database: &Database) -> Result<u64, Error> {
    let next = database.try_psql("SELECT pg_snapshot_xmax(pg_current_snapshot())")?;
    next.trim().parse().map_err(|_| Error::Form("a snapshot"))
}

/// Before anything is measured: statistics as they are after a while, and no checkpoint due.
pub(crate) fn settle(database: &Database) -> Result<(), Error> {
    database.try_psql("VACUUM (ANALYZE)")?;
    database.try_psql("CHECKPOINT")?;
    Ok(())
}
