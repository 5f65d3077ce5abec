//! What is checked before a body is read: host, origin, content type, what is accepted.

use axum::response::Response;
use counterfoil_core::Code;
use http::{HeaderMap, StatusCode, Uri, header};

use super::{HttpOptions, plain};

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Against pages that make a browser call this server: only known host names, only known origins.
pub(super) struct Guard {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Guard {
    pub(super) fn new(options: &HttpOptions) -> Self {
        let lower = |texts: &[String]| texts.iter().map(|t| t.to_ascii_lowercase()).collect();
        Self {
            hosts: lower(&options.allowed_hosts),
            origins: lower(&options.allowed_origins),
        }
    }

    pub(super) fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), &'static str> {
        let Some(host) = host(headers, uri) else {
            return Err("no host; this server answers to known host names only");
        };
        if !self.knows(host) {
            return Err("unknown host; add it to the allowed hosts if it is this server's");
        }
        match headers.get(header::ORIGIN).map(|origin| origin.to_str()) {
            None => Ok(()),
            Some(Ok(origin)) if self.allows(&origin.to_ascii_lowercase()) => Ok(()),
            Some(_) => Err("this origin is not allowed; add it to the allowed origins"),
        }
    }

    fn knows(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        LOOPBACK.contains(&name.as_str()) || self.hosts.contains(&name)
    }

    fn allows(&self, origin: &str) -> bool {
        let host = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        self.origins.iter().any(|known| known == origin)
            || host.is_some_and(|host| self.knows(host))
    }
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

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Anything else than JSON could come from a page without asking the browser's leave.
pub(super) fn content_type(headers: &HeaderMap) -> Result<(), Box<Response>> {
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
#[derive(Clone, Copy)]
pub(super) struct Accepts {
    pub(super) json: bool,
    pub(super) stream: bool,
}

impl Accepts {
    /// `None` if it takes neither. Without a header it takes JSON.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
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
