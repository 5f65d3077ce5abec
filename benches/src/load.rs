//! The load generator: HTTP/1.1 over plain TCP, kept-alive connections, one request at a time on
//! each, requests made beforehand. It does as little as it can, because it shares the machine with
//! the server it measures, and it is the same for every server.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use memchr::memmem::Finder;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use crate::{
    Error,
    keys::{KEY_BYTES, Series},
    request::Request,
};

/// Connections of every load.
pub(crate) const CONNECTIONS: usize = 64;
/// Largest response that is read.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Which key the next call has.
#[derive(Clone, Debug)]
pub(crate) enum Pick {
    /// One never used before.
    New,
    /// One of the first so many, all over them.
    Again(u64),
}

/// The keys of a load. Clones go on where the others are.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    series: Series,
    next: Arc<AtomicU64>,
}

impl Keys {
    pub(crate) fn new(series: Series) -> Self {
        Self {
            series,
            next: Arc::default(),
        }
    }

    /// How many were used.
    pub(crate) fn used(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The same keys, to be used again from the first one.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.series)
    }

    fn write(&self, pick: &Pick, into: &mut [u8; KEY_BYTES]) -> u64 {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let index_of_key = match pick {
            Pick::New => index,
            Pick::Again(count) => spread(index, *count),
        };
        self.series.write(index_of_key, into);
        index
    }
}

/// One of the first `count`: a step that is prime to the count goes through all of them, far apart.
pub(crate) fn spread(index: u64, count: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b1) % count.max(1)
}

/// What every answer must be.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// The status.
    pub(crate) status: u16,
    /// Must be in head or body.
    pub(crate) holds: Option<&'static str>,
    /// Must not be in head or body.
    pub(crate) lacks: Option<&'static str>,
}

/// One server under one kind of call.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// What the report calls it.
    pub(crate) name: String,
    /// Where the server listens; several nodes take the connections in turn.
    pub(crate) addresses: Vec<SocketAddr>,
    /// What is sent.
    pub(crate) request: Request,
    /// With which keys.
    pub(crate) keys: Keys,
    /// Which of them.
    pub(crate) pick: Pick,
    /// What must come back.
    pub(crate) expected: Expected,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// After a time; what begins in the first part is not counted.
    Elapsed {
        /// Not counted.
        warm_up: Duration,
        /// Counted.
        measured: Duration,
    },
    /// When so many keys were used.
    Used(u64),
}

/// One round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Calls per second.
    pub(crate) per_second: f64,
    /// The median, in microseconds.
    pub(crate) p50_us: u32,
    /// 99 of 100 calls take no longer, in microseconds.
    pub(crate) p99_us: u32,
}

#[derive(Debug, Default)]
struct Connection {
    latencies_us: Vec<u32>,
    calls: u64,
    failures: u64,
    first_failure: Option<String>,
}

impl Load {
    /// Runs it on a thread of its own, so that one slow client task is no reason of another.
    pub(crate) fn run(&self, until: Until) -> Result<Round, Error> {
        let load = self.clone();
        std::thread::Builder::new()
            .name("load".to_owned())
            .spawn(move || {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(Error::io("the generator's runtime"))?
                    .block_on(load.drive(until))
            })
            .map_err(Error::io("the generator's thread"))?
            .join()
            .map_err(|_| Error::Task)?
    }

    async fn drive(self, until: Until) -> Result<Round, Error> {
        let load = Arc::new(self);
        let mut streams = Vec::with_capacity(CONNECTIONS);
        for address in load.addresses.iter().cycle().take(CONNECTIONS) {
            let stream = TcpStream::connect(address)
                .await
                .map_err(Error::io("connecting to the server"))?;
            stream
                .set_nodelay(true)
                .map_err(Error::io("setting TCP_NODELAY"))?;
            streams.push(stream);
        }
        let start = Instant::now();
        let mut connections = JoinSet::new();
        for stream in streams {
            let load = Arc::clone(&load);
            connections.spawn(async move { load.connection(stream, start, until).await });
        }
        let mut all = Connection::default();
        while let Some(ended) = connections.join_next().await {
            let ended = ended.map_err(|_| Error::Task)??;
            all.latencies_us.extend(ended.latencies_us);
            all.calls += ended.calls;
            all.failures += ended.failures;
            all.first_failure = all.first_failure.or(ended.first_failure);
        }
        let lasted = match until {
            Until::Elapsed { measured, .. } => measured,
            Until::Used(_) => start.elapsed(),
        };
        if all.failures > 0 {
            return Err(Error::WrongAnswers {
                server: load.name.clone(),
                failures: all.failures,
                calls: all.calls,
                first: all.first_failure.unwrap_or_default(),
            });
        }
        Round::of(all.latencies_us, lasted).ok_or_else(|| Error::Silent(load.name.clone()))
    }

    async fn connection(
        &self,
        mut stream: TcpStream,
        start: Instant,
        until: Until,
    ) -> Result<Connection, Error> {
        let mut done = Connection::default();
        let mut request = self.request.bytes.clone();
        let mut response = Vec::with_capacity(4096);
        let mut key = [0; KEY_BYTES];
        let at = self.request.key_at;
        let checks = Checks::new(&self.expected);
        loop {
            let sent = start.elapsed();
            if matches!(until, Until::Elapsed { warm_up, measured } if sent >= warm_up + measured) {
                return Ok(done);
            }
            let index = self.keys.write(&self.pick, &mut key);
            if matches!(until, Until::Used(count) if index >= count) {
                return Ok(done);
            }
            request[at..at + KEY_BYTES].copy_from_slice(&key);
            let call = exchange(&mut stream, &request, &mut response);
            tokio::time::timeout(CALL_LIMIT, call)
                .await
                .map_err(|_| Error::Silent(self.name.clone()))?
                .map_err(Error::io("a call"))?;
            let answered = start.elapsed();
            done.calls += 1;
            if !checks.pass(&response) {
                done.failures += 1;
                done.first_failure
                    .get_or_insert_with(|| String::from_utf8_lossy(&response).into_owned());
            }
            let counts = match until {
                Until::Elapsed { warm_up, measured } => {
                    sent >= warm_up && answered <= warm_up + measured
                }
                Until::Used(_) => true,
            };
            if counts {
                let took = (answered - sent).as_micros();
                done.latencies_us
                    .push(u32::try_from(took).unwrap_or(u32::MAX));
            }
        }
    }
}

