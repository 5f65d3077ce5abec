/// How a setting is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Free text.
    Text,
    /// `48h`, `30days`, `500ms`, `0`.
    Duration,
    /// A whole number, not negative.
    Number,
    /// `true` or `false`.
    Switch,
    /// In the file an array of strings, elsewhere separated by commas.
    List,
    /// In the file relative to the file's folder.
    Path,
    /// An address of a store. A file of its own is in the file relative to the file's folder.
    Store,
}

/// One setting: its name, how it is spelled, its default, and what it is.
#[derive(Debug)]
pub(crate) struct Setting {
    /// `section.key`, or a `key` above the sections.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: &'static str,
    pub(crate) about: &'static str,
}

impl Setting {
    /// Its section; `None` for one that stands above the sections.
    pub(crate) fn section(&self) -> Option<&'static str> {
        self.name.split_once('.').map(|(section, _)| section)
    }

    /// Its environment variable, `COUNTERFOIL_SECTION_KEY`.
    pub(crate) fn variable(&self) -> String {
        format!("COUNTERFOIL_{}", self.name.replace('.', "_").to_uppercase())
    }
}

const fn setting(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    about: &'static str,
) -> Setting {
    Setting {
        name,
        kind,
        default,
        about,
    }
}

/// Everything that can be set.
pub(crate) const SETTINGS: &[Setting] = &[
    setting(
        "store",
        Kind::Store,
        "",
        "where receipts are: postgres://user@host:5432/database, sqlite:FILE, or nothing for the SQLite file in the data folder",
    ),
    setting(
        "store_password_file",
        Kind::Path,
        "",
        "file whose only line is the password of the PostgreSQL database",
    ),
    setting(
        "store_pooler",
        Kind::Switch,
        "false",
        "a pooler in transaction mode (PgBouncer) stands in front of the PostgreSQL database",
    ),
    setting(
        "store_ca",
        Kind::Path,
        "",
        "certificate authority to trust for the PostgreSQL database beside the system's, a PEM file",
    ),
    setting(
        "store_connections",
        Kind::Number,
        "20",
        "most connections of this process to the PostgreSQL database",
    ),
    setting(
        "migrate",
        Kind::Text,
        "auto",
        "`auto`: a start brings the tables up to date; `never`: only `counterfoil migrate` does",
    ),
    setting(
        "server.listen",
        Kind::Text,
        "127.0.0.1:8700",
        "address and port to listen on",
    ),
    setting(
        "server.data",
        Kind::Path,
        "counterfoil-data",
        "folder of the database and the first agent key",
    ),
    setting(
        "server.allow_remote",
        Kind::Switch,
        "false",
        "listen on an address that other machines reach (there is no TLS here)",
    ),
    setting(
        "retention.replay_for",
        Kind::Duration,
        "48h",
        "how long a stored result is replayed, from the end of the operation",
    ),
    setting(
        "retention.tombstone_for",
        Kind::Duration,
        "30days",
        "how long a used key is refused, from the end of the operation; 0: after replay_for it is a new action",
    ),
    setting(
        "mcp.meta_prefix",
        Kind::Text,
        "dev.counterfoil/",
        "prefix of our names in _meta",
    ),
    setting(
        "mcp.allowed_hosts",
        Kind::List,
        "",
        "host names, without port, taken beside loopback and the address listened on",
    ),
    setting(
        "mcp.allowed_origins",
        Kind::List,
        "",
        "Origin headers taken; a request without Origin is always taken",
    ),
    setting(
        "limits.body_bytes_max",
        Kind::Number,
        "1048576",
        "largest request body, in bytes",
    ),
    setting(
        "limits.connections_max",
        Kind::Number,
        "1024",
        "most connections at once",
    ),
    setting(
        "limits.headers_max",
        Kind::Number,
        "100",
        "most headers of a request",
    ),
    setting(
        "limits.queue_max",
        Kind::Number,
        "4096",
        "most callers waiting to be written",
    ),
    setting(
        "limits.rate_per_second",
        Kind::Number,
        "2000",
        "calls per second of one agent key in the long run; 0: no limit",
    ),
    setting(
        "limits.rate_burst",
        Kind::Number,
        "10000",
        "calls of one agent key at once after a pause",
    ),
    setting(
        "limits.drain",
        Kind::Duration,
        "10s",
        "how long a stop waits for what is in flight",
    ),
    setting(
        "limits.lock_patience",
        Kind::Duration,
        "5s",
        "how long to wait for a lock of another process, or for a connection to the database",
    ),
    setting(
        "sealing.key_file",
        Kind::Path,
        "",
        "keys that stored results are sealed with, one `<id> <32 bytes in base64>` a line, the first one active",
    ),
    setting(
        "sealing.notes",
        Kind::Switch,
        "false",
        "seal the stored results of create_note and POST /api/v1/notes",
    ),
    setting(
        "telemetry.log",
        Kind::Text,
        "info",
        "what is logged to stderr, such as `info` or `counterfoil_engine=debug`",
    ),
    setting(
        "telemetry.log_format",
        Kind::Text,
        "text",
        "`text` or `json`",
    ),
    setting(
        "telemetry.otlp_endpoint",
        Kind::Text,
        "",
        "where spans go, over OTLP/HTTP, such as http://127.0.0.1:4318/v1/traces; needs a build with the feature `otlp`",
    ),
];

/// The environment variable that names the configuration file.
pub(crate) const CONFIG_VARIABLE: &str = "COUNTERFOIL_CONFIG";

/// The candidate nearest to `wrong`, if one is near enough to be meant.
pub(crate) fn nearest<'a>(
    wrong: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let scored = candidates.map(|name| (strsim::jaro_winkler(wrong, name), name));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > 0.75)
        .map(|(_, name)| name)
}
