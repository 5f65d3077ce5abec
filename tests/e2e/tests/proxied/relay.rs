//! Something between a client and a proxy that listens, such as a load balancer: it passes every
//! exchange on, until it is told to lose the answer of a call and to say 404 instead.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const NOT_FOUND: &[u8] =
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
/// Longest silence of the proxy.
const SILENCE: Duration = Duration::from_secs(60);

/// What becomes of the next `tools/call`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lose {
    Nothing,
    /// Its answer, after the proxy has written it.
    Answer,
    /// Its connection to the proxy, before there is an answer.
    Connection,
}

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    behind: SocketAddr,
    lose: Mutex<Lose>,
    /// Waits for the effect.
    done: Box<dyn Fn() + Send + Sync>,
    calls: AtomicUsize,
}

impl Relay {
    /// In front of a proxy; `done` returns when the call that is lost has had its effect.
    pub(crate) fn start(behind: SocketAddr, done: impl Fn() + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            behind,
            lose: Mutex::new(Lose::Nothing),
            done: Box::new(done),
            calls: AtomicUsize::new(0),
        });
        let relay = Arc::clone(&shared);
        // Ends with the test program.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let relay = Arc::clone(&relay);
                thread::spawn(move || relay.exchange(stream));
            }
        });
        Self { address, shared }
    }

    /// The next call, once.
    pub(crate) fn lose(&self, what: Lose) {
        *self
            .shared
            .lose
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// How many calls came by.
    pub(crate) fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// One exchange a connection. Whoever goes away ends it.
    fn exchange(&self, client: TcpStream) {
        let _ = self.try_exchange(client);
    }

    fn try_exchange(&self, mut client: TcpStream) -> io::Result<()> {
        let (head, body) = read(&mut BufReader::new(client.try_clone()?))?;
        let mut lose = Lose::Nothing;
        if String::from_utf8_lossy(&body).contains("\"tools/call\"") {
            self.calls.fetch_add(1, Ordering::SeqCst);
            let mut asked = self.lose.lock().unwrap_or_else(PoisonError::into_inner);
            lose = std::mem::replace(&mut asked, Lose::Nothing);
        }
        let mut proxy = TcpStream::connect(self.behind)?;
        proxy.set_read_timeout(Some(SILENCE))?;
        proxy.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
        proxy.write_all(&body)?;
        match lose {
            Lose::Nothing => {
                io::copy(&mut proxy, &mut client)?;
            }
            Lose::Answer => {
                proxy.read_to_end(&mut Vec::new())?;
                client.write_all(NOT_FOUND)?;
            }
            Lose::Connection => {
                (self.done)();
                proxy.shutdown(Shutdown::Both)?;
                client.write_all(NOT_FOUND)?;
            }
        }
        client.shutdown(Shutdown::Both)
    }
}

/// The head of a request without what it says of its connection, and its body.
fn read(from: &mut BufReader<TcpStream>) -> io::Result<(String, Vec<u8>)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line == "\r\n" {
            break;
        }
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok((head, body))
}
