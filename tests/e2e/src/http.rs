use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest wait for bytes of an answer.
const READ: Duration = Duration::from_secs(60);
/// Most bytes of one answer.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// A client of one server: one connection per request, HTTP/1.1, every byte as it is given.
#[derive(Clone)]
pub struct Http {
    address: SocketAddr,
    key: Option<String>,
}

/// A request that is being put together.
pub struct Request {
    address: SocketAddr,
    line: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, without its transfer coding.
    pub body: Vec<u8>,
}

impl Http {
    /// A client without a credential.
    #[must_use]
    pub const fn new(address: SocketAddr) -> Self {
        Self { address, key: None }
    }

    /// The same with a bearer token.
    #[must_use]
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Where it sends.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its bearer token.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Begins a request; `path` goes out as it is.
    #[must_use]
    pub fn request(&self, method: &str, path: &str) -> Request {
        let mut headers = vec![
            ("Host".to_owned(), self.address.to_string().into_bytes()),
            ("Connection".to_owned(), b"close".to_vec()),
        ];
        if let Some(key) = &self.key {
            let bearer = format!("Bearer {key}").into_bytes();
            headers.push(("Authorization".to_owned(), bearer));
        }
        Request {
            address: self.address,
            line: format!("{method} {path} HTTP/1.1\r\n"),
            headers,
            body: Vec::new(),
        }
    }

    /// Begins the creation of a note, its body as JSON text.
    #[must_use]
    pub fn note(&self, key: Option<&str>, json: &str) -> Request {
        let request = self.request("POST", "/api/v1/notes").json(json);
        match key {
            Some(key) => request.header("Idempotency-Key", key),
            None => request,
        }
    }

    /// Creates a note and retries while the server says that it must wait or be asked again.
    ///
    /// # Panics
    /// If no definite answer comes.
    #[must_use]
    pub fn note_until_answered(&self, key: &str, json: &str) -> Reply {
        crate::until("a definite answer", Duration::from_secs(60), || {
            let reply = self.note(Some(key), json).send().ok()?;
            let waits = reply.status == 503 || reply.code() == "idempotency_in_progress";
            (!waits).then_some(reply)
        })
    }

    /// Every note of the workspace, oldest page first, each as the API shows it.
    ///
    /// # Panics
    /// If a page is not as documented.
    #[must_use]
    pub fn notes(&self) -> Vec<Value> {
        let mut notes = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = match cursor.as_str() {
                "" => "/api/v1/notes?limit=100".to_owned(),
                cursor => format!("/api/v1/notes?limit=100&cursor={cursor}"),
            };
            let reply = self.request("GET", &path).send().expect("a page of notes");
            assert_eq!(reply.status, 200, "{}", reply.text());
            let page = reply.value();
            let listed = page["notes"].as_array().expect("a list of notes");
            notes.extend(listed.iter().cloned());
            match page["next_cursor"].as_str() {
                None => return notes,
                Some(next) => {
                    assert_ne!(next, cursor, "the cursor moves");
                    next.clone_into(&mut cursor);
                }
            }
        }
    }

    /// How many notes have this body.
    ///
    /// # Panics
    /// As [`Http::notes`].
    #[must_use]
    pub fn count(&self, body: &str) -> usize {
        let notes = self.notes();
        notes.iter().filter(|note| note["body"] == body).count()
    }
}

impl Request {
    /// Adds a header line.
    #[must_use]
    pub fn header(self, name: &str, value: &str) -> Self {
        self.header_bytes(name, value.as_bytes())
    }

    /// Adds a header line of any bytes.
    #[must_use]
    pub fn header_bytes(mut self, name: &str, value: &[u8]) -> Self {
        self.headers.push((name.to_owned(), value.to_vec()));
        self
    }

    /// Names another host than the one it goes to.
    #[must_use]
    pub fn with_host(mut self, host: &str) -> Self {
        self.headers.retain(|(name, _)| name != "Host");
        self.header("Host", host)
    }

    /// Sets the body, as JSON text.
    #[must_use]
    pub fn json(self, text: &str) -> Self {
        self.header("Content-Type", "application/json")
            .body(text.as_bytes())
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, bytes: &[u8]) -> Self {
        self.body = bytes.to_vec();
        self
    }

