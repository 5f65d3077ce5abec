//! What is checked of a database before it is used.

use counterfoil_store::Error;

use crate::{
    OpenError,
    connect::{Connector, Session, Text},
    error::Fault,
};

/// The oldest server that is supported.
const OLDEST: i32 = 140_000;

static SETTINGS: Text = Text {
    sql: "SELECT current_setting('server_version_num')::int, current_setting('server_version'),
            current_setting('server_encoding'),
            pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
            current_setting('plan_cache_mode') = 'force_generic_plan'
              AND current_setting('synchronous_commit') = 'on',
            current_setting('fsync')",
    types: &[],
};

/// What a first connection that failed means.
pub(crate) fn explain(fault: Fault) -> OpenError {
    // What PgBouncer answers to settings in the first message.
    let pooler = match &fault {
        Fault::Said(Error::Statement(said)) | Fault::Lost(said) => {
            said.contains("unsupported startup parameter")
        }
        Fault::Said(_) | Fault::Deadlock | Fault::Locked | Fault::Stale => false,
    };
    if pooler {
        OpenError::Pooler
    } else {
        OpenError::refused(fault)
    }
}

/// Refuses a database on which the promises cannot be kept.
pub(crate) async fn prepare(session: &Session, connector: &Connector) -> Result<(), OpenError> {
    let refused = OpenError::refused;
    let rows = session.ask(&SETTINGS, &[]).await.map_err(refused)?;
    let Some(row) = rows.first() else {
        return Err(OpenError::refused(crate::error::corrupt("setting")));
    };
    if row.get::<_, i32>(0) < OLDEST {
        return Err(OpenError::TooOld { found: row.get(1) });
    }
    let encoding: String = row.get(2);
    if encoding != "UTF8" {
        return Err(OpenError::Encoding(encoding));
    }
    if row.get(3) {
        return Err(OpenError::ReadOnly);
    }
    // One of these is nobody's default.
    if !connector.pooler && !row.get::<_, bool>(4) {
        return Err(OpenError::Pooler);
    }
    if row.get::<_, &str>(5) == "off" {
        tracing::warn!(
            "fsync is off in this database: a crash of its machine can lose what was acknowledged"
        );
    }
    Ok(())
}
