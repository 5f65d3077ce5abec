use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::{Notify, futures::Notified},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::CHUNK_BYTES;

/// A line at least this long is written by itself, without being copied.
const ALONE_BYTES_MIN: usize = 16 << 10;

/// How much may wait in an [`Outbox`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Lines.
    pub(crate) lines_max: usize,
    /// Bytes. A single line may be longer than that.
    pub(crate) bytes_max: usize,
    /// For how long [`Outbox::offer`] waits for room. It counts from when there was none first,
    /// and anew only once half is free: a reader that takes a line now and then, or none, delays
    /// those who write to it once, not at each line.
    pub(crate) patience: Duration,
}

impl Default for Bounds {
    /// 1,024 lines, 16 MiB, 5 s.
    fn default() -> Self {
        Self {
            lines_max: 1024,
            bytes_max: 16 << 20,
            patience: Duration::from_secs(5),
        }
    }
}

/// What goes with a line, and learns what becomes of it.
pub(crate) trait Tag: Send + 'static {
    /// The line was written and flushed.
    fn flushed(self);
}

/// One line, without its end.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    /// The line; has no line end in it.
    pub(crate) text: Bytes,
    /// Whoever wants to know what became of it.
    pub(crate) tag: T,
}

/// Why a line was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There was no room for as long as one waits.
    Full,
    /// The stream is closed, or broken. Nothing of the line was written.
    Ended,
}

/// How an outbox ended.
#[derive(Debug)]
pub(crate) struct Ended<T> {
    /// The tags of the lines of which not one byte was written, in their order. A line that is
    /// neither here nor was flushed may have been written, in part or whole.
    pub(crate) unsent: Vec<T>,
    /// Why.
    pub(crate) why: Why,
}

/// Why an outbox ended.
#[derive(Debug)]
pub(crate) enum Why {
    /// It was closed, and everything was written.
    Closed,
    /// [`Outbox::abort`].
    Aborted,
    /// The stream takes no more.
    Broken(io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// No more lines are taken; those that wait are written.
    Closing,
    Ended,
}

struct State<T> {
    /// Not yet taken by the drain.
    queue: VecDeque<Entry<T>>,
    /// Not yet written, those that the drain took among them.
    lines: usize,
    /// The same in bytes, line ends not counted.
    bytes: usize,
    /// When there was no room first since half was free.
    full_since: Option<Instant>,
    phase: Phase,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    bounds: Bounds,
    /// There is something to do for the drain.
    work: Notify,
    /// There may be room.
    room: Notify,
    abort: CancellationToken,
    ended: CancellationToken,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bounded queue of lines in front of a stream. One task, [`Drain::run`], writes what waits in
/// it, as much as there is in one write.
///
/// ```text
/// let (outbox, drain) = Outbox::new(stdin, Bounds::default());
/// tokio::spawn(drain.run());
/// outbox.put(answer)?;            // needs no room
/// outbox.offer(notice).await?;    // waits for it, within a bound
/// outbox.close();                 // the rest is written, then the stream is shut down
/// ```
///
/// Dropping it closes it.
pub(crate) struct Outbox<T>(Arc<Shared<T>>);

impl<T: Tag> Outbox<T> {
    /// An outbox, and what must run for it.
    pub(crate) fn new<W>(writer: W, bounds: Bounds) -> (Self, Drain<W, T>)
    where
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                lines: 0,
                bytes: 0,
                full_since: None,
                phase: Phase::Open,
            }),
            bounds,
            work: Notify::new(),
            room: Notify::new(),
            abort: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        let drain = Drain {
            shared: Arc::clone(&shared),
            writer,
            buffer: Vec::new(),
            gathered: Vec::new(),
        };
        (Self(shared), drain)
    }

    /// Takes a line whether there is room or not. For what is bounded by other means, such as
    /// answers by the requests under way.
    ///
    /// # Errors
    /// The line, if the stream takes no more.
    pub(crate) fn put(&self, entry: Entry<T>) -> Result<(), Entry<T>> {
        let mut state = self.0.state();
        if state.phase != Phase::Open {
            return Err(entry);
        }
        self.push(&mut state, entry);
        Ok(())
    }

    /// As [`Outbox::put`], within so many times the bounds.
    ///
    /// # Errors
    /// The line and why.
    pub(crate) fn put_within(&self, times: usize, entry: Entry<T>) -> Result<(), Left<T>> {
        let mut state = self.0.state();
        if state.phase != Phase::Open {
            return Err(Left::new(entry, Refused::Ended));
        }
        if !has_room(&state, self.0.bounds, times, entry.text.len()) {
            return Err(Left::new(entry, Refused::Full));
        }
        self.push(&mut state, entry);
        Ok(())
    }

    /// Takes a line as soon as there is room. If there is some now, it is taken before this is
    /// first waited for.
    ///
    /// # Errors
    /// The line and why.
    pub(crate) async fn offer(&self, entry: Entry<T>) -> Result<(), Left<T>> {
        let mut entry = match self.put_within(1, entry) {
            Ok(()) => return Ok(()),
            Err(left) if left.why == Refused::Ended => return Err(left),
            Err(left) => left.entry,
        };
        let patience = self.0.bounds.patience;
        let longest = Instant::now() + patience;
        loop {
            let room = self.0.room.notified();
            tokio::pin!(room);
            // Before the look, so that room made right after it is not missed.
            room.as_mut().enable();
            let until = {
                let mut state = self.0.state();
                let since = *state.full_since.get_or_insert_with(Instant::now);
                longest.min(since + patience)
            };
            entry = match self.put_within(1, entry) {
                Ok(()) => return Ok(()),
                Err(left) if left.why == Refused::Ended => return Err(left),
                Err(left) if until <= Instant::now() => return Err(left),
                Err(left) => left.entry,
            };
            self.wait(room, until).await;
        }
    }

    async fn wait(&self, room: std::pin::Pin<&mut Notified<'_>>, until: Instant) {
        tokio::select! {
            () = room => {}
            () = self.0.ended.cancelled() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }

    fn push(&self, state: &mut State<T>, entry: Entry<T>) {
        state.lines += 1;
        state.bytes += entry.text.len();
        let idle = state.queue.is_empty();
        state.queue.push_back(entry);
        if idle {
            self.0.work.notify_one();
        }
    }

    /// No more lines are taken. Those that wait are written, then the stream is shut down.
    pub(crate) fn close(&self) {
        close(&self.0);
    }

    /// What waits is thrown away, a write under way is given up.
    pub(crate) fn abort(&self) {
        self.0.abort.cancel();
    }

    /// Completes when the stream takes no more, for whatever reason.
    pub(crate) async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// Lines that wait to be written.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let state = self.0.state();
        (state.lines, state.bytes)
    }
}

