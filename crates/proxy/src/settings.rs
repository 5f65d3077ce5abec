use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use counterfoil_mcp::MetaPrefix;
use serde_json::Value;

/// What becomes of a mutating call that brings no key (contract §10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keyless {
    /// It is paired with an identical call whose answer is proven undelivered; it runs if every
    /// identical one was delivered; otherwise it is told of the possible duplicate. The default.
    #[default]
    Attach,
    /// As `Attach`, but nothing is ever paired: the caller is told of the possible duplicate.
    Ask,
    /// Every call is a new action.
    Mint,
    /// It is refused.
    Require,
}

/// What becomes of a child that ended by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restart {
    /// It is started again at the next message, at most three times a minute. The default.
    #[default]
    OnDemand,
    /// The proxy ends too, as the client would see it without a proxy.
    Never,
}

/// The server behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A child process that speaks MCP on its standard input and output.
    Command {
        /// The program.
        program: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// Variables set for it beside those it inherits. Never stored or logged.
        environment: Vec<(String, String)>,
        /// Where it runs; `None`: where the proxy does.
        folder: Option<PathBuf>,
    },
    /// A Streamable HTTP server.
    Url {
        /// Its endpoint, `http://` or `https://`.
        url: String,
        /// Headers sent with each request, such as `Authorization`. Never stored or logged.
        headers: Vec<(String, String)>,
    },
}

/// A key that the upstream honours, derived from the operation's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderKey {
    /// As this argument of the tool.
    Argument(String),
    /// As this HTTP header.
    Header(String),
}

/// How to find out whether a call happened whose answer was lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconcile {
    /// The reading tool that is asked.
    pub tool: String,
    /// Its arguments. A string `{/pointer}` is replaced by that part of the call's arguments,
    /// as it is; inside a longer string its text is put in.
    pub arguments: Value,
    /// It happened if the text of the answer holds this (pointers are replaced as above).
    pub happened_if_text: String,
    /// It did not happen if the call lies at least this long back (past its hard deadline) and the
    /// text is not there. `None`: absence proves nothing. Only for a tool whose read is up to date
    /// and whose match is unique to the call (contract §3).
    pub settle_after: Option<Duration>,
}

/// What is configured for one tool; what is not set comes from the tool's own description.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolPolicy {
    /// It changes nothing, whatever its description says (or does not).
    pub read_only: Option<bool>,
    /// Without a key.
    pub keyless: Option<Keyless>,
    /// A key that the upstream honours for this tool.
    pub provider_key: Option<ProviderKey>,
    /// How an unknown outcome is looked into.
    pub reconcile: Option<Reconcile>,
    /// Its result is not stored: a retry is told that it ran, and where to look.
    pub keep_result: Option<bool>,
    /// Hard deadline of a call.
    pub timeout: Option<Duration>,
    /// How long the upstream honours the provider key, from the first send. Default 24 h; without
    /// a provider key it means nothing.
    pub provider_window: Option<Duration>,
}

/// The HTTP front.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listening {
    /// Host names beside the loopback ones.
    pub allowed_hosts: Vec<String>,
    /// Origins that web pages may call from.
    pub allowed_origins: Vec<String>,
    /// Who may call: a name, and the bearer token that shows it. Empty: everybody who reaches the
    /// address, told apart by the digest of what they bring as `Authorization`.
    pub clients: Vec<(String, String)>,
}

/// How one upstream is proxied.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The server.
    pub target: Target,
    /// What the upstream is called: shown in lists, and part of the identity of its calls, so that
    /// two accounts of one server can be told apart. Empty: not named.
    pub name: String,
    /// Without a key. Default `attach`.
    pub keyless: Keyless,
    /// Per tool, by name; `*` for all that are not named.
    pub tools: BTreeMap<String, ToolPolicy>,
    /// Prefix of the proxy's own tools; `None`: there are none. Default `counterfoil_`.
    pub own_tools: Option<String>,
    /// `resolve_operation` is among them, so that a model may settle what is in doubt. Default no.
    pub resolve_by_model: bool,
    /// Prefix of `_meta` keys. Default `dev.counterfoil/`.
    pub meta_prefix: MetaPrefix,
    /// How long results are replayed. Default 48 h.
    pub replay_for: Duration,
    /// How long keys are refused after that. Default 30 days.
    pub tombstone_for: Duration,
    /// Hard deadline of a guarded call. Default 120 s.
    pub timeout: Duration,
    /// Largest stored result, in bytes. Default 262,144.
    pub result_bytes_max: usize,
    /// How long a client usually waits for an answer: a later one proves no delivery. Default 10 s.
    pub client_patience: Duration,
    /// How soon after another an identical call is taken for one of two at once, on purpose. A
    /// client that has given up without a word comes later. At most `client_patience` counts. Default 1 s.
    pub parallel_within: Duration,
    /// For how long a call without a key is paired after the evidence. Default 2 min.
    pub attach_for: Duration,
    /// For how long an unproven delivery makes an identical call ask. Default 24 h.
    pub ask_for: Duration,
    /// The same for an answer that was written in time, and after which nothing came on that
    /// connection: mostly the last one of a conversation. At most `ask_for`. Default 15 min.
    pub ask_for_written: Duration,
    /// How old a finished result of a tool that says nothing of itself may be when it is handed to
    /// a paired call. Default 5 s.
    pub unannotated_fresh_for: Duration,
    /// How long calls in flight may take once the client is gone. Default 10 s.
    pub drain_for: Duration,
    /// A child that ended. Default on demand.
    pub restart: Restart,
    /// Largest message, in bytes. Default 64 MiB.
    pub message_bytes_max: usize,
    /// The HTTP front.
    pub listening: Listening,
}

