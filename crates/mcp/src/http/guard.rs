//! What is checked before a body is read: host, origin, content type, what is accepted.

use std::net::Ipv6Addr;

use axum::response::Response;
use counterfoil_core::Code;
use http::{HeaderMap, StatusCode, Uri, header};

use super::{HttpOptions, InvalidHttpOptions, plain};

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Against pages that make a browser call a server: only known host names, only known origins.
#[derive(Debug)]
pub struct Guard {
    hosts: Vec<Host>,
    origins: Vec<Origin>,
}

impl Guard {
    /// Lets the loopback names through, and what `options` allow.
    ///
    /// # Errors
    /// [`InvalidHttpOptions`] names the entry that can match nothing, or too much.
    pub fn new(options: &HttpOptions) -> Result<Self, InvalidHttpOptions> {
        let hosts = options
            .allowed_hosts
            .iter()
            .map(|entry| allowed_host(entry));
        let origins = options.allowed_origins.iter();
        let origins = origins.map(|entry| allowed_origin(entry));
        Ok(Self {
            hosts: hosts.collect::<Result<_, _>>()?,
            origins: origins.collect::<Result<_, _>>()?,
        })
    }

    /// Whether a request may be looked at.
    ///
    /// # Errors
    /// One sentence for its sender; the status is 403.
    pub fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), &'static str> {
        let Some(host) = host(headers, uri) else {
            return Err("no host, or more than one; this server answers to known host names only");
        };
        let Some(host) = Host::read(host) else {
            return Err("the host cannot be read");
        };
        if !self.knows(&host) {
            return Err("unknown host; add it to the allowed hosts if it is this server's");
        }
        // The target counts more than the header (RFC 9112 §3.2.2), and proxies differ.
        if let Some(target) = uri.authority() {
            let scheme = uri.scheme_str().unwrap_or("http");
            let target = Host::read(target.as_str());
            if target.map(|target| target.seen_from(scheme)) != Some(host.seen_from(scheme)) {
                return Err("the target of the request names another host than its Host header");
            }
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(()),
            (Some(_), Some(_)) => Err("more than one origin"),
            (Some(origin), None) => {
                let origin = origin.to_str().ok().and_then(Origin::read);
                if origin.is_some_and(|origin| self.allows(&origin)) {
                    Ok(())
                } else {
                    Err("this origin is not allowed; add it to the allowed origins")
                }
            }
        }
    }

    fn knows(&self, host: &Host) -> bool {
        LOOPBACK.contains(&host.name.as_str()) || self.hosts.iter().any(|known| known.covers(host))
    }

    fn allows(&self, origin: &Origin) -> bool {
        let web = matches!(origin.scheme.as_str(), "http" | "https");
        self.origins.contains(origin) || web && self.knows(&origin.host)
    }
}

/// A host name in lower case, an IPv6 address in its brackets and usual form, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    port: Option<u16>,
}

impl Host {
    fn read(text: &str) -> Option<Self> {
        let (name, rest) = if let Some(inner) = text.strip_prefix('[') {
            let (address, rest) = inner.split_once(']')?;
            let address: Ipv6Addr = address.parse().ok()?;
            (format!("[{address}]"), rest)
        } else {
            let end = text.find(':').unwrap_or(text.len());
            (text[..end].to_ascii_lowercase(), &text[end..])
        };
        let port = match rest.strip_prefix(':') {
            None if rest.is_empty() => None,
            Some("") => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            None | Some(_) => return None,
        };
        (!name.is_empty()).then_some(Self { name, port })
    }

    /// The same with its port, where the scheme has a usual one.
    fn seen_from(&self, scheme: &str) -> Self {
        Self {
            name: self.name.clone(),
            port: self.port.or_else(|| usual_port(scheme)),
        }
    }

