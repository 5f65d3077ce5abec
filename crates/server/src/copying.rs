//! The application's own rows on their way from one store to another.

use std::sync::{Arc, Mutex, PoisonError};

use counterfoil_store::{self as store, BoxFuture, Row, Sql, Store, Value};
use sha2::{Digest as _, Sha256};

use crate::schema::{TABLES, Table};

/// Rows in one page, and in one transaction.
const PAGE: usize = 200;

/// Why rows were not copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// A row is there already, with another content.
    #[error("{table} {key} is there already, and differs from what is to be written")]
    Differs {
        /// In which table.
        table: &'static str,
        /// Its key.
        key: String,
    },
    /// A store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiedRows {
    /// Rows written.
    pub new: u64,
    /// Rows that were there already, the same in everything.
    pub same: u64,
}

/// The application's rows of a store in short: the same for the same rows, in whichever store and
/// order they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsDigest {
    /// How many rows there are.
    pub rows: u64,
    /// A digest of all of them.
    pub digest: [u8; 32],
}

/// Copies the application's rows (workspaces, agent keys, notes) from a store into another, whose
/// tables are there. What is there already with the same content is left alone, so that a copy
/// that was cut off is simply begun again. Calls `told` after every page.
///
/// # Errors
/// [`CopyError::Differs`] if a row is there with another content; pages before it are written.
pub async fn copy_rows(
    from: &dyn Store,
    to: &dyn Store,
    mut told: impl FnMut(CopiedRows) + Send,
) -> Result<CopiedRows, CopyError> {
    let mut copied = CopiedRows::default();
    for table in TABLES {
        let mut after = None;
        while let Some(rows) = page(from, table, after).await? {
            let count = u64::try_from(rows.len()).unwrap_or(u64::MAX);
            after = rows.last().map(|row| key(table, row).to_vec());
            let new = put(to, table, rows).await?;
            copied.new += new;
            copied.same += count - new;
            told(copied);
        }
    }
    Ok(copied)
}

/// Digests the application's rows of a store.
///
/// # Errors
/// What the store says.
pub async fn digest_rows(store: &dyn Store) -> Result<RowsDigest, store::Error> {
    let mut digest = RowsDigest::default();
    for table in TABLES {
        let mut after = None;
        while let Some(rows) = page(store, table, after).await? {
            after = rows.last().map(|row| key(table, row).to_vec());
            for row in &rows {
                digest.rows += 1;
                let of_row = digest_row(table, row);
                // No row is there twice, so that none takes another one out.
                for (sum, byte) in digest.digest.iter_mut().zip(of_row) {
                    *sum ^= byte;
                }
            }
        }
    }
    Ok(digest)
}

fn digest_row(table: &Table, row: &Row) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut feed = |kind: u8, bytes: &[u8]| {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        hash.update([kind]);
        hash.update(length.to_be_bytes());
        hash.update(bytes);
    };
    feed(0, table.name.as_bytes());
    for value in &row.0 {
        match value {
            Value::Null => feed(1, &[]),
            Value::Int(int) => feed(2, &int.to_be_bytes()),
            Value::Text(text) => feed(3, text.as_bytes()),
            Value::Blob(bytes) => feed(4, bytes),
        }
    }
    hash.finalize().into()
}

/// The columns of a row that are its key.
fn key<'r>(table: &Table, row: &'r Row) -> &'r [Value] {
    row.0.get(..table.key).unwrap_or_default()
}

/// The rows behind a key, in the order of their keys as this store orders them; `None` at the end.
async fn page(
    store: &dyn Store,
    table: &'static Table,
    after: Option<Vec<Value>>,
) -> Result<Option<Vec<Row>>, store::Error> {
    let columns = table.columns.join(", ");
    let keys = table.columns[..table.key].join(", ");
    let behind = if after.is_some() {
        format!("WHERE ({keys}) > ({})", places(0, table.key))
    } else {
        String::new()
    };
    let sql = format!(
        "SELECT {columns} FROM {} {behind} ORDER BY {keys} LIMIT {PAGE}",
        table.name
    );
    let after = after.unwrap_or_default();
    let rows = store::read(store, |reading| {
        let (sql, after) = (sql.clone(), after.clone());
        Box::pin(async move { reading.query(&sql, &after).await })
    })
    .await?;
    Ok((!rows.is_empty()).then_some(rows))
}

