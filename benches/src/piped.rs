//! The load generator for standard streams: one thread, requests made by hand, as many in flight as
//! wanted, all that there is in one write and one read. It is the same for every command.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use memchr::memmem;

use crate::{
    Error,
    child::Resident,
    keys::Series,
    load::{Round, Until},
};

/// How long nothing may come.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
const OPENING: &str = "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\
     \"2025-11-25\",\"capabilities\":{},\"clientInfo\":{\"name\":\"bench\",\"version\":\"1.0\"}}}\n";
const OPENED: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";
const LIST: &str = "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"tools/list\"}\n";
/// What every call says, and the tool repeats.
pub(crate) const WORDS: &str = "The counterfoil stays when the ticket is torn.";

/// Which call is made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// A tool that reads.
    Reading,
    /// A tool that writes, always with the same arguments.
    Same,
    /// A tool that writes, with other arguments each time.
    Different,
    /// A tool that writes, with a key in `_meta`, one of this series.
    Keyed(Series),
    /// A tool that writes and takes so many milliseconds, with other arguments each time.
    Slow(u64),
}

impl Call {
    /// Writes the call with this id.
    fn write(self, id: u64, into: &mut Vec<u8>) {
        let tool = match self {
            Self::Reading => "look_up",
            Self::Same | Self::Different | Self::Keyed(_) => "put_down",
            Self::Slow(_) => "put_down_slowly",
        };
        let more = match self {
            Self::Reading | Self::Same | Self::Keyed(_) => String::new(),
            Self::Different | Self::Slow(_) => format!(" {id}"),
        };
        let millis = match self {
            Self::Slow(millis) => format!(",\"millis\":{millis}"),
            Self::Reading | Self::Same | Self::Different | Self::Keyed(_) => String::new(),
        };
        let meta = match self {
            Self::Keyed(series) => format!(
                ",\"_meta\":{{\"dev.counterfoil/idempotency-key\":\"{}\"}}",
                series.key(id)
            ),
            Self::Reading | Self::Same | Self::Different | Self::Slow(_) => String::new(),
        };
        // Writing into a Vec does not fail.
        let _ = writeln!(
            into,
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"{tool}\",\
             \"arguments\":{{\"text\":\"{WORDS}{more}\"{millis}}}{meta}}}}}"
        );
    }
}

/// A command that speaks MCP on its standard streams. Its input is closed when it is dropped; then
/// it is ended.
pub(crate) struct Peer {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    next: u64,
    /// When each call of the round was sent, by its id less that of the first.
    sent: Vec<Duration>,
    buffer: Vec<u8>,
}

