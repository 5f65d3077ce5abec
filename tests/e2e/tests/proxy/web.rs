//! A client over Streamable HTTP: a thread for each message, on a connection that is kept for a
//! later one if the answer was read to its end.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::answer_to;
use crate::said::Inbox;

/// Longest silence of a connection.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a connection may take to be free after the answer on it.
const ENDING: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub(crate) struct Web {
    address: SocketAddr,
    /// Sent with each request.
    version: &'static str,
    modern: bool,
    token: Option<String>,
    session: Arc<Mutex<Option<String>>>,
    open: Arc<Mutex<HashMap<u64, TcpStream>>>,
    /// Connections on which nothing is under way.
    idle: Arc<Mutex<Vec<BufReader<TcpStream>>>>,
    /// Each message has a connection of its own.
    closes: bool,
    inbox: Arc<Inbox>,
}

/// The head of an answer.
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
}

/// The body of an answer, without its transfer coding.
struct Body<'a> {
    from: &'a mut BufReader<TcpStream>,
    chunked: bool,
    /// Bytes up to the end of the chunk, or of the body.
    left: u64,
}

impl Web {
    pub(crate) fn new(
        address: SocketAddr,
        version: &'static str,
        modern: bool,
        token: Option<&str>,
        inbox: &Arc<Inbox>,
    ) -> Self {
        Self {
            address,
            version,
            modern,
            token: token.map(str::to_owned),
            session: Arc::default(),
            open: Arc::default(),
            idle: Arc::default(),
            closes: false,
            inbox: Arc::clone(inbox),
        }
    }

    /// From now on each message has a connection of its own.
    pub(crate) const fn closes(&mut self) {
        self.closes = true;
    }

    /// Sends a message; with an id its answer goes into the inbox. It goes out on the connection of
    /// the message before, if that was answered.
    pub(crate) fn send(&self, id: Option<u64>, text: &str) {
        self.until_kept();
        let (this, text) = (self.clone(), text.to_owned());
        thread::spawn(move || this.exchange(id, &text));
    }

    /// The same, and waits until there was an answer of HTTP's.
    pub(crate) fn exchange(&self, id: Option<u64>, text: &str) {
        let done = self.try_exchange(id, text);
        if let Some(id) = id {
            lock(&self.open).remove(&id);
            match done {
                // Was there no message in the answer, then there will be none.
                Ok(status) => self.inbox.gone(id, format!("HTTP {status}")),
                Err(error) => self.inbox.gone(id, error.to_string()),
            }
        }
    }

