//! A server as a child process: a message a line on its standard input and output.

mod ending;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::Path,
    process::Stdio,
    sync::{Arc, Weak},
    time::Duration,
};

use counterfoil_mcp::framing::Id;
use counterfoil_store::BoxFuture;
use tokio::process::{ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use crate::{
    lines::{self, Bounds, Entry, Line, Lines, Outbox, Refused, Seldom, Shape, Tag},
    settings::Target,
    wire::{Failure, Kind, Outbound, Sink, Transport},
};

/// How a child is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Longest line it may write, in bytes; a longer one is left out.
    pub(crate) message_bytes_max: usize,
    /// What may wait until it reads.
    pub(crate) waiting: Bounds,
    /// How long it may take to end once its input was closed. Default 2 s.
    pub(crate) end_within: Duration,
    /// The same after SIGTERM, before SIGKILL. Default 2 s.
    pub(crate) terminate_within: Duration,
    /// After its end somebody else may hold its output open, such as a process that it started:
    /// how long that may be silent before it is given up. Default 1 s.
    pub(crate) silent_after_end: Duration,
}

impl Limits {
    /// The defaults.
    pub(crate) fn new(message_bytes_max: usize) -> Self {
        Self {
            message_bytes_max,
            waiting: Bounds {
                patience: Duration::from_secs(60),
                ..Bounds::default()
            },
            end_within: Duration::from_secs(2),
            terminate_within: Duration::from_secs(2),
            silent_after_end: Duration::from_secs(1),
        }
    }
}

impl Tag for Option<Id> {
    fn flushed(self) {}
}

/// A server that runs as a child process. Its stderr is the proxy's.
///
/// It runs in a process group of its own, so that an interrupt typed at the terminal ends the
/// proxy, which drains what is under way, and not the server under its hands.
///
/// When it ends, or closes its output, or its input, what it wrote is read to the end; then
/// [`Sink::failed`] is called for each request of which not one byte was written, then
/// [`Sink::closed`], once. Dropping it ends the child as [`Transport::close`] does, without
/// anybody waiting for it.
pub(crate) struct Child {
    input: Arc<Outbox<Option<Id>>>,
    close: CancellationToken,
    closed: CancellationToken,
}

impl Child {
    /// Starts a server. Must be called inside of a Tokio runtime.
    ///
    /// # Errors
    /// [`Failure::NotSent`], saying why it could not be started and what to do about it. Its
    /// arguments and environment are not named.
    pub(crate) fn start(
        target: &Target,
        limits: Limits,
        sink: Weak<dyn Sink>,
    ) -> Result<Arc<Self>, Failure> {
        let (program, arguments, environment, folder) = match target {
            Target::Command {
                program,
                arguments,
                environment,
                folder,
            } => (program, arguments, environment, folder.as_deref()),
            Target::Url { .. } => {
                let what = "the upstream is an address, not a command".to_owned();
                return Err(Failure::NotSent(what));
            }
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            // Where our own receipts are is not the server's business, and may name a password.
            .env_remove("COUNTERFOIL_STORE")
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0)
            .kill_on_drop(false);
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        let not_started = |error| Failure::NotSent(not_started(program, folder, &error));
        let mut process = command.spawn().map_err(not_started)?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(not_started(io::ErrorKind::BrokenPipe.into()));
        };
        let (input, drain) = Outbox::new(stdin, limits.waiting);
        let input = Arc::new(input);
        let (close, closed) = (CancellationToken::new(), CancellationToken::new());
        let exited = CancellationToken::new();
        let reader = Reader {
            lines: Lines::new(stdout, limits.message_bytes_max),
            sink: Weak::clone(&sink),
            exited: exited.clone(),
            silent_after_end: limits.silent_after_end,
            noise: Seldom::default(),
        };
        let running = ending::Running {
            group: process.id(),
            process,
            reading: tokio::spawn(reader.run()),
            writing: tokio::spawn(drain.run()),
            input: Arc::clone(&input),
            exited,
            close: close.clone(),
            closed: closed.clone(),
            limits,
            sink,
        };
        tokio::spawn(running.see_out());
        Ok(Arc::new(Self {
            input,
            close,
            closed,
        }))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.close.cancel();
    }
}