    /// As an entry of the allowed hosts: without a port it means all of them. Behind a proxy that
    /// ends TLS nothing tells which of the usual ports a missing one is.
    fn covers(&self, asked: &Self) -> bool {
        let port = match (self.port, asked.port) {
            (None, _) | (Some(80 | 443), None) => true,
            (known, asked) => known == asked,
        };
        port && self.name == asked.name
    }
}

fn usual_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        _ => None,
    }
}

/// Where a web page comes from: never `null`, which stands for nobody in particular.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: Host,
}

impl Origin {
    fn read(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        if scheme.is_empty() || !scheme.bytes().all(plain) {
            return None;
        }
        let host = Host::read(rest)?;
        is_name(&host.name).then(|| Self {
            host: host.seen_from(&scheme),
            scheme,
        })
    }
}

/// What a host can be called, in ASCII; in brackets it was read as an address.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    name.starts_with('[') || name.bytes().all(fits)
}

/// What cannot be meant by one entry of either list.
fn refused(entry: &str) -> Option<&'static str> {
    if entry.contains('*') {
        Some("there are no wildcards; name each one")
    } else if entry.contains([',', ';']) || entry.contains(char::is_whitespace) {
        Some("it is a list; give each one as an entry of its own")
    } else {
        None
    }
}

fn allowed_host(entry: &str) -> Result<Host, InvalidHttpOptions> {
    let wrong = |why| InvalidHttpOptions::Host {
        entry: entry.to_owned(),
        why,
    };
    if let Some(why) = refused(entry) {
        return Err(wrong(why));
    }
    if entry.contains('/') {
        return Err(wrong("give the host name only, without scheme and path"));
    }
    Host::read(entry)
        .filter(|host| is_name(&host.name))
        .ok_or_else(|| wrong("it must be a host name or an address, or one with a port: `mcp.example`, `mcp.example:8443`, `[2001:db8::1]`"))
}

fn allowed_origin(entry: &str) -> Result<Origin, InvalidHttpOptions> {
    let wrong = |why| InvalidHttpOptions::Origin {
        entry: entry.to_owned(),
        why,
    };
    if let Some(why) = refused(entry) {
        return Err(wrong(why));
    }
    Origin::read(entry.strip_suffix('/').unwrap_or(entry)).ok_or_else(|| {
        wrong("it must be a scheme and a host, with a port if it has one, and no path: `https://app.example`")
    })
}

/// The host a request addresses. More than one is none.
pub(super) fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let mut lines = headers.get_all(header::HOST).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => line.to_str().ok(),
        (None, None) => uri.authority().map(http::uri::Authority::as_str),
        (_, Some(_)) => None,
    }
}

/// Anything else than JSON could come from a page without asking the browser's leave.
///
/// # Errors
/// The refusal (415).
pub fn content_type(headers: &HeaderMap) -> Result<(), Box<Response>> {
    let given = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = given
        .and_then(|value| value.split(';').next())
        .map(str::trim);
    if kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let why = "send `Content-Type: application/json`";
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(Box::new(plain(status, Code::UnsupportedMediaType, why)))
}

/// The forms of an answer that a client takes.
#[derive(Clone, Copy, Debug)]
pub struct Accepts {
    /// One JSON document.
    pub json: bool,
    /// Server-sent events.
    pub stream: bool,
}

impl Accepts {
    /// `None` if it takes neither. Without a header it takes JSON.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut accepts = Self {
            json: false,
            stream: false,
        };
        let mut said = false;
        for line in headers.get_all(header::ACCEPT) {
            said = true;
            for range in line.to_str().unwrap_or_default().split(',') {
                let mut parts = range.split(';').map(str::trim);
                let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
                if parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000")) {
                    continue;
                }
                accepts.json |=
                    matches!(kind.as_str(), "application/json" | "application/*" | "*/*");
                accepts.stream |= matches!(kind.as_str(), "text/event-stream" | "text/*");
            }
        }
        if !said {
            accepts.json = true;
        }
        (accepts.json || accepts.stream).then_some(accepts)
    }
}
