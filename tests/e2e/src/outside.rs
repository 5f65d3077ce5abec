//! The database as somebody sees it who may look into it and meddle with it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use counterfoil_test_postgres::{Database, program};
use rusqlite::Connection;

use crate::folder::Base;

/// A look from outside, with a connection of its own.
pub enum Outside {
    /// A second connection to the file.
    Sqlite(Connection),
    /// Through `psql`.
    Postgres(Arc<Base>),
}

/// Somebody else's open transaction: nobody writes notes or receipts until it is released.
pub struct Lock(Held);

enum Held {
    Sqlite(Connection),
    Postgres(Session),
}

/// A `psql` that is kept open.
struct Session(Child);

impl Outside {
    /// Runs statements that both databases understand.
    ///
    /// # Panics
    /// If one fails.
    pub fn run(&self, sql: &str) {
        match self {
            Self::Sqlite(connection) => connection.execute_batch(sql).expect("a statement"),
            Self::Postgres(base) => {
                base.database().psql(sql);
            }
        }
    }

    /// The one number that a query finds.
    ///
    /// # Panics
    /// If it fails, or finds something else.
    #[must_use]
    pub fn number(&self, sql: &str) -> i64 {
        self.try_number(sql)
            .unwrap_or_else(|why| panic!("{sql}: {why}"))
    }

    /// As [`Outside::number`].
    ///
    /// # Errors
    /// What the database says, such as that there is no such table.
    pub fn try_number(&self, sql: &str) -> Result<i64, String> {
        match self {
            Self::Sqlite(connection) => connection
                .query_row(sql, [], |row| row.get(0))
                .map_err(|error| error.to_string()),
            Self::Postgres(base) => {
                let text = base.database().try_psql(sql);
                let text = text.map_err(|error| error.to_string())?;
                text.parse().map_err(|_| format!("{text:?} is no number"))
            }
        }
    }

    /// The bytes of the only stored result.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn stored_result(&self) -> Vec<u8> {
        let hex = match self {
            Self::Sqlite(connection) => connection
                .query_row("SELECT hex(body) FROM counterfoil_results", [], |row| {
                    row.get::<_, String>(0)
                })
                .expect("a stored result"),
            Self::Postgres(base) => base
                .database()
                .psql("SELECT encode(body, 'hex') FROM counterfoil_results"),
        };
        let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
        let bytes = digits.chunks_exact(2);
        bytes
            .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits are a byte"))
            .collect()
    }

    /// Lets time pass for every lease there is.
    ///
    /// # Panics
    /// If that cannot be arranged.
    pub fn end_leases(&self) {
        self.run("UPDATE counterfoil_receipts SET lease_until = 1");
        match self {
            Self::Sqlite(_) => {}
            // When to look at an open receipt is beside it here.
            Self::Postgres(_) => self.run("UPDATE counterfoil_open SET lapse_at = 1"),
        }
    }

    /// From now on no row can be added to a table.
    ///
    /// # Panics
    /// If that cannot be arranged.
    pub fn refuse_rows(&self, table: &str) {
        match self {
            Self::Sqlite(_) => self.run(&format!(
                "CREATE TRIGGER planted BEFORE INSERT ON {table}
                 BEGIN SELECT RAISE(ABORT, 'planted'); END"
            )),
            Self::Postgres(_) => self.run(&format!(
                "CREATE OR REPLACE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql
                     AS $$ BEGIN RAISE EXCEPTION 'planted'; END $$;
                 CREATE TRIGGER planted BEFORE INSERT ON {table}
                     FOR EACH ROW EXECUTE FUNCTION planted()"
            )),
        }
    }

    /// Takes [`Outside::refuse_rows`] back.
    ///
    /// # Panics
    /// If it was never said.
    pub fn allow_rows(&self, table: &str) {
        match self {
            Self::Sqlite(_) => self.run("DROP TRIGGER planted"),
            Self::Postgres(_) => self.run(&format!("DROP TRIGGER planted ON {table}")),
        }
    }

    /// Opens a transaction that keeps everybody else from writing notes and receipts. Whoever
    /// reads is not held up.
    ///
    /// # Panics
    /// If it does not get its locks.
    #[must_use]
    pub fn lock(&self) -> Lock {
        self.lock_tables("notes, counterfoil_receipts")
    }

    /// Opens a transaction that keeps everybody else from writing notes: with PostgreSQL a call
    /// then stands still in its handler, after its receipt was written.
    ///
    /// # Panics
    /// If it does not get its locks.
    #[must_use]
    pub fn lock_notes(&self) -> Lock {
        self.lock_tables("notes")
    }

    fn lock_tables(&self, tables: &str) -> Lock {
        Lock(match self {
            Self::Sqlite(connection) => {
                let path = connection.path().expect("a database in a file");
                let other = Connection::open(path).expect("the database opens");
                other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
                Held::Sqlite(other)
            }
            Self::Postgres(base) => Held::Postgres(Session::begin(
                base.database(),
                &format!("LOCK TABLE {tables} IN SHARE MODE"),
            )),
        })
    }

    pub(crate) fn sqlite(path: &std::path::Path) -> Self {
        let connection = Connection::open(path).expect("the database opens");
        connection
            .busy_timeout(Duration::from_secs(10))
            .expect("a time-out");
        Self::Sqlite(connection)
    }
}

impl Lock {
    /// Ends the transaction.
    ///
    /// # Panics
    /// If it cannot be ended.
    pub fn release(self) {
        match self.0 {
            Held::Sqlite(connection) => connection.execute_batch("ROLLBACK").expect("a rollback"),
            Held::Postgres(session) => drop(session),
        }
    }
}

impl Session {
    /// Opens a transaction, and returns once the statement has gone through.
    fn begin(database: &Database, sql: &str) -> Self {
        let mut child = Command::new(program("psql"))
            .args(["-X", "-A", "-t", "-q", "-w", "-v", "ON_ERROR_STOP=1"])
            .args(["-d", database.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("psql starts");
        let input = child.stdin.as_mut().expect("its input");
        writeln!(input, "BEGIN; {sql}; SELECT 'held';").expect("psql reads");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("psql answers");
        assert_eq!(line.trim(), "held", "{sql}");
        Self(child)
    }
}

impl Drop for Session {
    /// At the end of its input psql leaves, and its transaction is rolled back.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
