//! Clients over Streamable HTTP: a thread for each connection.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use crate::exchange::Exchange;
use crate::message::{MODERN, Message, VERSION};
use crate::server::Server;

/// Most bytes of a request.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// One request as it was received.
struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// The answer to one request.
struct Answer<'a> {
    stream: &'a mut TcpStream,
    /// Every answer is a stream.
    always_streams: bool,
    /// Added to the head.
    session: Option<String>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Silent,
    Streaming,
    Answered,
    Ended,
}

/// Listens; prints the port on standard output as soon as it does.
pub(crate) fn serve(server: &Arc<Server>, address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    for stream in listener.incoming() {
        let (server, mut stream) = (Arc::clone(server), stream?);
        thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            // What the socket says is nobody's business here: the client is gone.
            while let Ok(Some(request)) = Request::read(&mut stream) {
                if !serve_one(&server, &mut stream, &request) {
                    break;
                }
            }
            let _ = stream.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

/// Whether another request may follow.
fn serve_one(server: &Arc<Server>, stream: &mut TcpStream, request: &Request) -> bool {
    let mut answer = Answer {
        stream,
        always_streams: server.options.sse,
        session: None,
        state: State::Silent,
    };
    answer.serve(server, request);
    answer.finish()
}

impl Answer<'_> {
    fn serve(&mut self, server: &Arc<Server>, request: &Request) {
        if request.path.split('?').next() != Some("/mcp") {
            self.status(404, &[], "no such place");
            return;
        }
        let session = request.header("mcp-session-id").unwrap_or_default();
        match request.method.as_str() {
            "POST" => self.post(server, request),
            "DELETE" => {
                let known = server.end_session(session);
                self.status(if known { 200 } else { 404 }, &[], "");
            }
            "GET" if server.options.sessions && server.knows(session) => {
                self.stream();
                server.listen(self, None);
            }
            _ => {
                self.status(405, &[("Allow", "POST, DELETE")], "");
            }
        }
    }

    fn post(&mut self, server: &Arc<Server>, request: &Request) {
        let has = |name: &str, part: &str| {
            request
                .header(name)
                .is_some_and(|value| value.contains(part))
        };
        if !has("accept", "application/json") || !has("accept", "text/event-stream") {
            self.status(406, &[], "accept application/json and text/event-stream");
            return;
        }
        if !has("content-type", "application/json") {
            self.status(415, &[], "application/json only");
            return;
        }
        let text = String::from_utf8_lossy(&request.body);
        let Some(message) = Message::read(&text, request.headers.clone()) else {
            let why =
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no message"}}"#;
            self.json(400, why.as_bytes());
            return;
        };
        let modern = message.is_modern() || message.header("mcp-protocol-version") == Some(MODERN);
        if modern && message.method.is_some() {
            if let Err(why) = agrees(&message) {
                self.json(400, message.error(-32020, &why).as_bytes());
                return;
            }
        } else if server.options.sessions {
            let starts = message.method.as_deref() == Some("initialize");
            if starts {
                self.session = Some(server.begin_session());
            } else if message.session.is_empty() {
                let why = message.error(-32600, "a session id is needed");
                self.json(400, why.as_bytes());
                return;
            } else if !server.knows(&message.session) {
                let why = message.error(-32001, "no such session");
                self.json(404, why.as_bytes());
                return;
            }
        }
        if message.id.is_none() || message.method.is_none() {
            server.take(&message);
            self.status(202, &[], "");
            return;
        }
        server.begin(&message.place());
        server.serve(self, &message);
    }

    /// A JSON answer.
    fn json(&mut self, status: u16, text: &[u8]) {
        let head = self.head(status, "application/json", Some(text.len()));
        self.write(head.as_bytes());
        self.write(text);
        self.state = State::Answered;
    }

    fn head(&self, status: u16, kind: &str, length: Option<usize>) -> String {
        let mut head = format!(
            "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\n",
            phrase(status)
        );
        if let Some(session) = &self.session {
            head.push_str(&format!("Mcp-Session-Id: {session}\r\n"));
        }
        match length {
            Some(length) => head.push_str(&format!("Content-Length: {length}\r\n\r\n")),
            None => head.push_str("Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"),
        }
        head
    }

    fn event(&mut self, text: &[u8]) {
        let mut event = b"event: message\ndata: ".to_vec();
        event.extend_from_slice(text);
        event.extend_from_slice(b"\n\n");
        self.chunk(&event);
    }

    fn chunk(&mut self, bytes: &[u8]) {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.write(&chunk);
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.state != State::Ended && self.stream.write_all(bytes).is_err() {
            self.state = State::Ended;
        }
    }

    /// Ends the answer in order; whether another request may follow.
    fn finish(mut self) -> bool {
        match self.state {
            State::Streaming => self.write(b"0\r\n\r\n"),
            // Nothing was said and nothing will be.
            State::Silent => self.state = State::Ended,
            State::Answered | State::Ended => {}
        }
        self.state != State::Ended
    }
}

impl Exchange for Answer<'_> {
    fn tell(&mut self, text: &[u8]) {
        self.stream();
        self.event(text);
    }

    fn answer(&mut self, text: &[u8]) {
        if self.always_streams {
            self.stream();
        }
        match self.state {
            State::Silent => self.json(200, text),
            State::Streaming => self.event(text),
            State::Answered | State::Ended => {}
        }
    }

    fn refuse(&mut self, status: u16, text: &[u8]) {
        match self.state {
            State::Silent => self.json(status, text),
            State::Streaming | State::Answered | State::Ended => self.answer(text),
        }
    }

    fn stream(&mut self) {
        if self.state == State::Silent {
            let head = self.head(200, "text/event-stream", None);
            self.write(head.as_bytes());
            if self.state == State::Silent {
                self.state = State::Streaming;
            }
        }
    }

    fn status(&mut self, code: u16, headers: &[(&str, &str)], body: &str) -> bool {
        if self.state == State::Silent {
            let mut head = format!("HTTP/1.1 {code} {}\r\n", phrase(code));
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            if !body.is_empty() {
                head.push_str("Content-Type: text/plain\r\n");
            }
            head.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
            self.write(head.as_bytes());
            if self.state == State::Silent {
                self.state = State::Answered;
            }
        }
        true
    }

    fn torn(&mut self, text: &[u8]) {
        let half = &text[..text.len() / 2];
        match self.state {
            State::Silent => self.json(200, half),
            State::Streaming => self.event(half),
            State::Answered | State::Ended => {}
        }
    }

    fn cut(&mut self, half: &[u8]) {
        if half.is_empty() {
            self.stream();
            // So that the client has seen the stream before it ends.
            self.chunk(b": open\n\n");
        } else if self.state == State::Streaming {
            self.chunk(half);
        } else {
            let head = self.head(200, "application/json", Some(half.len() * 2));
            self.write(head.as_bytes());
            self.write(half);
        }
        self.state = State::Ended;
    }

    fn is_over(&mut self) -> bool {
        if self.state == State::Ended {
            return true;
        }
        let _ = self.stream.set_nonblocking(true);
        let looked = self.stream.peek(&mut [0]);
        let _ = self.stream.set_nonblocking(false);
        match looked {
            Ok(read) => read == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

impl Request {
    /// Reads one; `None` at the end of the connection.
    fn read(stream: &mut TcpStream) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let mut part = [0; 16 * 1024];
        loop {
            if let Some(request) = Self::parse(&bytes)? {
                return Ok(Some(request));
            }
            match stream.read(&mut part)? {
                0 => return Ok(None),
                read => bytes.extend_from_slice(&part[..read]),
            }
            if bytes.len() > REQUEST_BYTES_MAX {
                return Err(io::Error::other("too long"));
            }
        }
    }

    /// Requests are not sent ahead by anybody here, so what follows one is not kept.
    fn parse(bytes: &[u8]) -> io::Result<Option<Self>> {
        let mut lines = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Request::new(&mut lines);
        let parsed = head.parse(bytes).map_err(io::Error::other)?;
        let httparse::Status::Complete(at) = parsed else {
            return Ok(None);
        };
        let headers: Vec<_> = head
            .headers
            .iter()
            .map(|line| {
                let value = String::from_utf8_lossy(line.value).into_owned();
                (line.name.to_ascii_lowercase(), value)
            })
            .collect();
        let mut request = Self {
            method: head.method.unwrap_or_default().to_owned(),
            path: head.path.unwrap_or_default().to_owned(),
            headers,
            body: Vec::new(),
        };
        let rest = &bytes[at..];
        if request.header("transfer-encoding").is_some() {
            let Some(body) = chunks(rest)? else {
                return Ok(None);
            };
            request.body = body;
            return Ok(Some(request));
        }
        let length = request.header("content-length").unwrap_or("0");
        let length: usize = length.parse().map_err(io::Error::other)?;
        if rest.len() < length {
            return Ok(None);
        }
        request.body = rest[..length].to_vec();
        Ok(Some(request))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Puts the chunks of a body together; `None` if the last is missing.
fn chunks(mut rest: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    loop {
        let size = httparse::parse_chunk_size(rest).map_err(|_| io::Error::other("a bad chunk"))?;
        let httparse::Status::Complete((at, size)) = size else {
            return Ok(None);
        };
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let Some(chunk) = rest.get(at..at + size + 2) else {
            return Ok(None);
        };
        if size == 0 {
            return Ok(Some(body));
        }
        body.extend_from_slice(&chunk[..size]);
        rest = &rest[at + size + 2..];
    }
}

/// Whether the headers say what the body says, as 2026-07-28 wants it.
fn agrees(message: &Message) -> Result<(), String> {
    let same = |name: &str, wanted: Option<&str>| {
        let found = message.header(name);
        if found == wanted {
            return Ok(());
        }
        Err(format!(
            "the header {name} is {found:?}, the body says {wanted:?}"
        ))
    };
    let method = message.method.as_deref();
    if method == Some("initialize") {
        return Ok(());
    }
    same("mcp-method", method)?;
    let version = message.params["_meta"][VERSION].as_str();
    if version.is_some() {
        same("mcp-protocol-version", version)?;
    }
    let name = match method.unwrap_or_default() {
        "tools/call" | "prompts/get" => message.params["name"].as_str(),
        "resources/read" => message.params["uri"].as_str(),
        "tasks/get" | "tasks/update" | "tasks/cancel" => message.params["taskId"].as_str(),
        _ => None,
    };
    if name.is_some() {
        same("mcp-name", name)?;
    }
    if method == Some("tools/call") && message.params["name"] == "deploy" {
        same(
            "mcp-param-region",
            message.params["arguments"]["region"].as_str(),
        )?;
    }
    Ok(())
}

const fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        307 => "Temporary Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        500 => "Internal Server Error",
        _ => "Something",
    }
}
