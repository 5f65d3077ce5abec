//! One connection through the proxy: two threads, one for each direction.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::plan::{Armed, Fault};
use crate::proxy::Shared;
use crate::wire::{self, Answers, Client, Malformed, Opening};

const SYNC: &[u8] = b"S\0\0\0\x04";
const TERMINATE: &[u8] = b"X\0\0\0\x04";

/// Both ends of it.
pub(crate) struct Connection {
    client: TcpStream,
    /// None for a client that came while the proxy was silent.
    server: Option<TcpStream>,
    answers: Mutex<Answers>,
    /// Bytes of it were swallowed: it never comes back.
    lost: AtomicBool,
    /// Its client is cut off, and its commit comes late.
    held: AtomicBool,
}

/// Whether a direction goes on.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    Over,
}

/// How a direction came to its end.
#[derive(PartialEq, Eq)]
enum End {
    Seen,
    /// In silence: the other side must not learn of it.
    Swallowed,
}

impl Connection {
    pub(crate) fn new(client: TcpStream, server: Option<TcpStream>) -> Self {
        let _ = client.set_nodelay(true);
        if let Some(server) = &server {
            let _ = server.set_nodelay(true);
        }
        Self {
            client,
            lost: AtomicBool::new(server.is_none()),
            server,
            answers: Mutex::default(),
            held: AtomicBool::new(false),
        }
    }