/// `$1, $2, …`, beginning after `first`.
fn places(first: usize, count: usize) -> String {
    let places: Vec<String> = (first + 1..=first + count)
        .map(|number| format!("${number}"))
        .collect();
    places.join(", ")
}

/// Writes rows in one transaction; how many were not there yet.
async fn put(store: &dyn Store, table: &'static Table, rows: Vec<Row>) -> Result<u64, CopyError> {
    let differing = Arc::new(Mutex::new(None));
    let rows = Arc::new(rows);
    let found = Arc::clone(&differing);
    let done = store::transact(store, None, move |tx| -> BoxFuture<'_, _> {
        let (rows, found) = (Arc::clone(&rows), Arc::clone(&found));
        Box::pin(async move {
            let new = insert(tx, table, &rows).await?;
            if new < u64::try_from(rows.len()).unwrap_or(u64::MAX)
                && let Some(row) = first_differing(tx, table, &rows).await?
            {
                *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown(table, row));
                return Err(store::Error::RolledBack);
            }
            Ok(new)
        })
    })
    .await;
    let differing = differing
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    match (done, differing) {
        (Err(store::Error::RolledBack), Some(key)) => Err(CopyError::Differs {
            table: table.name,
            key,
        }),
        (done, _) => Ok(done?),
    }
}

async fn insert(tx: &mut dyn Sql, table: &Table, rows: &[Row]) -> Result<u64, store::Error> {
    let width = table.columns.len();
    let tuples: Vec<String> = (0..rows.len())
        .map(|row| format!("({})", places(row * width, width)))
        .collect();
    let sql = format!(
        "INSERT INTO {} ({}) VALUES {} ON CONFLICT DO NOTHING",
        table.name,
        table.columns.join(", "),
        tuples.join(", ")
    );
    let values: Vec<Value> = rows.iter().flat_map(|row| row.0.iter().cloned()).collect();
    tx.execute(&sql, &values).await
}