    /// Sends it and reads the whole answer.
    ///
    /// # Errors
    /// What the socket says; `InvalidData` if the answer is cut off or is no HTTP.
    pub fn send(self) -> io::Result<Reply> {
        let mut stream = self.write()?;
        let mut bytes = Vec::new();
        let mut part = [0; 16 * 1024];
        loop {
            match stream.read(&mut part)? {
                0 => break,
                read => bytes.extend_from_slice(&part[..read]),
            }
            if bytes.len() > REPLY_BYTES_MAX {
                return Err(bad("the answer is too long"));
            }
            if let Some(reply) = Reply::read(&bytes, false)? {
                return Ok(reply);
            }
        }
        Reply::read(&bytes, true)?.ok_or_else(|| bad("the answer is cut off"))
    }

    /// Sends it and closes the connection without reading anything: the answer is lost.
    ///
    /// # Errors
    /// What the socket says.
    pub fn send_and_close(self) -> io::Result<()> {
        let stream = self.write()?;
        stream.shutdown(Shutdown::Both)
    }

    fn write(self) -> io::Result<TcpStream> {
        let mut bytes = self.line.into_bytes();
        let mut add = |name: &str, value: &[u8]| {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        };
        for (name, value) in &self.headers {
            add(name, value);
        }
        add("Content-Length", self.body.len().to_string().as_bytes());
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ))?;
        stream.set_write_timeout(Some(READ))?;
        stream.write_all(&bytes)?;
        Ok(stream)
    }
}

impl Reply {
    /// The first header line of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null if it is none.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The code of a refusal; empty if it is none.
    #[must_use]
    pub fn code(&self) -> String {
        self.value()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The id of a created note.
    ///
    /// # Panics
    /// If this is not the answer 201 with an id.
    #[must_use]
    pub fn note_id(&self) -> String {
        assert_eq!(self.status, 201, "{}", self.text());
        let value = self.value();
        value["note_id"].as_str().expect("a note id").to_owned()
    }

    /// Reads an answer; `None` if bytes are missing.
    fn read(bytes: &[u8], ended: bool) -> io::Result<Option<Self>> {
        let mut lines = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut lines);
        let parsed = head.parse(bytes).map_err(|error| bad(&error.to_string()))?;
        let httparse::Status::Complete(at) = parsed else {
            return Ok(None);
        };
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let headers: Vec<_> = head
            .headers
            .iter()
            .map(|line| (line.name.to_ascii_lowercase(), text(line.value)))
            .collect();
        let mut reply = Self {
            status: head.code.unwrap_or_default(),
            headers,
            body: Vec::new(),
        };
        let rest = &bytes[at..];
        if reply.header("transfer-encoding") == Some("chunked") {
            let Some(body) = chunks(rest)? else {
                return Ok(None);
            };
            reply.body = body;
            return Ok(Some(reply));
        }
        let wanted = reply.header("content-length").map(str::parse::<usize>);
        match wanted {
            Some(Err(_)) => return Err(bad("content-length is no number")),
            Some(Ok(length)) if rest.len() < length => return Ok(None),
            Some(Ok(length)) if rest.len() > length => {
                return Err(bad("more bytes than content-length says"));
            }
            Some(Ok(_)) => {}
            None if matches!(reply.status, 202 | 204 | 304) => {}
            None if !ended => return Ok(None),
            None => {}
        }
        reply.body = rest.to_vec();
        Ok(Some(reply))
    }
}

/// Puts the chunks of a body together; `None` if the last is missing.
fn chunks(mut rest: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    loop {
        let parsed = httparse::parse_chunk_size(rest).map_err(|_| bad("a bad chunk"))?;
        let httparse::Status::Complete((at, size)) = parsed else {
            return Ok(None);
        };
        let size = usize::try_from(size).map_err(|_| bad("a huge chunk"))?;
        if size == 0 {
            return Ok(Some(body));
        }
        let Some(chunk) = rest.get(at..at + size) else {
            return Ok(None);
        };
        body.extend_from_slice(chunk);
        let Some(after) = rest.get(at + size + 2..) else {
            return Ok(None);
        };
        rest = after;
    }
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