    /// Ends both directions, now.
    pub(crate) fn cut(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Whether its bytes were swallowed; such a connection stays half open until it is cut.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Carries bytes until either side ends.
    pub(crate) fn carry(&self, shared: &Shared) {
        thread::scope(|scope| {
            if let Some(server) = &self.server {
                scope.spawn(|| self.answers_to_client(server, shared));
            }
            self.requests_to_server(shared);
        });
    }

    fn requests_to_server(&self, shared: &Shared) {
        let mut stream = Requests {
            connection: self,
            shared,
            begun: false,
            client: Client::default(),
        };
        let end = self.pump(&self.client, shared, |bytes| stream.pass(bytes));
        if end == End::Seen && !self.held.load(Ordering::SeqCst) {
            self.cut();
        }
    }

    fn answers_to_client(&self, server: &TcpStream, shared: &Shared) {
        let end = self.pump(server, shared, |bytes| self.pass_answers(bytes, shared));
        if end == End::Seen {
            self.cut();
        }
    }

    /// Reads until the end and hands on what there is; `pass` says how much of it is dealt with.
    fn pump(
        &self,
        mut from: &TcpStream,
        shared: &Shared,
        mut pass: impl FnMut(&[u8]) -> Result<(usize, Flow), Malformed>,
    ) -> End {
        let mut waiting = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        loop {
            let read = match from.read(&mut chunk) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            if self.swallows(shared) {
                if read == 0 {
                    return End::Swallowed;
                }
                continue;
            }
            if read == 0 {
                return End::Seen;
            }
            waiting.extend_from_slice(chunk.get(..read).unwrap_or_default());
            match pass(&waiting) {
                Ok((done, Flow::On)) => drop(waiting.drain(..done)),
                Ok((_, Flow::Over)) => return End::Seen,
                Err(Malformed) => {
                    eprintln!("proxy: not PostgreSQL's protocol, or TLS; connection cut");
                    return End::Seen;
                }
            }
        }
    }

    fn swallows(&self, shared: &Shared) -> bool {
        if shared.is_silent() {
            self.lost.store(true, Ordering::SeqCst);
        }
        self.is_lost()
    }

    /// Passes whole messages on, up to the answer that a plan waits for.
    fn pass_answers(&self, bytes: &[u8], shared: &Shared) -> Result<(usize, Flow), Malformed> {
        let mut done = 0;
        loop {
            let rest = bytes.get(done..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            if self.answers().take_byte() {
                if rest.first() != Some(&b'N') {
                    return Err(Malformed);
                }
                done += 1;
                continue;
            }
            let Some(length) = wire::length(rest, 1)? else {
                break;
            };
            let (tag, body) = parts(rest, length);
            shared.count(|counts| counts.from_server += 1);
            let armed = self.answers().answered(tag, body);
            if let Some(mut armed) = armed {
                let before = bytes.get(..done).unwrap_or_default();
                let _ = (&self.client).write_all(before);
                match armed.fault() {
                    Fault::Hold(_) => armed.late(),
                    Fault::CutAfter | Fault::CutBefore => armed.apply(|| self.cut()),
                }
                return Ok((done, Flow::Over));
            }
            done += length;
        }
        let ready = bytes.get(..done).unwrap_or_default();
        let written = (&self.client).write_all(ready);
        let held = self.held.load(Ordering::SeqCst);
        let flow = match written {
            Err(_) if !held => Flow::Over,
            Ok(()) | Err(_) => Flow::On,
        };
        Ok((done, flow))
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The direction from the client.
struct Requests<'a> {
    connection: &'a Connection,
    shared: &'a Shared,
    begun: bool,
    client: Client,
}

impl Requests<'_> {
    fn pass(&mut self, bytes: &[u8]) -> Result<(usize, Flow), Malformed> {
        let mut done = 0;
        loop {
            let rest = bytes.get(done..).unwrap_or_default();
            let before = usize::from(self.begun);
            let Some(length) = wire::length(rest, before)? else {
                break;
            };
            let message = rest.get(..length).unwrap_or_default();
            self.shared.count(|counts| counts.from_client += 1);
            if self.begun {
                let (tag, body) = parts(rest, length);
                let commits = self.client.sent(tag, body);
                let armed = commits.then(|| self.commit()).flatten();
                match armed.as_ref().map(Armed::fault) {
                    None | Some(Fault::CutAfter) => self.connection.answers().owe(tag, armed),
                    Some(Fault::CutBefore) => {
                        self.send(bytes.get(..done).unwrap_or_default());
                        if let Some(mut armed) = armed {
                            armed.apply(|| self.connection.cut());
                        }
                        return Ok((done, Flow::Over));
                    }
                    Some(Fault::Hold(hold)) => {
                        self.send(bytes.get(..done).unwrap_or_default());
                        armed
                            .into_iter()
                            .for_each(|armed| self.hold(hold, tag, message, armed));
                        return Ok((done, Flow::Over));
                    }
                }
            } else {
                match wire::opening(message) {
                    Opening::Encryption => self.connection.answers().owe_byte(),
                    Opening::Cancel => {}
                    Opening::Session => self.begun = true,
                }
            }
            done += length;
        }
        let flow = self.send(bytes.get(..done).unwrap_or_default());
        Ok((done, flow))
    }

    fn commit(&self) -> Option<Armed> {
        self.shared.count(|counts| counts.commits += 1);
        self.shared.armed(self.client.transaction())
    }

    /// Cuts the client off, waits, sends the commit, and takes its leave. The other direction reads its answer.
    fn hold(&self, hold: Duration, tag: u8, message: &[u8], mut armed: Armed) {
        self.connection.held.store(true, Ordering::SeqCst);
        armed.apply(|| drop(self.connection.client.shutdown(Shutdown::Both)));
        thread::sleep(hold);
        let mut last = message.to_vec();
        let mut answers = self.connection.answers();
        answers.owe(tag, Some(armed));
        if tag == b'E' {
            answers.owe(b'S', None);
            last.extend_from_slice(SYNC);
        }
        drop(answers);
        last.extend_from_slice(TERMINATE);
        self.send(&last);
    }

    fn send(&self, bytes: &[u8]) -> Flow {
        let sent = self
            .connection
            .server
            .as_ref()
            .map(|mut server| server.write_all(bytes));
        match sent {
            Some(Ok(())) => Flow::On,
            Some(Err(_)) | None => Flow::Over,
        }
    }
}

/// The tag and the body of a whole message at the front.
fn parts(bytes: &[u8], length: usize) -> (u8, &[u8]) {
    let tag = bytes.first().copied().unwrap_or_default();
    (tag, bytes.get(5..length).unwrap_or_default())
}
