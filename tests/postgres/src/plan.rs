//! What a proxy does to the next commits.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What happens to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    CutAfter,
    CutBefore,
    Hold(Duration),
}

/// A fault for commits to come: which one, in which transactions, how often.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) fault: Fault,
    word: Vec<u8>,
    skip: usize,
    times: usize,
}

impl Plan {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            word: Vec::new(),
            skip: 0,
            times: 1,
        }
    }

    /// The commit happens, and the connection is cut in both directions before a byte of its
    /// answer reaches the client. A commit that the server refuses is passed on, and not counted.
    #[must_use]
    pub fn cut_after_commit() -> Self {
        Self::new(Fault::CutAfter)
    }

    /// The connection is cut in both directions, and the commit never reaches the server.
    #[must_use]
    pub fn cut_before_commit() -> Self {
        Self::new(Fault::CutBefore)
    }

    /// The client is cut off at once; the server gets the commit only after this long, on a
    /// connection that has stayed open: an old backend that commits late.
    #[must_use]
    pub fn hold_commit(hold: Duration) -> Self {
        Self::new(Fault::Hold(hold))
    }

    /// Only transactions that contain this text, in a statement or in a parameter sent as text.
    #[must_use]
    pub fn containing(mut self, word: &str) -> Self {
        self.word = word.as_bytes().to_vec();
        self
    }

    /// Lets this many matching commits pass first.
    #[must_use]
    pub fn skipping(mut self, commits: usize) -> Self {
        self.skip = commits;
        self
    }

    /// At most this often; once, unless said.
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }
}

/// A plan at work.
pub(crate) struct Active {
    plan: Plan,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    skipped: usize,
    /// Taken by a commit under way, or applied.
    taken: usize,
    applied: usize,
    late: usize,
    cancelled: bool,
}

impl Active {
    pub(crate) fn new(plan: Plan) -> Arc<Self> {
        Arc::new(Self {
            plan,
            progress: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Claims this commit for the plan.
    pub(crate) fn take(self: &Arc<Self>, transaction: &[u8]) -> Option<Armed> {
        let word = &self.plan.word;
        let wanted = word.is_empty() || transaction.windows(word.len()).any(|part| part == word);
        let mut progress = self.progress();
        if !wanted || progress.cancelled || progress.taken >= self.plan.times {
            return None;
        }
        if progress.skipped < self.plan.skip {
            progress.skipped += 1;
            return None;
        }
        progress.taken += 1;
        Some(Armed {
            plan: Arc::clone(self),
            applied: false,
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, what: impl FnOnce(&mut Progress)) {
        what(&mut self.progress());
        self.changed.notify_all();
    }
}

/// A commit that a plan waits for. Handed back to the plan if it comes to nothing.
pub(crate) struct Armed {
    plan: Arc<Active>,
    applied: bool,
}

impl Armed {
    pub(crate) fn fault(&self) -> Fault {
        self.plan.plan.fault
    }

    /// Cuts the connection, and counts it. Whoever sees the one sees the other.
    pub(crate) fn apply(&mut self, cut: impl FnOnce()) {
        self.applied = true;
        self.plan.change(|progress| {
            cut();
            progress.applied += 1;
        });
    }

    /// A held commit was carried out.
    pub(crate) fn late(self) {
        self.plan.change(|progress| progress.late += 1);
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if !self.applied {
            self.plan.change(|progress| progress.taken -= 1);
        }
    }
}

/// How far a plan has come.
#[derive(Clone)]
pub struct Applied(pub(crate) Arc<Active>);

impl Applied {
    /// How often it was applied: connections that were cut.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.progress().applied
    }

    /// How many held commits the server has carried out since.
    #[must_use]
    pub fn late_commits(&self) -> usize {
        self.0.progress().late
    }

    /// Waits until it was applied this often.
    ///
    /// # Panics
    /// If that takes longer than a minute.
    pub fn wait(&self, times: usize) {
        self.wait_until("applied", |progress| progress.applied >= times);
    }

    /// Waits until the server has carried out this many held commits.
    ///
    /// # Panics
    /// If that takes longer than a minute.
    pub fn wait_late(&self, times: usize) {
        self.wait_until("committed late", |progress| progress.late >= times);
    }

    /// Takes the plan back: no further commit is touched.
    pub fn cancel(&self) {
        self.0.change(|progress| progress.cancelled = true);
    }

    fn wait_until(&self, what: &str, done: impl Fn(&Progress) -> bool) {
        let started = Instant::now();
        let mut progress = self.0.progress();
        while !done(&progress) {
            let left = Duration::from_secs(60).saturating_sub(started.elapsed());
            assert!(
                !left.is_zero(),
                "{:?}: not {what} after a minute",
                self.0.plan
            );
            let waited = self.0.changed.wait_timeout(progress, left);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
