use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use counterfoil_store::Error;
use tokio::sync::oneshot;

use crate::{
    Options,
    error::busy,
    tx::{Halt, Stepped, Tx},
};

/// What goes first. Completions before everything, so that what has happened becomes durable
/// whatever else is waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Evidence about an attempt. Never answered `Busy`.
    Complete = 0,
    /// A lease to extend.
    Renew = 1,
    /// Lapsed leases, resolutions, sweeps, notes.
    Upkeep = 2,
    /// New work.
    Enter = 3,
}

const CLASSES: usize = 4;

/// One caller's step. It may run again, if the transaction it was in was not committed.
pub(crate) trait Member: Send {
    /// Runs it and keeps its answer. `Err`: the transaction is not to be committed.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Error>;
    /// Tells the caller what the last run came to.
    fn answer(self: Box<Self>);
    /// Tells the caller something else.
    fn fail(self: Box<Self>, error: Error);
    /// The caller is gone.
    fn is_abandoned(&self) -> bool;
}

/// A step with the way back to its caller.
pub(crate) struct Call<T, F> {
    step: F,
    output: Option<Result<T, Error>>,
    reply: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Call<T, F> {
    pub(crate) fn new(step: F, reply: oneshot::Sender<Result<T, Error>>) -> Self {
        Self {
            step,
            output: None,
            reply,
        }
    }
}

impl<T, F> Member for Call<T, F>
where
    T: Send,
    F: FnMut(&mut Tx<'_>) -> Stepped<T> + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), Error> {
        self.output = None;
        match (self.step)(tx) {
            Ok(output) => self.output = Some(Ok(output)),
            Err(Halt::Said(error)) => self.output = Some(Err(error)),
            Err(Halt::Broke(error)) => return Err(error),
        }
        Ok(())
    }

    fn answer(self: Box<Self>) {
        // A step that did not run has been told so before.
        if let Some(output) = self.output {
            // The caller may have gone away; what is written stays written.
            let _ = self.reply.send(output);
        }
    }

    fn fail(self: Box<Self>, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

/// A waiting step.
pub(crate) struct Job {
    pub(crate) class: Class,
    /// After it, the step is answered `Busy` instead of being run. None for completions.
    pub(crate) deadline: Option<Instant>,
    /// It was in a transaction that was not committed, so now it runs in one of its own.
    pub(crate) alone: bool,
    /// How often its own transaction failed to commit.
    pub(crate) failures: u32,
    pub(crate) member: Box<dyn Member>,
}

impl Job {
    fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Nothing of it was done, and nobody waits for it. A completion is recorded all the same.
    fn is_moot(&self) -> bool {
        self.class != Class::Complete && self.member.is_abandoned()
    }
}

/// Says `Busy`, and counts it.
pub(crate) fn say_busy() -> Error {
    metrics::counter!("counterfoil_store_busy_total").increment(1);
    busy()
}

#[derive(Default)]
struct Lanes {
    lanes: [VecDeque<Job>; CLASSES],
    closed: Option<Instant>,
}

impl Lanes {
    fn depth(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }
}

/// The bounded queue before the writer.
pub(crate) struct Queue {
    lanes: Mutex<Lanes>,
    arrived: Condvar,
    queue_max: usize,
    slots_max: usize,
}

impl Queue {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            lanes: Mutex::default(),
            arrived: Condvar::new(),
            queue_max: options.queue_max,
            slots_max: options.slots_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a step.
    ///
    /// # Errors
    /// `Busy` if the queue is full, `Unavailable` if the store is closed.
    pub(crate) fn push(&self, job: Job) -> Result<(), Error> {
        let mut lanes = self.lock();
        if lanes.closed.is_some() {
            return Err(closed());
        }
        let lane = &mut lanes.lanes[job.class as usize];
        // A completion holds the slot booked at its admission, or is late evidence, so its lane
        // has room for all of them. New work has the rest.
        let max = match job.class {
            Class::Complete | Class::Renew => self.slots_max.saturating_add(self.queue_max),
            Class::Upkeep | Class::Enter => self.queue_max,
        };
        if lane.len() >= max {
            return Err(say_busy());
        }
        lane.push_back(job);
        drop(lanes);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for a step. `false` once the store is closed and nothing is left.
    pub(crate) fn wait(&self) -> bool {
        let mut lanes = self.lock();
        while lanes.depth() == 0 {
            if lanes.closed.is_some() {
                return false;
            }
            lanes = self
                .arrived
                .wait(lanes)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// The most urgent steps, at most `max`. Those whose patience is over are answered `Busy`.
    pub(crate) fn take(&self, max: usize) -> Vec<Job> {
        let now = Instant::now();
        let mut taken = Vec::new();
        let mut late = Vec::new();
        let mut lanes = self.lock();
        'full: for lane in &mut lanes.lanes {
            while let Some(job) = lane.pop_front() {
                if job.is_moot() {
                    continue;
                }
                if job.is_late(now) {
                    late.push(job);
                    continue;
                }
                if taken.len() == max || (job.alone && !taken.is_empty()) {
                    lane.push_front(job);
                    break 'full;
                }
                let alone = job.alone;
                taken.push(job);
                if alone {
                    break 'full;
                }
            }
        }
        let left = lanes.depth();
        drop(lanes);
        metrics::gauge!("counterfoil_store_queue_depth").set(as_f64(left));
        refuse(late);
        taken
    }

    /// Puts steps that were taken and not run back to where they were, in their order.
    pub(crate) fn put_back(&self, jobs: Vec<Job>) {
        let mut lanes = self.lock();
        for job in jobs.into_iter().rev() {
            lanes.lanes[job.class as usize].push_front(job);
        }
    }

    /// Answers `Busy` to those whose patience is over; whether anybody still waits.
    pub(crate) fn expire(&self) -> bool {
        let now = Instant::now();
        let mut late = Vec::new();
        let mut lanes = self.lock();
        for lane in &mut lanes.lanes {
            let mut index = 0;
            while let Some(job) = lane.get(index) {
                if job.is_late(now) || job.is_moot() {
                    late.extend(lane.remove(index));
                } else {
                    index += 1;
                }
            }
        }
        let waiting = lanes.depth() > 0;
        drop(lanes);
        refuse(late);
        waiting
    }

    /// No new steps from now on; those waiting are still run.
    pub(crate) fn close(&self) {
        let mut lanes = self.lock();
        lanes.closed.get_or_insert_with(Instant::now);
        drop(lanes);
        self.arrived.notify_all();
    }

    /// When it was closed.
    pub(crate) fn closed_at(&self) -> Option<Instant> {
        self.lock().closed
    }

    /// The end: nobody will run what is left.
    pub(crate) fn abandon(&self) {
        self.close();
        let left: Vec<Job> = {
            let mut lanes = self.lock();
            lanes.lanes.iter_mut().flat_map(std::mem::take).collect()
        };
        for job in left {
            job.member.fail(closed());
        }
    }

    pub(crate) fn depth(&self) -> u64 {
        u64::try_from(self.lock().depth()).unwrap_or(u64::MAX)
    }
}

fn closed() -> Error {
    Error::Unavailable("the store is closed".to_owned())
}

fn refuse(late: Vec<Job>) {
    for job in late {
        job.member.fail(say_busy());
    }
}

/// For metrics, where the last digit of a very large number does not count.
#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) fn as_f64(count: usize) -> f64 {
    count as f64
}