impl Peer {
    /// Starts it, and how long it took until it answered first. Its stderr goes to a file.
    pub(crate) fn start(
        name: &str,
        command: &mut Command,
        log: &Path,
    ) -> Result<(Self, Duration), Error> {
        let log_file = File::create(log).map_err(Error::io("creating a log"))?;
        let begun = Instant::now();
        let mut child = command
            .env_remove(counterfoil_test_postgres::VARIABLE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .map_err(Error::io("starting a command"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or(Error::Form("a pipe"))?;
        let mut peer = Self {
            name: name.to_owned(),
            child,
            input,
            output,
            next: 1,
            sent: Vec::new(),
            buffer: Vec::new(),
        };
        let opened = peer.ask(OPENING);
        let took = begun.elapsed();
        if opened.is_err() {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            return Err(Error::Start(name.to_owned(), log));
        }
        peer.say(OPENED.as_bytes())?;
        peer.ask(LIST)?;
        Ok((peer, took))
    }

    /// Its resident memory.
    pub(crate) fn resident(&self) -> Result<Resident, Error> {
        Resident::of(self.child.id())
    }

    fn say(&mut self, text: &[u8]) -> Result<(), Error> {
        let input = self.input.as_mut().ok_or(Error::Form("a pipe"))?;
        input
            .write_all(text)
            .map_err(Error::io("writing to a command"))
    }

    /// One request, and its answer.
    fn ask(&mut self, text: &str) -> Result<(), Error> {
        self.say(text.as_bytes())?;
        let mut left = 1;
        while left > 0 {
            self.read(|answer| {
                left -= usize::from(answer.id == Some(0));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Sends so many calls and waits for none.
    pub(crate) fn send(&mut self, call: Call, count: u64) -> Result<(), Error> {
        let mut text = Vec::new();
        for _ in 0..count {
            call.write(self.next, &mut text);
            self.next += 1;
        }
        self.say(&text)
    }

    /// Waits for so many answers, each of which must be that of the tool.
    pub(crate) fn await_answers(&mut self, count: usize) -> Result<(), Error> {
        let mut left = count;
        while left > 0 {
            let name = self.name.clone();
            self.read(|answer| {
                answer.check(&name)?;
                left = left.saturating_sub(usize::from(answer.id.is_some()));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Keeps so many calls in flight.
    pub(crate) fn run(
        &mut self,
        call: Call,
        in_flight: usize,
        until: Until,
    ) -> Result<Round, Error> {
        let Until::Elapsed { warm_up, measured } = until else {
            return Err(Error::Form("the end of a round"));
        };
        let end = warm_up + measured;
        let first = self.next;
        let start = Instant::now();
        let name = self.name.clone();
        let mut latencies_us = Vec::with_capacity(1 << 16);
        let mut text = Vec::new();
        self.sent.clear();
        let (mut free, mut open) = (in_flight, 0_usize);
        loop {
            let now = start.elapsed();
            if now < end && free > 0 {
                for _ in 0..free {
                    call.write(self.next, &mut text);
                    self.next += 1;
                    self.sent.push(now);
                }
                open += free;
                free = 0;
                self.say(&text)?;
                text.clear();
            }
            if open == 0 {
                return Round::from_latencies(latencies_us, measured);
            }
            // Taken out, so that it can be looked into while the rest is borrowed for reading.
            let sent = std::mem::take(&mut self.sent);
            let read = self.read(|answer| {
                answer.check(&name)?;
                let Some(id) = answer.id else {
                    return Ok(());
                };
                let begun = usize::try_from(id.wrapping_sub(first))
                    .ok()
                    .and_then(|index| sent.get(index))
                    .ok_or(Error::Form("an answer's id"))?;
                let ended = start.elapsed();
                if *begun >= warm_up && ended <= end {
                    let took = (ended - *begun).as_micros();
                    latencies_us.push(u32::try_from(took).unwrap_or(u32::MAX));
                }
                free += 1;
                open = open.saturating_sub(1);
                Ok(())
            });
            self.sent = sent;
            read?;
        }
    }

    /// Reads once and shows each line that came whole. Who says nothing for long is ended, so that
    /// this ends too.
    fn read(&mut self, mut each: impl FnMut(Answer<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let room = 64 << 10;
        let filled = self.buffer.len();
        self.buffer.resize(filled + room, 0);
        let count = self
            .output
            .read(&mut self.buffer[filled..])
            .map_err(Error::io("reading from a command"))?;
        self.buffer.truncate(filled + count);
        if count == 0 {
            return Err(Error::Silent(self.name.clone()));
        }
        let mut from = 0;
        while let Some(end) = memchr::memchr(b'\n', &self.buffer[from..]) {
            let line = &self.buffer[from..from + end];
            each(Answer::of(line))?;
            from += end + 1;
        }
        self.buffer.drain(..from);
        Ok(())
    }

    /// Does something with it; if that takes too long, it is killed, and whatever waits for it ends.
    pub(crate) fn watched<T>(
        &mut self,
        limit: Duration,
        body: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let process = self.child.id();
        let (done, wait) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if wait.recv_timeout(limit + SILENCE_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout)
                {
                    let _ = Command::new("kill")
                        .args(["-9", &process.to_string()])
                        .status();
                }
            });
            let result = body(self);
            drop(done);
            result
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.input = None;
        // It ends what is behind it, if it gets the time.
        for _ in 0..300 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One line.
struct Answer<'a> {
    line: &'a [u8],
    /// `None`: it answers nothing.
    id: Option<u64>,
}

impl<'a> Answer<'a> {
    fn of(line: &'a [u8]) -> Self {
        let id = memmem::find(line, b"\"id\":").map(|at| {
            line[at + 5..]
                .iter()
                .skip_while(|byte| **byte == b' ')
                .take_while(|byte| byte.is_ascii_digit())
                .fold(0, |id, digit| id * 10 + u64::from(digit - b'0'))
        });
        Self { line, id }
    }

    /// It must be what the tool says, made anew.
    fn check(&self, name: &str) -> Result<(), Error> {
        let has = |text: &str| memmem::find(self.line, text.as_bytes()).is_some();
        let right = self.id.is_none()
            || (has(WORDS)
                && !has("isError\":true")
                && !has("replayed\":true")
                && !has("attached\":true"));
        if right {
            return Ok(());
        }
        Err(Error::WrongAnswers {
            server: name.to_owned(),
            failures: 1,
            calls: 1,
            first: String::from_utf8_lossy(self.line).into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Kind;

    #[test]
    fn calls_are_json_and_differ_where_they_should() {
        let written = |call: Call, id| {
            let mut text = Vec::new();
            call.write(id, &mut text);
            assert_eq!(text.pop(), Some(b'\n'));
            serde_json::from_slice::<serde_json::Value>(&text).unwrap()
        };
        let arguments = |call, id| written(call, id)["params"]["arguments"].clone();
        assert_eq!(arguments(Call::Same, 1), arguments(Call::Same, 2));
        assert_ne!(arguments(Call::Different, 1), arguments(Call::Different, 2));
        assert_eq!(arguments(Call::Slow(5), 1)["millis"], 5);
        let series = Series::new(Kind::TimeOrdered).unwrap();
        let keyed = written(Call::Keyed(series), 3);
        let key = &keyed["params"]["_meta"]["dev.counterfoil/idempotency-key"];
        assert_eq!(*key, series.key(3));
    }

    #[test]
    fn answers_are_told_from_notices_and_from_wrong_ones() {
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\": 17,\"result\":\"{WORDS}\"}}");
        let answer = Answer::of(line.as_bytes());
        assert_eq!(answer.id, Some(17));
        assert!(answer.check("it").is_ok());
        assert_eq!(Answer::of(b"{\"method\":\"x\"}").id, None);
        assert!(Answer::of(b"{\"id\":1,\"error\":{}}").check("it").is_err());
        let again = format!("{{\"id\":1,\"r\":\"{WORDS}\",\"dev.counterfoil/replayed\":true}}");
        assert!(Answer::of(again.as_bytes()).check("it").is_err());
    }
}