impl Transport for Child {
    /// Takes the message as soon as there is room; what becomes of it then is told to the sink. If
    /// the child does not read, and there is no room for a minute, the message is not sent.
    fn send(&self, message: Outbound) -> BoxFuture<'_, Result<(), Failure>> {
        let tag = match message.kind {
            Kind::Request { id, .. } => Some(id),
            Kind::Notification { .. } | Kind::Response => None,
        };
        let text = lines::one_line(message.text);
        match self.input.put_within(1, Entry { text, tag }) {
            Ok(()) => Box::pin(std::future::ready(Ok(()))),
            Err(left) => Box::pin(async move {
                let taken = match left.why {
                    Refused::Full => self.input.offer(left.entry).await,
                    Refused::Ended => Err(left),
                };
                taken.map_err(|left| {
                    Failure::NotSent(match left.why {
                        Refused::Full => "the server does not read its input".to_owned(),
                        Refused::Ended => "the server has ended".to_owned(),
                    })
                })
            }),
        }
    }

    fn forget(&self, _: &Id) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        self.close.cancel();
        Box::pin(self.closed.cancelled())
    }
}

/// How reading a child's output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadEnd {
    /// There is no more.
    Eof,
    /// The child has ended, somebody else holds its output open, and is silent.
    HeldOpen,
    /// Nobody wants to hear it any more.
    Unheard,
}

/// Reads what a child writes.
struct Reader {
    lines: Lines<ChildStdout>,
    sink: Weak<dyn Sink>,
    exited: CancellationToken,
    silent_after_end: Duration,
    noise: Seldom,
}

impl Reader {
    async fn run(mut self) -> ReadEnd {
        loop {
            while let Some(line) = self.lines.at_hand() {
                match line {
                    Line::Text(text) if Shape::of(&text) == Shape::Message => {
                        let Some(sink) = self.sink.upgrade() else {
                            return ReadEnd::Unheard;
                        };
                        sink.message(text, None).await;
                    }
                    Line::Text(_) => self.left_out("it is no JSON object"),
                    Line::TooLong => self.left_out("it is longer than a message may be"),
                }
            }
            let silence = async {
                self.exited.cancelled().await;
                tokio::time::sleep(self.silent_after_end).await;
            };
            tokio::select! {
                biased;
                more = self.lines.fill() => match more {
                    Ok(true) => {}
                    Ok(false) => return ReadEnd::Eof,
                    Err(error) => {
                        tracing::warn!(%error, "the server's output cannot be read");
                        return ReadEnd::Eof;
                    }
                },
                () = silence => return ReadEnd::HeldOpen,
            }
        }
    }

    /// Servers log to the wrong stream, sometimes a lot. What they say there is not repeated: it
    /// may be anything.
    fn left_out(&self, why: &'static str) {
        if let Some(lines) = self.noise.again() {
            tracing::warn!(
                lines,
                why,
                "the server wrote a line to its output that was left out; logs belong on stderr"
            );
        }
    }
}

fn not_started(program: &str, folder: Option<&Path>, error: &io::Error) -> String {
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return format!(
            "`{program}` cannot be started: its folder {} does not exist; create it, or name another",
            folder.display()
        );
    }
    let kind = error.kind();
    if kind == io::ErrorKind::PermissionDenied {
        return format!(
            "`{program}` may not be executed; make it executable, or start it with its interpreter"
        );
    }
    if kind != io::ErrorKind::NotFound {
        return format!("`{program}` cannot be started: {error}");
    }
    if Path::new(program).is_file() {
        return format!(
            "`{program}` cannot be started: the interpreter in its first line does not exist; \
             install that, or name it as the command"
        );
    }
    if program.contains('/') {
        return format!("`{program}` does not exist; correct its path after `--`");
    }
    format!("`{program}` was not found on the PATH; install it, or write its full path after `--`")
}