/// The first of these rows that is there with another content.
async fn first_differing<'r>(
    tx: &mut dyn Sql,
    table: &Table,
    rows: &'r [Row],
) -> Result<Option<&'r Row>, store::Error> {
    let wanted: Vec<String> = table.columns[..table.key]
        .iter()
        .zip(1..)
        .map(|(column, number)| format!("{column} = ${number}"))
        .collect();
    let sql = format!(
        "SELECT {} FROM {} WHERE {}",
        table.columns.join(", "),
        table.name,
        wanted.join(" AND ")
    );
    for row in rows {
        let there = tx.query(&sql, key(table, row)).await?;
        if there.first() != Some(row) {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

/// A key as it is shown.
fn shown(table: &Table, row: &Row) -> String {
    let parts: Vec<String> = key(table, row)
        .iter()
        .map(|value| match value {
            Value::Text(text) => text.clone(),
            Value::Int(int) => int.to_string(),
            Value::Null | Value::Blob(_) => "?".to_owned(),
        })
        .collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use counterfoil_sqlite::{Options, SqliteStore};
    use counterfoil_store::{Store, Value, transact};

    use super::{CopiedRows, CopyError, copy_rows, digest_rows};
    use crate::{
        Application,
        schema::{TABLES, Table},
    };

    async fn store(folder: &tempfile::TempDir, name: &str) -> SqliteStore {
        let store = SqliteStore::open(folder.path().join(name), Options::default()).unwrap();
        Application::migrate(&store).await.unwrap();
        store
    }

    async fn tell(store: &dyn Store, sql: &'static str, values: Vec<Value>) {
        let work = transact(store, None, move |tx| {
            let values = values.clone();
            Box::pin(async move { tx.execute(sql, &values).await })
        });
        work.await.unwrap();
    }

    async fn populate(store: &dyn Store) {
        for number in 0..3_i64 {
            let workspace = format!("w{number}");
            let values = vec![workspace.as_str().into(), number.into()];
            tell(store, "INSERT INTO workspaces VALUES ($1, $2)", values).await;
            let values = vec![
                format!("ak_{number}").into(),
                workspace.as_str().into(),
                "Ada".into(),
                "admin".into(),
                vec![0_u8, 255].into(),
                number.into(),
                (number > 1).then_some(7_i64).into(),
            ];
            let sql = "INSERT INTO agent_keys VALUES ($1, $2, $3, $4, $5, $6, $7, NULL)";
            tell(store, sql, values).await;
            for note in 0..250_i64 {
                let values = vec![
                    workspace.as_str().into(),
                    format!("note_{note}").into(),
                    format!("Grüße {note}").into(),
                    "ak_1".into(),
                    note.into(),
                ];
                let sql = "INSERT INTO notes VALUES ($1, $2, $3, $4, $5)";
                tell(store, sql, values).await;
            }
        }
    }

    #[tokio::test]
    async fn every_table_and_column_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        store(&folder, "a").await.close().await;
        let sqlite = rusqlite::Connection::open(folder.path().join("a")).unwrap();
        let mut tables = sqlite
            .prepare(
                "SELECT name FROM sqlite_schema WHERE type = 'table'
                 AND name NOT LIKE 'counterfoil%' AND name NOT LIKE 'sqlite%' ORDER BY name",
            )
            .unwrap();
        let names: Vec<String> = tables
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let mut listed: Vec<&str> = TABLES.iter().map(|table| table.name).collect();
        listed.sort_unstable();
        assert_eq!(names, listed);
        for Table { name, columns, key } in TABLES {
            let mut info = sqlite
                .prepare("SELECT name, pk FROM pragma_table_info(?1)")
                .unwrap();
            let mut there: Vec<(String, i64)> = info
                .query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            for (place, column) in (1..).zip(*columns) {
                let at = there.iter().position(|(name, _)| name == column).unwrap();
                let (_, of_key) = there.remove(at);
                let wanted = if place <= *key { place } else { 0 };
                assert_eq!(usize::try_from(of_key).unwrap(), wanted, "{name}");
            }
            assert_eq!(there, [], "{name} has columns that are not copied");
        }
    }

    #[tokio::test]
    async fn a_copy_is_whole_and_may_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (store(&folder, "a").await, store(&folder, "b").await);
        populate(&from).await;
        let mut pages = 0;
        let copied = copy_rows(&from, &to, |_| pages += 1).await.unwrap();
        assert_eq!(copied, CopiedRows { new: 756, same: 0 });
        assert_eq!(pages, 6);
        let digest = digest_rows(&from).await.unwrap();
        assert_eq!(digest.rows, 756);
        assert_eq!(digest_rows(&to).await.unwrap(), digest);
        let sql = "DELETE FROM notes WHERE workspace = 'w1' AND id > $1";
        tell(&to, sql, vec!["note_2".into()]).await;
        assert_ne!(digest_rows(&to).await.unwrap(), digest);
        let again = copy_rows(&from, &to, |_| ()).await.unwrap();
        assert!(again.new > 0 && again.same > 0);
        assert_eq!(again.new + again.same, 756);
        assert_eq!(digest_rows(&to).await.unwrap(), digest);
    }

    #[tokio::test]
    async fn a_row_with_another_content_is_named_and_left() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (store(&folder, "a").await, store(&folder, "b").await);
        populate(&from).await;
        copy_rows(&from, &to, |_| ()).await.unwrap();
        let sql = "UPDATE agent_keys SET rotated_at = NULL WHERE id = $1";
        tell(&to, sql, vec!["ak_2".into()]).await;
        let before = digest_rows(&to).await.unwrap();
        let error = copy_rows(&from, &to, |_| ()).await.unwrap_err();
        let differs = CopyError::Differs {
            table: "agent_keys",
            key: "ak_2".to_owned(),
        };
        assert_eq!(error, differs);
        assert_eq!(digest_rows(&to).await.unwrap(), before);
    }
}
