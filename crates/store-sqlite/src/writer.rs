use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use counterfoil_store::Error;
use rusqlite::Error as Sqlite;

use crate::{
    connection::{Guarded, Place, pause},
    error::{is_busy, is_constraint, map},
    fault::Point,
    handler::ended,
    queue::{Job, Queue, as_f64},
    scopes::Scope,
    settle::Settled,
    tx::{Shared, Tx},
};

/// How long another process counts as writing after it was seen to.
const CONTENDED_FOR: Duration = Duration::from_secs(1);
/// A pause before the next try, after the database could not be opened or locked.
const AFTER_FAILURE: Duration = Duration::from_millis(20);
/// A batch takes no further member once it ran this long. So what is most urgent waits for the
/// batch that runs and then for its own: for two handlers of an application at the longest, each
/// no longer than its limit.
const BATCH_TIME: Duration = Duration::from_millis(20);
/// How often a step whose COMMIT failed, and is known not to have taken effect, is run in all.
const TRIES: u32 = 2;

/// The one thread that writes.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) place: Place,
    pub(crate) connection: Option<Guarded>,
    pub(crate) writer_id: i64,
    /// The number of the latest transaction, in the row of this writer.
    pub(crate) sequence: i64,
    data_version: Option<i64>,
    contended_at: Option<Instant>,
    pauses: u32,
}

/// What became of a transaction.
enum Attempt {
    Committed,
    /// It was rolled back; the error is the culprit's, if it was alone.
    Broken(Error),
    /// Its COMMIT failed, and is known not to have taken effect.
    NotCommitted(Error),
    /// Nobody can say.
    Unknown,
}