fn close<T>(shared: &Shared<T>) {
    let mut state = shared.state();
    if state.phase == Phase::Open {
        state.phase = Phase::Closing;
    }
    drop(state);
    shared.work.notify_one();
    shared.room.notify_waiters();
}

impl<T> Drop for Outbox<T> {
    fn drop(&mut self) {
        close(&self.0);
    }
}

/// A line that was not taken.
#[derive(Debug)]
pub(crate) struct Left<T> {
    /// The line.
    pub(crate) entry: Entry<T>,
    /// Why.
    pub(crate) why: Refused,
}

impl<T> Left<T> {
    fn new(entry: Entry<T>, why: Refused) -> Self {
        Self { entry, why }
    }
}

fn has_room<T>(state: &State<T>, bounds: Bounds, times: usize, bytes: usize) -> bool {
    let lines_max = bounds.lines_max.saturating_mul(times);
    let bytes_max = bounds.bytes_max.saturating_mul(times);
    state.lines == 0 || (state.lines < lines_max && state.bytes.saturating_add(bytes) <= bytes_max)
}

/// The writing side of an [`Outbox`].
pub(crate) struct Drain<W, T> {
    shared: Arc<Shared<T>>,
    writer: W,
    /// Short lines, put together.
    buffer: Vec<u8>,
    /// Where in the buffer each of them begins.
    gathered: Vec<(usize, T)>,
}

enum Stop {
    Aborted,
    Broken(io::Error),
}

