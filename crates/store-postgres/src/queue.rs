use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use counterfoil_core::{Decision, Event, OperationId, Receipt, Timestamp};
use counterfoil_store::{Admission, Completion, Error, Fence, Found};
use tokio::sync::{Notify, oneshot};

use crate::error::busy;

/// Turns that a lane gives its callers between two batches.
const TURNS: usize = 16;
/// Stored answers in one batch, in bytes, before it is sent: it must be through in good time.
const BATCH_BYTES: usize = 4 << 20;

/// A request to run that waits for a lane.
pub(crate) struct Entry {
    pub(crate) admission: Admission,
    pub(crate) wait: Wait<Entered>,
}

/// What an admission comes to.
#[derive(Debug)]
pub(crate) enum Entered {
    Run(Reserved),
    Decided(Decision, Box<Found>),
    Held,
}

/// A reservation, before its slot is put to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(crate) fence: Fence,
    pub(crate) round: u16,
    pub(crate) lease_until: Timestamp,
    pub(crate) hard_deadline: Timestamp,
}

/// Something learned of an operation that waits for a lane.
pub(crate) struct Lesson {
    pub(crate) operation_id: OperationId,
    pub(crate) what: Learn,
    pub(crate) wait: Wait<Learned>,
}

pub(crate) enum Learn {
    Complete(Fence, Box<Completion>),
    Renew(Fence, Timestamp, Duration),
    Record {
        event: Event,
        at: Timestamp,
        reason: String,
        evidence: Option<String>,
    },
}

impl Learn {
    fn bytes(&self) -> usize {
        match self {
            Self::Complete(_, completion) => completion
                .reply
                .as_ref()
                .map_or(0, |stored| stored.reply.body.len()),
            Self::Renew(..) | Self::Record { .. } => 0,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Learned {
    Receipt(Box<Receipt>),
    Until(Timestamp),
}

/// Who waits, and for how long.
pub(crate) struct Wait<T> {
    reply: oneshot::Sender<Result<T, Error>>,
    deadline: Instant,
    /// A commit that it was in may have taken effect.
    in_doubt: bool,
    /// Why it has not been done yet.
    because: Option<Error>,
    /// How often it found its row held by another transaction.
    pub(crate) held: u32,
}

impl<T> Wait<T> {
    pub(crate) fn new(patience: Duration) -> (Self, oneshot::Receiver<Result<T, Error>>) {
        let (reply, answer) = oneshot::channel();
        let now = Instant::now();
        let wait = Self {
            reply,
            // A patience beyond the clock's range is a day.
            deadline: now
                .checked_add(patience)
                .unwrap_or(now + Duration::from_secs(86_400)),
            in_doubt: false,
            because: None,
            held: 0,
        };
        (wait, answer)
    }

    pub(crate) fn say(self, said: Result<T, Error>) {
        // Whoever stopped waiting finds the answer in the receipt.
        let _ = self.reply.send(said);
    }

    /// Ends it without success.
    pub(crate) fn fail(self, because: Error) {
        let said = if self.in_doubt {
            Error::CommitUnknown
        } else {
            because
        };
        self.say(Err(said));
    }

    pub(crate) const fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Gives it back to the queue, or answers it if its time is over.
    pub(crate) fn again(mut self, because: Error, in_doubt: bool) -> Option<Self> {
        self.in_doubt |= in_doubt;
        if Instant::now() < self.deadline {
            self.because = Some(because);
            return Some(self);
        }
        self.fail(because);
        None
    }

    /// Nobody waits for it any more.
    fn is_unwanted(&self) -> bool {
        self.reply.is_closed()
    }

    /// Answers it if its time was over before a lane was free.
    fn in_time(mut self) -> Option<Self> {
        if Instant::now() < self.deadline {
            return Some(self);
        }
        let because = self.because.take().unwrap_or_else(busy);
        self.again(because, false)
    }
}

/// Says busy, and counts it.
pub(crate) fn say_busy() -> Error {
    metrics::counter!("counterfoil_store_busy_total").increment(1);
    busy()
}

/// What one transaction of a lane does.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) lessons: Vec<Lesson>,
    pub(crate) entries: Vec<Entry>,
}

impl Batch {
    pub(crate) const fn len(&self) -> usize {
        self.lessons.len() + self.entries.len()
    }
}

/// What waits for the lanes. Lessons go before requests to run: they end something.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    entries_max: usize,
    batch_max: usize,
}

#[derive(Default)]
struct Waiting {
    lessons: VecDeque<Lesson>,
    entries: VecDeque<Entry>,
    /// Batches that come back in a moment.
    away: usize,
    closed: bool,
}

impl Queue {
    pub(crate) fn new(entries_max: usize, batch_max: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            arrived: Notify::new(),
            entries_max,
            batch_max: batch_max.max(1),
        }
    }