impl Writer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        queue: Arc<Queue>,
        place: Place,
        connection: Guarded,
        writer_id: i64,
    ) -> Self {
        Self {
            shared,
            queue,
            place,
            connection: Some(connection),
            writer_id,
            sequence: 0,
            data_version: None,
            contended_at: None,
            pauses: std::process::id(),
        }
    }

    /// Runs until the store is closed and everything waiting is answered.
    pub(crate) fn run(mut self) {
        let queue = Arc::clone(&self.queue);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            while self.queue.wait() {
                self.turn();
            }
            self.sign_off();
        }));
        if ran.is_err() {
            tracing::error!("the writer of the receipt store panicked; the store is closed");
        }
        queue.abandon();
    }

    /// One batch: open the transaction first, then take who is waiting by then.
    fn turn(&mut self) {
        if let Err(error) = self.shared.presence.look().and_then(|()| self.connect()) {
            return self.refuse_all(&error);
        }
        let queue = Arc::clone(&self.queue);
        let closing = self.shared.options.lock_patience;
        let begun = self.begin(|| {
            let over = queue.closed_at().is_some_and(|at| at.elapsed() > closing);
            queue.expire() && !over
        });
        match begun {
            Ok(true) => {}
            Ok(false) => {
                let over = queue.closed_at().is_some_and(|at| at.elapsed() > closing);
                if over {
                    queue.abandon();
                }
                return;
            }
            Err(error) => {
                self.give_up();
                return self.refuse_all(&error);
            }
        }
        let batch = self.queue.take(self.shared.options.batch_max);
        if batch.is_empty() {
            return self.roll_back();
        }
        self.together(batch);
        self.let_others_in();
    }

    /// Nothing can be written now: who is waiting is told so.
    fn refuse_all(&mut self, error: &Sqlite) {
        let error = map(error);
        tracing::warn!(%error, "the receipt store cannot write");
        self.shared.writing.fails(&error);
        for job in self.queue.take(self.shared.options.batch_max) {
            job.member.fail(error.clone());
        }
        std::thread::sleep(AFTER_FAILURE);
    }

    /// The connection, opened again if it was given up.
    pub(crate) fn connect(&mut self) -> Result<(), Sqlite> {
        if self.connection.is_none() {
            self.shared.seam.at(Point::Reopen)?;
            self.connection = Some(self.place.writer(&self.shared.options)?);
            self.data_version = None;
        }
        Ok(())
    }

    /// Closes the connection; the next step opens another one.
    pub(crate) fn give_up(&mut self) {
        // If it was the last one, its log goes with it.
        self.shared.presence.forget_log();
        self.connection = None;
    }

    fn guarded(&mut self) -> Result<&mut Guarded, Sqlite> {
        self.connect()?;
        self.connection.as_mut().ok_or(Sqlite::InvalidQuery)
    }

    /// Begins a transaction; polls while another process has one and `waits` says so. `false` if
    /// it was not begun.
    fn begin(&mut self, mut waits: impl FnMut() -> bool) -> Result<bool, Sqlite> {
        loop {
            self.shared.seam.at(Point::Begin)?;
            let begun = self
                .guarded()?
                .sqlite
                .prepare_cached("BEGIN IMMEDIATE")
                .and_then(|mut begin| begin.execute([]));
            match begun {
                Ok(_) => {
                    self.look_around()?;
                    return Ok(true);
                }
                Err(error) if is_busy(&error) => {
                    if !waits() {
                        return Ok(false);
                    }
                    self.pauses = self.pauses.wrapping_add(1);
                    pause(self.pauses);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether another connection has written since the last transaction.
    fn look_around(&mut self) -> Result<(), Sqlite> {
        let version: i64 = self
            .guarded()?
            .sqlite
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get(0))?;
        let before = self.data_version.replace(version);
        if before.is_some_and(|before| before != version) {
            self.contended_at = Some(Instant::now());
        }
        self.shared.presence.see_log();
        Ok(())
    }

    /// A writer that polls for the lock would hardly ever find it free between two batches.
    fn let_others_in(&mut self) {
        if self
            .contended_at
            .is_some_and(|at| at.elapsed() < CONTENDED_FOR)
        {
            self.pauses = self.pauses.wrapping_add(1);
            pause(self.pauses);
        }
    }

    pub(crate) fn roll_back(&mut self) {
        let Some(guarded) = &self.connection else {
            return;
        };
        if guarded.sqlite.is_autocommit() {
            return;
        }
        if guarded.sqlite.execute_batch("ROLLBACK").is_err() {
            // Closing it ends whatever it still holds.
            self.give_up();
        }
    }

    /// Runs a batch in the transaction that is open.
    fn together(&mut self, mut batch: Vec<Job>) {
        let (ran, attempt) = self.attempt(&mut batch);
        metrics::histogram!("counterfoil_store_batch_size").record(as_f64(ran));
        self.queue.put_back(batch.split_off(ran));
        match &attempt {
            Attempt::Committed => self.shared.writing.works(),
            Attempt::Broken(error) | Attempt::NotCommitted(error) => {
                self.shared.writing.fails(error);
            }
            Attempt::Unknown => self.shared.writing.fails(&Error::CommitUnknown),
        }
        match attempt {
            Attempt::Committed => answer(batch),
            Attempt::Broken(error) if batch.len() == 1 => fail(batch, &error),
            Attempt::Broken(_) => self.separate(batch),
            Attempt::NotCommitted(error) if batch.len() == 1 => {
                for job in &mut batch {
                    job.failures += 1;
                }
                if batch.iter().any(|job| job.failures >= TRIES) {
                    fail(batch, &error);
                } else {
                    self.separate(batch);
                }
            }
            Attempt::NotCommitted(_) => self.separate(batch),
            Attempt::Unknown => fail(batch, &Error::CommitUnknown),
        }
    }

    /// Nobody is answered from a transaction that was not committed: each of its members is run
    /// again in one of its own, and decided again. They go through the queue, so that completions
    /// that came meanwhile go first.
    fn separate(&self, mut batch: Vec<Job>) {
        for job in &mut batch {
            job.alone = true;
        }
        self.queue.put_back(batch);
    }

    /// Runs steps in the transaction that is open, as many as fit into [`BATCH_TIME`], and commits
    /// it. How many were run, and what became of them.
    fn attempt(&mut self, jobs: &mut [Job]) -> (usize, Attempt) {
        self.sequence += 1;
        match self.run_members(jobs) {
            Ok((ran, created)) => (ran, self.finish(created)),
            Err((ran, error)) => {
                self.roll_back();
                (ran, Attempt::Broken(error))
            }
        }
    }

    fn finish(&mut self, created: HashMap<String, Scope>) -> Attempt {
        let start = Instant::now();
        let committed = self.commit();
        metrics::histogram!("counterfoil_store_commit_seconds").record(start.elapsed());
        match committed {
            Ok(()) => {}
            Err(error) if self.is_open() => {
                self.roll_back();
                return if is_constraint(&error) {
                    Attempt::Broken(map(&error))
                } else {
                    Attempt::NotCommitted(map(&error))
                };
            }
            Err(error) => match self.settle(&error) {
                Settled::TookEffect => {}
                Settled::DidNot => return Attempt::NotCommitted(map(&error)),
                Settled::Unknown => return Attempt::Unknown,
            },
        }
        for (name, scope) in created {
            self.shared.scopes.put(name, scope);
        }
        Attempt::Committed
    }

    fn is_open(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|guarded| !guarded.sqlite.is_autocommit())
    }

    #[allow(clippy::type_complexity, reason = "one caller")]
    fn run_members(
        &mut self,
        jobs: &mut [Job],
    ) -> Result<(usize, HashMap<String, Scope>), (usize, Error)> {
        let shared = Arc::clone(&self.shared);
        let (writer_id, sequence) = (self.writer_id, self.sequence);
        let all = jobs.len();
        let guarded = self.guarded().map_err(|error| (all, map(&error)))?;
        let mut tx = Tx::new(guarded, &shared);
        let start = Instant::now();
        let mut ran = 0;
        for job in jobs {
            if ran > 0 && start.elapsed() > BATCH_TIME {
                break;
            }
            ran += 1;
            if let Err(error) = shared.seam.at(Point::Member) {
                // What SQLite does by itself when the disk is full.
                let _ = tx.sqlite().execute_batch("ROLLBACK");
                return Err((ran, map(&error)));
            }
            job.member.run(&mut tx).map_err(|error| (ran, error))?;
            if tx.has_ended() {
                return Err((ran, ended()));
            }
        }
        tx.seal(writer_id, sequence)
            .map_err(|error| (ran, map(&error)))?;
        Ok((ran, tx.into_created()))
    }

    fn commit(&mut self) -> Result<(), Sqlite> {
        let shared = Arc::clone(&self.shared);
        let sqlite = &self.guarded()?.sqlite;
        if let Err(error) = shared.seam.at(Point::Commit) {
            sqlite.execute_batch("ROLLBACK")?;
            return Err(error);
        }
        sqlite.prepare_cached("COMMIT")?.execute([])?;
        shared.seam.at(Point::Committed)
    }

    /// This writer will not be asked about its last transaction any more.
    fn sign_off(&mut self) {
        let id = self.writer_id;
        if let Ok(guarded) = self.guarded() {
            let forgotten = guarded
                .sqlite
                .execute("DELETE FROM counterfoil_writers WHERE id = ?1", [id]);
            if let Err(error) = forgotten {
                tracing::debug!(error = %crate::error::message(&error), "the writer's row stays");
            }
        }
        self.give_up();
    }
}

fn answer(jobs: Vec<Job>) {
    for job in jobs {
        job.member.answer();
    }
}

fn fail(jobs: Vec<Job>, error: &Error) {
    for job in jobs {
        job.member.fail(error.clone());
    }
}
