//! What a message says of itself that HTTP needs to know: its era, and whether its headers agree
//! with its body.

use std::borrow::Cow;

use counterfoil_mcp::{
    framing::{FramingLimits, Incoming, Message, RpcError, codes, read},
    streamable::{LEGACY, MODERN, check_method, check_name, check_version, subject_of},
};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::wire::HttpFacts;

/// Most `Mcp-Param-*` headers of one request that are passed on.
const PARAMS_MAX: usize = 64;

/// Methods of the extension for tasks, whose `Mcp-Name` is the task's.
const TASKS: [&str; 3] = ["tasks/get", "tasks/update", "tasks/cancel"];

/// The two ways to speak MCP over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Era {
    /// 2025-11-25 and older: a handshake, and perhaps a session.
    Legacy,
    /// 2026-07-28, and what may come after it: every request says all there is to know.
    Modern,
}

/// What was read of a message's parameters.
#[derive(Debug)]
pub(super) struct Spoken<'a> {
    method: &'a str,
    version: Option<Cow<'a, str>>,
    subject: Option<Cow<'a, str>>,
    /// `_meta` holds what 2026-07-28 demands.
    pub(super) is_complete: bool,
    /// Something of this stands there twice, so that two readers may see two things.
    is_ambiguous: bool,
}

#[derive(Default, Deserialize)]
struct Params<'a> {
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    uri: Option<&'a RawValue>,
    #[serde(borrow, rename = "taskId")]
    task: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
}

/// An object's members; whether it is one whose members cannot be told.
fn object<'a, T: Default + Deserialize<'a>>(raw: Option<&'a RawValue>) -> (T, bool) {
    match raw.map(|raw| (raw, serde_json::from_str(raw.get()))) {
        None => (T::default(), false),
        Some((_, Ok(members))) => (members, false),
        Some((raw, Err(_))) => (T::default(), raw.get().starts_with('{')),
    }
}

fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str(raw.get()).ok().map(|Text(text)| text)
}

impl<'a> Spoken<'a> {
    /// Reads no further than it must.
    pub(super) fn of(method: &'a str, params: Option<&'a RawValue>) -> Self {
        let (params, params_twice) = object::<Params<'a>>(params);
        let (meta, meta_twice) = object::<Meta<'a>>(params.meta);
        let subject = match subject_of(method) {
            Some("name") => params.name,
            Some("uri") => params.uri,
            Some(_) | None if TASKS.contains(&method) => params.task,
            Some(_) | None => None,
        };
        let version = meta.version.and_then(text);
        let capable = meta
            .capabilities
            .is_some_and(|raw| raw.get().starts_with('{'));
        Self {
            method,
            subject: subject.and_then(text),
            is_complete: version.is_some() && capable,
            version,
            is_ambiguous: params_twice || meta_twice,
        }
    }

    /// Which way it is spoken. A revision that is not known counts as newer, unless the client has
    /// a session or opens one.
    pub(super) fn era(&self, headers: &HeaderMap) -> Era {
        if self.version.is_some() {
            return Era::Modern;
        }
        match (era_of(headers), self.method) {
            (Era::Modern, "initialize") if line(headers, VERSION) != Some(MODERN) => Era::Legacy,
            (Era::Legacy, "server/discover") if !headers.contains_key(SESSION) => Era::Modern,
            (era, _) => era,
        }
    }

    /// Whether the headers of a request say what its body says.
    ///
    /// # Errors
    /// -32020 (400) if they do not, or do not say what 2026-07-28 demands; -32602 (400) if the body
    /// says it twice.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), RpcError> {
        if self.is_ambiguous {
            let message =
                "Invalid params: a member of the parameters or of `_meta` stands there twice";
            return Err(RpcError::new(codes::INVALID_PARAMS, message).with_http_status(400));
        }
        let stated = line(headers, VERSION);
        if let Some(version) = &self.version {
            check_version(stated, version)?;
        }
        // What a later revision demands is not known; what is there must be true.
        let demanded = stated == Some(MODERN);
        let method = line(headers, METHOD);
        if demanded || method.is_some() {
            check_method(method, self.method)?;
        }
        let name = line(headers, NAME);
        if demanded || name.is_some() {
            check_name(name, self.subject.as_deref())?;
        }
        Ok(())
    }
}

pub(super) const VERSION: &str = "mcp-protocol-version";
pub(super) const SESSION: &str = "mcp-session-id";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";

/// The era as far as the headers tell it.
pub(super) fn era_of(headers: &HeaderMap) -> Era {
    match line(headers, VERSION) {
        Some(MODERN) => Era::Modern,
        Some(other) if !LEGACY.contains(&other) && !headers.contains_key(SESSION) => Era::Modern,
        Some(_) | None => Era::Legacy,
    }
}

/// A header's first line.
pub(super) fn line<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// What the upstream may hear of the headers.
pub(super) fn facts(headers: &HeaderMap) -> HttpFacts {
    let stated = [VERSION, METHOD, NAME].into_iter();
    let stated = stated.filter_map(|name| Some((name.to_owned(), line(headers, name)?.to_owned())));
    let parameters = headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("mcp-param-"))
        .take(PARAMS_MAX)
        .filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        });
    HttpFacts {
        headers: stated.chain(parameters).collect(),
    }
}

/// Bounds for reading what is known to be no larger than a message may be.
pub(super) const ENVELOPE: FramingLimits = FramingLimits {
    message_bytes_max: usize::MAX,
    batch_max: 32,
    members_max: 256,
};

/// What an answer says in its envelope.
pub(super) enum Verdict {
    /// It has a result, or cannot be read.
    Result,
    /// It is an error with this code (0 if it has none).
    Error(i64),
}

impl Verdict {
    pub(super) fn of(answer: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Coded {
            #[serde(default)]
            code: i64,
        }
        let Ok(Incoming::Single(Message::Response(response))) = read(answer, ENVELOPE) else {
            return Self::Result;
        };
        match response.outcome {
            Ok(_) => Self::Result,
            Err(error) => {
                Self::Error(serde_json::from_str(error.get()).map_or(0, |Coded { code }| code))
            }
        }
    }

    /// The status of a response of the newer era that carries it alone. `is_complete`: the request
    /// held in `_meta` what that era demands.
    pub(super) fn status(&self, is_complete: bool) -> StatusCode {
        match self {
            Self::Result => StatusCode::OK,
            Self::Error(codes::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
            Self::Error(
                codes::HEADER_MISMATCH
                | codes::MISSING_CAPABILITY
                | codes::UNSUPPORTED_VERSION
                | codes::INVALID_REQUEST
                | codes::PARSE,
            ) => StatusCode::BAD_REQUEST,
            Self::Error(codes::INVALID_PARAMS) if !is_complete => StatusCode::BAD_REQUEST,
            Self::Error(_) => StatusCode::OK,
        }
    }
}

/// The id of a request; `None` for every other message.
pub(super) fn asked(text: &[u8]) -> Option<counterfoil_mcp::framing::Id> {
    match read(text, ENVELOPE) {
        Ok(Incoming::Single(Message::Request(request))) => Some(request.id),
        Ok(
            Incoming::Single(Message::Notification(_) | Message::Response(_)) | Incoming::Batch(_),
        )
        | Err(_) => None,
    }
}