    /// Closes the connection that a request waits on.
    pub(crate) fn close(&self, id: u64) {
        if let Some(stream) = lock(&self.open).remove(&id) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Goes on in a session that another one began.
    pub(crate) fn session(&self) -> Option<String> {
        lock(&self.session).clone()
    }

    /// An answer is heard a moment before its connection is free. Not waited for if it stays open.
    fn until_kept(&self) {
        let until = Instant::now() + ENDING;
        while Instant::now() < until {
            let open: Vec<u64> = lock(&self.open).keys().copied().collect();
            if !open.iter().any(|id| !self.inbox.answers(*id).is_empty()) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn try_exchange(&self, id: Option<u64>, text: &str) -> io::Result<u16> {
        let idle = lock(&self.idle).pop().filter(is_open);
        let mut stream = match idle {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(SILENCE))?;
                BufReader::new(stream)
            }
        };
        if let Some(id) = id {
            lock(&self.open).insert(id, stream.get_ref().try_clone()?);
        }
        stream.get_mut().write_all(self.request(text).as_bytes())?;
        let head = Head::read(&mut stream)?;
        if let Some(session) = head.header("mcp-session-id") {
            *lock(&self.session) = Some(session.to_owned());
        }
        let streams = head
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream"));
        let mut body = head.body(&mut stream);
        if streams {
            self.read_events(&mut body)?;
        } else {
            let mut text = String::new();
            body.read_to_string(&mut text)?;
            if id.is_some() && text.starts_with('{') {
                self.hear(text);
            }
        }
        // Given up meanwhile, it is not to be had any more.
        let is_over = body.is_over();
        let mut open = lock(&self.open);
        let mine = id.is_none_or(|id| open.contains_key(&id));
        if is_over && mine && !self.closes {
            lock(&self.idle).push(stream);
        }
        if let Some(id) = id {
            open.remove(&id);
        }
        drop(open);
        Ok(head.status)
    }

    fn request(&self, text: &str) -> String {
        let message: Value = serde_json::from_str(text).unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default();
        let mut lines = vec![
            "POST /mcp HTTP/1.1".to_owned(),
            format!("Host: {}", self.address),
            "Accept: application/json, text/event-stream".to_owned(),
            "Content-Type: application/json".to_owned(),
            format!("Content-Length: {}", text.len()),
        ];
        if self.closes {
            lines.push("Connection: close".to_owned());
        }
        if method != "initialize" {
            lines.push(format!("MCP-Protocol-Version: {}", self.version));
        }
        if let Some(session) = self.session() {
            lines.push(format!("Mcp-Session-Id: {session}"));
        }
        if let Some(token) = &self.token {
            lines.push(format!("Authorization: Bearer {token}"));
        }
        if self.modern {
            lines.push(format!("Mcp-Method: {method}"));
            let params = &message["params"];
            let name = params["name"].as_str().or(params["taskId"].as_str());
            lines.extend(name.map(|name| format!("Mcp-Name: {name}")));
            let region = params["arguments"]["region"].as_str();
            lines.extend(region.map(|region| format!("Mcp-Param-Region: {region}")));
        }
        format!("{}\r\n\r\n{text}", lines.join("\r\n"))
    }

    fn read_events(&self, body: &mut Body<'_>) -> io::Result<()> {
        let mut data = String::new();
        for line in BufReader::new(body).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches('\r');
            if let Some(part) = line.strip_prefix("data:") {
                data.push_str(part.strip_prefix(' ').unwrap_or(part));
            } else if line.is_empty() && !data.is_empty() {
                self.hear(std::mem::take(&mut data));
            }
        }
        Ok(())
    }

    fn hear(&self, text: String) {
        let message = serde_json::from_str::<Value>(&text).unwrap_or_default();
        self.inbox.add(text);
        if let Some(answer) = answer_to(&message) {
            self.send(None, &answer);
        }
    }
}

impl Head {
    fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Self> {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(cut());
        }
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let mut head = Self {
            status: status.ok_or_else(cut)?,
            headers: Vec::new(),
        };
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let line = line.trim_end();
            if line.is_empty() {
                return Ok(head);
            }
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let pair = (name.to_ascii_lowercase(), value.trim().to_owned());
            head.headers.push(pair);
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn body<'a>(&self, from: &'a mut BufReader<TcpStream>) -> Body<'a> {
        let chunked = self.header("transfer-encoding") == Some("chunked");
        let length = self.header("content-length");
        let length = length.and_then(|length| length.parse().ok());
        // Without either, it goes on to the end of the connection.
        let open = if chunked { 0 } else { u64::MAX };
        Body {
            from,
            chunked,
            left: length.unwrap_or(open),
        }
    }
}

impl Body<'_> {
    /// It was read to its end, and something may follow on the connection.
    const fn is_over(&self) -> bool {
        self.left == 0 && !self.chunked
    }
}

impl Read for Body<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.chunked && self.left == 0 {
            let mut line = String::new();
            self.from.read_line(&mut line)?;
            if line.trim().is_empty() {
                line.clear();
                self.from.read_line(&mut line)?;
            }
            self.left = u64::from_str_radix(line.trim(), 16).map_err(|_| cut())?;
            if self.left == 0 {
                // The last chunk, and an empty line.
                self.from.read_line(&mut line)?;
                self.chunked = false;
            }
        }
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(into.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.from.read(&mut into[..most])?;
        if read == 0 && self.left != u64::MAX {
            return Err(cut());
        }
        if self.left != u64::MAX {
            self.left -= read as u64;
        }
        Ok(read)
    }
}

/// Whether the other end has not closed it meanwhile.
fn is_open(stream: &BufReader<TcpStream>) -> bool {
    let stream = stream.get_ref();
    let _ = stream.set_nonblocking(true);
    let looked = stream.peek(&mut [0]);
    let _ = stream.set_nonblocking(false);
    looked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is cut off")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