impl Round {
    fn of(mut latencies_us: Vec<u32>, lasted: Duration) -> Option<Self> {
        latencies_us.sort_unstable();
        let at = |part: usize| latencies_us.get(latencies_us.len() * part / 100).copied();
        Some(Self {
            #[allow(clippy::cast_precision_loss, reason = "a figure for reading")]
            per_second: latencies_us.len() as f64 / lasted.as_secs_f64(),
            p50_us: at(50)?,
            p99_us: at(99)?,
        })
    }

    /// From the latencies of calls made some other way.
    pub(crate) fn from_latencies(latencies_us: Vec<u32>, lasted: Duration) -> Result<Self, Error> {
        Self::of(latencies_us, lasted).ok_or_else(|| Error::Silent("the store".to_owned()))
    }
}

struct Checks {
    status_line: Vec<u8>,
    holds: Option<Finder<'static>>,
    lacks: Option<Finder<'static>>,
}

impl Checks {
    fn new(expected: &Expected) -> Self {
        Self {
            status_line: format!("HTTP/1.1 {} ", expected.status).into_bytes(),
            holds: expected.holds.map(|text| Finder::new(text.as_bytes())),
            lacks: expected.lacks.map(|text| Finder::new(text.as_bytes())),
        }
    }

    fn pass(&self, response: &[u8]) -> bool {
        let found = |finder: &Finder<'_>| finder.find(response).is_some();
        response.starts_with(&self.status_line)
            && self.holds.as_ref().is_none_or(found)
            && !self.lacks.as_ref().is_some_and(found)
    }
}

/// Sends a request and reads the whole answer to it.
pub(crate) async fn exchange(
    stream: &mut TcpStream,
    request: &[u8],
    response: &mut Vec<u8>,
) -> std::io::Result<()> {
    stream.write_all(request).await?;
    response.clear();
    let mut whole = None;
    loop {
        if stream.read_buf(response).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if whole.is_none() {
            whole = extent(response)?;
        }
        let through = match whole {
            None => false,
            Some(Extent::Bytes(bytes)) => response.len() >= bytes,
            Some(Extent::Chunked) => response.ends_with(b"\r\n0\r\n\r\n"),
        };
        if through {
            return Ok(());
        }
        if response.len() > RESPONSE_BYTES_MAX {
            return Err(std::io::Error::other("the answer is too long"));
        }
    }
}

#[derive(Clone, Copy)]
enum Extent {
    Bytes(usize),
    Chunked,
}

/// How long the answer is, once its head is there.
fn extent(response: &[u8]) -> std::io::Result<Option<Extent>> {
    let Some(end) = memchr::memmem::find(response, b"\r\n\r\n") else {
        return Ok(None);
    };
    for line in response[..end].split(|byte| *byte == b'\n').skip(1) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else {
            continue;
        };
        if name.eq_ignore_ascii_case(b"content-length") {
            let bytes = std::str::from_utf8(value)
                .ok()
                .and_then(|value| value.trim().parse::<usize>().ok())
                .ok_or_else(|| std::io::Error::other("a wrong content length"))?;
            return Ok(Some(Extent::Bytes(end + 4 + bytes)));
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Ok(Some(Extent::Chunked));
        }
    }
    Ok(Some(Extent::Bytes(end + 4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_an_answer_is_found() {
        let bytes = |text: &str| match extent(text.as_bytes()).unwrap() {
            Some(Extent::Bytes(bytes)) => Some(bytes),
            Some(Extent::Chunked) | None => None,
        };
        assert_eq!(bytes("HTTP/1.1 200 OK\r\ncontent-le"), None);
        let text = "HTTP/1.1 201 Created\r\nContent-Length: 12\r\nx: y\r\n\r\n";
        assert_eq!(bytes(text), Some(text.len() + 12));
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(matches!(extent(chunked).unwrap(), Some(Extent::Chunked)));
        assert!(extent(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n").is_err());
    }

    #[test]
    fn wrong_answers_are_seen() {
        let checks = Checks::new(&Expected {
            status: 201,
            holds: Some("note_id"),
            lacks: Some("replayed"),
        });
        assert!(checks.pass(b"HTTP/1.1 201 Created\r\n\r\n{\"note_id\":1}"));
        assert!(!checks.pass(b"HTTP/1.1 200 OK\r\n\r\n{\"note_id\":1}"));
        assert!(!checks.pass(b"HTTP/1.1 201 Created\r\n\r\n{}"));
        assert!(!checks.pass(b"HTTP/1.1 201 Created\r\nidempotent-replayed: true\r\n\r\nnote_id"));
    }

    #[test]
    fn percentiles_are_of_all_calls() {
        let round = Round::of((1..=100).collect(), Duration::from_secs(2)).unwrap();
        assert_eq!((round.p50_us, round.p99_us), (51, 100));
        assert!((round.per_second - 50.0).abs() < f64::EPSILON);
        assert!(Round::of(Vec::new(), Duration::from_secs(1)).is_none());
    }
}