    /// # Errors
    /// Busy beyond the bound, Unavailable once the store is closed.
    pub(crate) fn enter(&self, entry: Entry) -> Result<(), Error> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(closed());
        }
        if waiting.entries.len() >= self.entries_max {
            return Err(say_busy());
        }
        waiting.entries.push_back(entry);
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// Bounded by the reservations there are: each has one completion and one renewal under way.
    ///
    /// # Errors
    /// Unavailable once the store is closed.
    pub(crate) fn learn(&self, lesson: Lesson) -> Result<(), Error> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(closed());
        }
        waiting.lessons.push_back(lesson);
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// A batch is put back in a moment; a store that is closed waits for it.
    pub(crate) fn expect_back(&self) {
        self.lock().away += 1;
    }

    /// The batch of [`Queue::expect_back`].
    pub(crate) fn is_back(&self, batch: Batch) {
        self.put_back(batch);
        self.lock().away -= 1;
        self.arrived.notify_one();
    }

    /// Puts back what could not be done yet, before what came later.
    pub(crate) fn put_back(&self, batch: Batch) {
        if batch.len() == 0 {
            return;
        }
        let mut waiting = self.lock();
        for lesson in batch.lessons.into_iter().rev() {
            waiting.lessons.push_front(lesson);
        }
        for entry in batch.entries.into_iter().rev() {
            waiting.entries.push_front(entry);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// The next batch, after one of `answered` members: they have just been woken, and most of them
    /// have more to ask. Each turn of the runtime lets some of them say so; without it, the first
    /// one would get a batch, and a commit, of its own.
    pub(crate) async fn take_after(&self, answered: usize) -> Option<Batch> {
        for _ in 0..TURNS {
            if self.depth() * 4 >= u64::try_from(answered).unwrap_or(u64::MAX) * 3 {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.take().await
    }

    /// The next batch: what waits now, without waiting for more. `None` once the store is closed
    /// and nothing waits.
    pub(crate) async fn take(&self) -> Option<Batch> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut waiting = self.lock();
                let mut batch = Batch::default();
                let mut bytes = 0;
                while batch.len() < self.batch_max && bytes < BATCH_BYTES {
                    if let Some(Lesson {
                        operation_id,
                        what,
                        wait,
                    }) = waiting.lessons.pop_front()
                    {
                        bytes += what.bytes();
                        batch.lessons.extend(wait.in_time().map(|wait| Lesson {
                            operation_id,
                            what,
                            wait,
                        }));
                    } else if let Some(Entry { admission, wait }) = waiting.entries.pop_front() {
                        if wait.is_unwanted() {
                            continue;
                        }
                        batch
                            .entries
                            .extend(wait.in_time().map(|wait| Entry { admission, wait }));
                    } else {
                        break;
                    }
                }
                if batch.len() > 0 {
                    // Another lane may take what is left.
                    if !waiting.lessons.is_empty() || !waiting.entries.is_empty() {
                        self.arrived.notify_one();
                    }
                    return Some(batch);
                }
                if waiting.closed && waiting.away == 0 {
                    self.arrived.notify_one();
                    return None;
                }
            }
            arrived.await;
        }
    }

    pub(crate) fn depth(&self) -> u64 {
        let waiting = self.lock();
        let depth = waiting.lessons.len() + waiting.entries.len();
        u64::try_from(depth).unwrap_or(u64::MAX)
    }

    /// Nothing new from now on.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_waiters();
        self.arrived.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn closed() -> Error {
    Error::Unavailable("the store is closed".to_owned())
}
