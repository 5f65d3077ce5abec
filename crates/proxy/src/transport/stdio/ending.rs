//! How a child ends: by itself, or because it was asked to.

use std::{
    process::ExitStatus,
    sync::{Arc, Weak},
    time::Duration,
};

use counterfoil_mcp::framing::Id;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::{
    process,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Limits, ReadEnd};
use crate::{
    lines::{Ended, Outbox, Why},
    wire::{Failure, Sink},
};

/// What is read after the end must be handed on within this; each message waits only within a
/// bound of its own.
const READ_OUT_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks at whether a process group still exists: nothing tells us.
const GROUP_LOOK: Duration = Duration::from_millis(20);

/// A running child, with what serves it.
pub(super) struct Running {
    /// Its process group: its own process id.
    pub(super) group: Option<u32>,
    pub(super) process: process::Child,
    pub(super) reading: JoinHandle<ReadEnd>,
    pub(super) writing: JoinHandle<Ended<Option<Id>>>,
    pub(super) input: Arc<Outbox<Option<Id>>>,
    /// Tells the reader that the process has ended.
    pub(super) exited: CancellationToken,
    /// Asks for the end.
    pub(super) close: CancellationToken,
    /// Tells that it is over.
    pub(super) closed: CancellationToken,
    pub(super) limits: Limits,
    pub(super) sink: Weak<dyn Sink>,
}

/// What came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Exit,
    OutputClosed,
    InputClosed,
    Asked,
}

impl Running {
    /// Waits for the end, or brings it about, and tells the sink.
    pub(super) async fn see_out(mut self) {
        let (mut exit, mut read, mut wrote) = (None, None, None);
        let first = tokio::select! {
            biased;
            () = self.close.cancelled() => First::Asked,
            status = self.process.wait() => {
                exit = Some(status.ok());
                First::Exit
            }
            end = &mut self.reading => {
                read = Some(end.unwrap_or(ReadEnd::Eof));
                First::OutputClosed
            }
            ended = &mut self.writing => {
                wrote = Some(ended.ok());
                First::InputClosed
            }
        };
        if first == First::Asked {
            self.input.close();
        } else {
            // Whoever may still read there: its answers would not be heard.
            self.input.abort();
            let ended = match wrote.take() {
                Some(ended) => ended,
                None => (&mut self.writing).await.ok(),
            };
            self.tell_unsent(ended.as_ref());
        }
        let (exit, by_itself) = match exit {
            Some(status) => (status, true),
            None => self.bring_to_an_end().await,
        };
        self.exited.cancel();
        let read = match read {
            Some(read) => read,
            None => self.read_out().await,
        };
        if read == ReadEnd::HeldOpen {
            self.end_the_rest().await;
        }
        if first == First::Asked {
            self.input.abort();
            let ended = (&mut self.writing).await.ok();
            self.tell_unsent(ended.as_ref());
        }
        self.tell_closed(first, by_itself, exit);
        self.closed.cancel();
    }

    /// Its input is closed. It is waited for, terminated, killed. Also says whether it ended
    /// without that.
    async fn bring_to_an_end(&mut self) -> (Option<ExitStatus>, bool) {
        if let Ok(status) = timeout(self.limits.end_within, self.process.wait()).await {
            return (status.ok(), true);
        }
        self.signal(Signal::TERM);
        if let Ok(status) = timeout(self.limits.terminate_within, self.process.wait()).await {
            return (status.ok(), false);
        }
        self.signal(Signal::KILL);
        // A process that the kernel cannot end is nothing to wait for.
        let killed = timeout(self.limits.terminate_within, self.process.wait()).await;
        (killed.ok().and_then(Result::ok), false)
    }

    async fn read_out(&mut self) -> ReadEnd {
        match timeout(READ_OUT_WITHIN, &mut self.reading).await {
            Ok(end) => end.unwrap_or(ReadEnd::Eof),
            Err(_) => {
                self.reading.abort();
                ReadEnd::HeldOpen
            }
        }
    }

    /// Ends what the child left behind with its output still open, such as the server behind a
    /// script that has ended. What closed that output, as a daemon does, does not bring us here.
    /// The group's number cannot have gone to somebody else while one of its processes lives, and
    /// one that holds the pipe does, unless it moved to another group.
    async fn end_the_rest(&self) {
        self.signal(Signal::TERM);
        let until = Instant::now() + self.limits.terminate_within;
        while Instant::now() < until {
            if self
                .pid()
                .is_none_or(|pid| test_kill_process_group(pid).is_err())
            {
                return;
            }
            sleep(GROUP_LOOK).await;
        }
        self.signal(Signal::KILL);
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.group?).ok()?)
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.pid() {
            // There may be nobody left to hear it.
            let _ = kill_process_group(group, signal);
        }
    }

    fn tell_unsent(&self, ended: Option<&Ended<Option<Id>>>) {
        let (Some(sink), Some(ended)) = (self.sink.upgrade(), ended) else {
            return;
        };
        if let Why::Broken(error) = &ended.why {
            tracing::debug!(%error, "the server's input takes no more");
        }
        for id in ended.unsent.iter().flatten() {
            sink.failed(
                id,
                Failure::NotSent("the server ended before it took this".to_owned()),
            );
        }
    }

    fn tell_closed(&self, first: First, by_itself: bool, exit: Option<ExitStatus>) {
        // `exit status: 1`, `signal: 9 (SIGKILL)`.
        let how = exit.map_or_else(
            || "its exit status is not known".to_owned(),
            |status| status.to_string().replacen(": ", " ", 1),
        );
        // The pipes of a process that ends are closed a moment before it is gone.
        let what = match first {
            First::Asked => "the proxy ended the server",
            First::Exit => "the server ended",
            First::OutputClosed | First::InputClosed if by_itself => "the server ended",
            First::OutputClosed => "the server closed its output and was ended",
            First::InputClosed => "the server closed its input and was ended",
        };
        if let Some(sink) = self.sink.upgrade() {
            sink.closed(&format!("{what}: {how}"));
        }
    }
}