impl<W: AsyncWrite + Unpin + Send + 'static, T: Tag> Drain<W, T> {
    /// Writes what comes until the outbox is closed or aborted, or the stream breaks.
    pub(crate) async fn run(mut self) -> Ended<T> {
        let mut unsent = Vec::new();
        let stop = self.write_all(&mut unsent).await;
        let rest = {
            let mut state = self.shared.state();
            state.phase = Phase::Ended;
            std::mem::take(&mut state.queue)
        };
        unsent.extend(rest.into_iter().map(|entry| entry.tag));
        self.shared.ended.cancel();
        let why = match stop {
            None => Why::Closed,
            Some(Stop::Aborted) => Why::Aborted,
            Some(Stop::Broken(error)) => Why::Broken(error),
        };
        Ended { unsent, why }
    }

    async fn write_all(&mut self, unsent: &mut Vec<T>) -> Option<Stop> {
        // The two queues change places: what is taken costs no copy, and neither is made anew.
        let mut batch = VecDeque::new();
        loop {
            let phase = {
                let mut state = self.shared.state();
                std::mem::swap(&mut state.queue, &mut batch);
                state.phase
            };
            if batch.is_empty() {
                if phase != Phase::Open {
                    return self.shut_down().await.err();
                }
                tokio::select! {
                    biased;
                    () = self.shared.work.notified() => {}
                    () = self.shared.abort.cancelled() => return Some(Stop::Aborted),
                }
            }
            while !batch.is_empty() {
                if let Err(stop) = self.write_some(&mut batch, unsent).await {
                    unsent.extend(batch.drain(..).map(|entry| entry.tag));
                    return Some(stop);
                }
            }
        }
    }

    /// Writes a long line, or as many short ones as fit in a chunk.
    async fn write_some(
        &mut self,
        batch: &mut VecDeque<Entry<T>>,
        unsent: &mut Vec<T>,
    ) -> Result<(), Stop> {
        let mut bytes = 0;
        while let Some(entry) = batch.front() {
            let fits = self.buffer.len() + entry.text.len() < CHUNK_BYTES;
            if entry.text.len() >= ALONE_BYTES_MIN || !fits {
                break;
            }
            let Some(Entry { text, tag }) = batch.pop_front() else {
                break;
            };
            bytes += text.len();
            self.gathered.push((self.buffer.len(), tag));
            self.buffer.extend_from_slice(&text);
            self.buffer.push(b'\n');
        }
        let alone = if self.gathered.is_empty() {
            batch.pop_front()
        } else {
            None
        };
        let mut written = 0;
        let wrote = match &alone {
            Some(entry) => {
                bytes = entry.text.len();
                write(
                    &mut self.writer,
                    &self.shared,
                    &entry.text,
                    b"\n",
                    &mut written,
                )
                .await
            }
            None => {
                write(
                    &mut self.writer,
                    &self.shared,
                    &self.buffer,
                    b"",
                    &mut written,
                )
                .await
            }
        };
        self.gathered.extend(alone.map(|entry| (0, entry.tag)));
        self.buffer.clear();
        if let Err(stop) = wrote {
            let late = self
                .gathered
                .drain(..)
                .filter(|(start, _)| *start >= written);
            unsent.extend(late.map(|(_, tag)| tag));
            return Err(stop);
        }
        self.account(self.gathered.len(), bytes);
        for (_, tag) in self.gathered.drain(..) {
            tag.flushed();
        }
        Ok(())
    }

    fn account(&self, lines: usize, bytes: usize) {
        let bounds = self.shared.bounds;
        let mut state = self.shared.state();
        state.lines = state.lines.saturating_sub(lines);
        state.bytes = state.bytes.saturating_sub(bytes);
        if state.full_since.is_some() {
            if state.lines <= bounds.lines_max / 2 && state.bytes <= bounds.bytes_max / 2 {
                state.full_since = None;
            }
            drop(state);
            self.shared.room.notify_waiters();
        }
    }

    async fn shut_down(&mut self) -> Result<(), Stop> {
        tokio::select! {
            biased;
            done = self.writer.shutdown() => done.map_err(Stop::Broken),
            () = self.shared.abort.cancelled() => Err(Stop::Aborted),
        }
    }
}

/// Writes `text` and `end` and flushes them. `written` says how far it came.
async fn write<W: AsyncWrite + Unpin, T>(
    writer: &mut W,
    shared: &Shared<T>,
    text: &[u8],
    end: &[u8],
    written: &mut usize,
) -> Result<(), Stop> {
    let writing = async {
        while *written < text.len() + end.len() {
            let count = match text.get(*written..) {
                Some(rest) if !rest.is_empty() && !end.is_empty() => {
                    let parts = [IoSlice::new(rest), IoSlice::new(end)];
                    writer.write_vectored(&parts).await?
                }
                Some(rest) if !rest.is_empty() => writer.write(rest).await?,
                Some(_) | None => writer.write(end).await?,
            };
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            *written += count;
        }
        writer.flush().await
    };
    tokio::select! {
        biased;
        done = writing => done.map_err(Stop::Broken),
        () = shared.abort.cancelled() => Err(Stop::Aborted),
    }
}