/// Settings that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSettings {
    /// No program.
    #[error("no command was given; write it after `--`")]
    NoCommand,
    /// An unusable URL.
    #[error("`{0}` is no http:// or https:// address")]
    Url(String),
    /// A header that cannot be sent.
    #[error("the header `{0}` cannot be sent")]
    Header(String),
    /// A URL with a user or a password in it.
    #[error("there are credentials in the address of `{0}`; send them as a header instead")]
    Credentials(String),
    /// A variable that cannot be set.
    #[error("the variable `{0}` cannot be set for the command")]
    Variable(String),
    /// Text with a NUL in it.
    #[error("the command has an argument, or a folder, with NUL in it")]
    Nul,
    /// A name for the upstream that cannot be shown.
    #[error("a name has at most 64 characters, and no control characters")]
    Name,
    /// A value outside of its bounds.
    #[error("{name} must be {form}")]
    Bounds {
        /// Of what.
        name: &'static str,
        /// What it must be.
        form: &'static str,
    },
    /// Windows or limits that do not fit together.
    #[error("{0}")]
    Policy(#[from] counterfoil_core::InvalidPolicy),
    /// A prefix that no tool name can begin with.
    #[error("`{0}` cannot begin a tool's name: letters, digits, `_`, `-` and `.`, at most 64")]
    Prefix(String),
    /// A client of the HTTP front.
    #[error("the client `{0}` needs a name of A-Z a-z 0-9 _ - . and a token of its own")]
    Client(String),
    /// A reconcile recipe.
    #[error("the reconcile recipe of `{tool}`: {why}")]
    Reconcile {
        /// Whose.
        tool: String,
        /// What is wrong.
        why: String,
    },
}

impl Settings {
    /// The defaults for a server.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            name: String::new(),
            keyless: Keyless::default(),
            tools: BTreeMap::new(),
            own_tools: Some("counterfoil_".to_owned()),
            resolve_by_model: false,
            meta_prefix: MetaPrefix::default(),
            replay_for: Duration::from_secs(48 * 3600),
            tombstone_for: Duration::from_secs(30 * 24 * 3600),
            timeout: Duration::from_secs(120),
            result_bytes_max: 262_144,
            client_patience: Duration::from_secs(10),
            parallel_within: Duration::from_secs(1),
            attach_for: Duration::from_secs(120),
            ask_for: Duration::from_secs(24 * 3600),
            ask_for_written: Duration::from_secs(15 * 60),
            unannotated_fresh_for: Duration::from_secs(5),
            drain_for: Duration::from_secs(10),
            restart: Restart::default(),
            message_bytes_max: 64 << 20,
            listening: Listening::default(),
        }
    }

    /// The policy of a tool: its own, with what it leaves open from `*`.
    #[must_use]
    pub fn tool(&self, name: &str) -> ToolPolicy {
        let own = self.tools.get(name).cloned().unwrap_or_default();
        let all = self.tools.get("*").cloned().unwrap_or_default();
        ToolPolicy {
            read_only: own.read_only.or(all.read_only),
            keyless: own.keyless.or(all.keyless),
            provider_key: own.provider_key.or(all.provider_key),
            reconcile: own.reconcile.or(all.reconcile),
            keep_result: own.keep_result.or(all.keep_result),
            timeout: own.timeout.or(all.timeout),
            provider_window: own.provider_window.or(all.provider_window),
        }
    }
}
