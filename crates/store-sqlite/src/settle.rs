//! Whether a COMMIT took effect whose answer was an error.
//!
//! Every transaction writes its number into the row of its writer. After such an error the
//! connection is closed, opened again, and the number is read: it says what the error did not.

use std::time::Instant;

use rusqlite::{Error as Sqlite, ErrorCode, OptionalExtension as _};

use crate::{connection::pause, writer::Writer};

/// What is known of a COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is in the database, and durable.
    TookEffect,
    /// It is not, and will not be.
    DidNot,
    /// Could not be found out within the bound.
    Unknown,
}

impl Writer {
    /// Settles the transaction with the number `self.sequence`, whose COMMIT failed with `error`.
    pub(crate) fn settle(&mut self, error: &Sqlite) -> Settled {
        // A write was refused: the frame that commits is the last one, and was not reached.
        let unwritten = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
        let start = Instant::now();
        let mut round = 0;
        while start.elapsed() < self.shared.options.settle_for {
            // A connection whose COMMIT failed is not trusted any more.
            self.give_up();
            match self.look(unwritten) {
                Ok(Some(settled)) => {
                    tracing::warn!(?settled, "a failed COMMIT was looked into");
                    return settled;
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(error = %crate::error::message(&error), "looking into a failed COMMIT failed");
                }
            }
            round += 1;
            pause(round);
        }
        self.give_up();
        Settled::Unknown
    }

    /// `None`: not to be said yet.
    fn look(&mut self, unwritten: bool) -> Result<Option<Settled>, Sqlite> {
        self.connect()?;
        let Some(guarded) = &self.connection else {
            return Ok(None);
        };
        let found: Option<i64> = guarded
            .sqlite
            .query_row(
                "SELECT sequence FROM counterfoil_writers WHERE id = ?1",
                [self.writer_id],
                |row| row.get(0),
            )
            .optional()?;
        match found {
            Some(found) if found < self.sequence && unwritten => Ok(Some(Settled::DidNot)),
            Some(found) if found < self.sequence => {
                // Its frames may stand in the log behind the last commit, where a crash could
                // bring them back. The next transaction overwrites them: make one now.
                self.sequence += 1;
                guarded.sqlite.execute(
                    "UPDATE counterfoil_writers SET sequence = ?1 WHERE id = ?2",
                    [self.sequence, self.writer_id],
                )?;
                Ok(Some(Settled::DidNot))
            }
            // Visible is not yet durable: it was the flush that may have failed. Copying the log
            // into the database file writes and flushes it again, in another place.
            Some(found) if found == self.sequence => {
                let blocked: bool =
                    guarded
                        .sqlite
                        .query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get(0))?;
                Ok((!blocked).then_some(Settled::TookEffect))
            }
            // Somebody removed or changed the row: there is nothing to go by.
            Some(_) | None => Ok(Some(Settled::Unknown)),
        }
    }
}
