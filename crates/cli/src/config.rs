//! `counterfoil.toml` < environment < flags. Every value remembers where it came from.

mod layers;
mod settings;

use std::{fmt, net::SocketAddr, ops::RangeInclusive, path::PathBuf, str::FromStr, time::Duration};

pub(crate) use layers::{Flags, Found, Layers, Source, defaults, lay, layers, table, unreadable};
pub(crate) use settings::{Kind, SETTINGS, Setting, nearest};

use crate::{
    address::{Address, has_password},
    exit::{Exit, Failure},
};

/// What is in force, checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) store: Address,
    /// The file in which `store` stands with a password.
    pub(crate) store_in: Option<PathBuf>,
    pub(crate) store_password_file: Option<PathBuf>,
    pub(crate) store_pooler: bool,
    pub(crate) store_ca: Option<PathBuf>,
    pub(crate) store_connections: usize,
    pub(crate) migrate: Migrate,
    pub(crate) listen: SocketAddr,
    pub(crate) data: PathBuf,
    pub(crate) allow_remote: bool,
    pub(crate) replay_for: Duration,
    pub(crate) tombstone_for: Duration,
    pub(crate) meta_prefix: String,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) allowed_origins: Vec<String>,
    pub(crate) body_bytes_max: usize,
    pub(crate) connections_max: usize,
    pub(crate) headers_max: usize,
    pub(crate) queue_max: usize,
    pub(crate) rate_per_second: u32,
    pub(crate) rate_burst: u32,
    pub(crate) drain: Duration,
    pub(crate) lock_patience: Duration,
    pub(crate) key_file: Option<PathBuf>,
    pub(crate) seal_notes: bool,
    pub(crate) log: String,
    pub(crate) log_json: bool,
    pub(crate) otlp_endpoint: Option<String>,
}

/// Whether a start brings the tables up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Migrate {
    Auto,
    Never,
}

impl Config {
    /// Reads what is in force.
    pub(crate) fn load(flags: &Flags) -> Result<Self, Failure> {
        Self::read(&layers(flags, &crate::environment::variables())?)
    }

    /// Checks the values of `layers`.
    pub(crate) fn read(layers: &Layers) -> Result<Self, Failure> {
        let log_format = text(layers, "telemetry.log_format")?;
        let config = Self {
            store: address(layers)?,
            store_in: match found(layers, "store")? {
                Found {
                    text,
                    source: Source::File(path),
                } if has_password(text) => Some(path.clone()),
                Found { .. } => None,
            },
            store_password_file: optional(layers, "store_password_file")?.map(PathBuf::from),
            store_pooler: parsed(layers, "store_pooler", "true or false")?,
            store_ca: optional(layers, "store_ca")?.map(PathBuf::from),
            store_connections: between(layers, "store_connections", CONNECTIONS)?,
            migrate: match text(layers, "migrate")?.as_str() {
                "auto" => Migrate::Auto,
                "never" => Migrate::Never,
                _ => return Err(one_of(layers, "migrate", &["auto", "never"])),
            },
            listen: parsed(
                layers,
                "server.listen",
                "an address and a port, such as 127.0.0.1:8700",
            )?,
            data: optional(layers, "server.data")?
                .map(PathBuf::from)
                .ok_or_else(|| wrong(layers, "server.data", "a folder"))?,
            allow_remote: parsed(layers, "server.allow_remote", "true or false")?,
            replay_for: time(layers, "retention.replay_for", Duration::ZERO..=CENTURY)?,
            tombstone_for: time(layers, "retention.tombstone_for", Duration::ZERO..=CENTURY)?,
            meta_prefix: text(layers, "mcp.meta_prefix")?,
            allowed_hosts: list(layers, "mcp.allowed_hosts")?,
            allowed_origins: list(layers, "mcp.allowed_origins")?,
            body_bytes_max: between(layers, "limits.body_bytes_max", 1..=BODY_BYTES_MAX)?,
            connections_max: between(layers, "limits.connections_max", 1..=65_536)?,
            // Host, Authorization, Idempotency-Key and what every client adds.
            headers_max: between(layers, "limits.headers_max", 16..=1_000)?,
            queue_max: between(layers, "limits.queue_max", 1..=1_000_000)?,
            rate_per_second: between(layers, "limits.rate_per_second", 0..=1_000_000)?,
            rate_burst: between(layers, "limits.rate_burst", 1..=1_000_000)?,
            drain: time(layers, "limits.drain", Duration::ZERO..=HOUR)?,
            // Without any, each call would find the writer's lock taken.
            lock_patience: time(layers, "limits.lock_patience", PATIENCE_MIN..=PATIENCE_MAX)?,
            key_file: optional(layers, "sealing.key_file")?.map(PathBuf::from),
            seal_notes: parsed(layers, "sealing.notes", "true or false")?,
            log: text(layers, "telemetry.log")?,
            log_json: match log_format.as_str() {
                "text" => false,
                "json" => true,
                _ => return Err(one_of(layers, "telemetry.log_format", &["text", "json"])),
            },
            otlp_endpoint: optional(layers, "telemetry.otlp_endpoint")?,
        };
        config.check(layers)?;
        Ok(config)
    }

    /// An address that other machines reach is listened on only if somebody said so.
    pub(crate) fn check_address(&self) -> Result<(), Failure> {
        if self.listen.ip().is_loopback() || self.allow_remote {
            return Ok(());
        }
        Err(Failure::new(
            Exit::Config,
            format!(
                "{} can be reached by other machines, and there is no TLS here",
                self.listen
            ),
        )
        .hint("listen on 127.0.0.1 behind a proxy that ends TLS, or say --allow-remote"))
    }

    /// What must fit together.
    fn check(&self, layers: &Layers) -> Result<(), Failure> {
        let outlives = self.replay_for > self.tombstone_for;
        if outlives && !self.tombstone_for.is_zero() {
            return Err(Failure::new(
                Exit::Config,
                format!(
                    "retention.replay_for ({}) is longer than retention.tombstone_for ({})",
                    text(layers, "retention.replay_for")?,
                    text(layers, "retention.tombstone_for")?
                ),
            )
            .hint("make tombstone_for at least as long, or 0 for no tombstones"));
        }
        if matches!(&self.store, Address::Postgres(url) if has_password(url))
            && self.store_password_file.is_some()
        {
            return Err(Failure::new(
                Exit::Config,
                "there is a password in `store` and another one in store_password_file",
            )
            .hint("leave one of them out"));
        }
        if self.seal_notes && self.key_file.is_none() {
            return Err(Failure::new(
                Exit::Config,
                "sealing.notes is on and there is no sealing.key_file",
            )
            .hint("write one with: (printf '1 '; openssl rand -base64 32) > sealing.keys"));
        }
        if let Err(error) = counterfoil_mcp::MetaPrefix::new(&self.meta_prefix) {
            return Err(Failure::new(Exit::Config, format!("mcp.meta_prefix: {error}"))
                .hint("a name of yours turned round, such as `dev.example/`, or one word such as `assay`"));
        }
        let plain = |endpoint: &String| endpoint.starts_with("http://");
        if !self.otlp_endpoint.as_ref().is_none_or(plain) {
            return Err(Failure::new(
                Exit::Config,
                "telemetry.otlp_endpoint must begin with http://",
            )
            .hint("send to a collector on this machine, and let it speak TLS to the rest"));
        }
        if self.otlp_endpoint.is_some() && cfg!(not(feature = "otlp")) {
            return Err(Failure::new(
                Exit::Config,
                "telemetry.otlp_endpoint is set and this build cannot export",
            )
            .hint("build with `--features otlp`, or leave it out"));
        }
        Ok(())
    }
}

/// Fewer would leave none for atomic handlers beside those that have a task of their own.
const CONNECTIONS: RangeInclusive<usize> = 8..=1000;
const BODY_BYTES_MAX: usize = 256 << 20;
const HOUR: Duration = Duration::from_secs(3600);
const CENTURY: Duration = Duration::from_secs(36_500 * 86_400);
const PATIENCE_MIN: Duration = Duration::from_millis(10);
const PATIENCE_MAX: Duration = Duration::from_secs(300);

fn found<'a>(layers: &'a Layers, name: &str) -> Result<&'a Found, Failure> {
    layers
        .get(name)
        .ok_or_else(|| Failure::new(Exit::Failure, format!("no setting {name}")))
}

fn text(layers: &Layers, name: &str) -> Result<String, Failure> {
    Ok(found(layers, name)?.text.clone())
}

fn optional(layers: &Layers, name: &str) -> Result<Option<String>, Failure> {
    Ok(Some(text(layers, name)?).filter(|text| !text.is_empty()))
}

fn list(layers: &Layers, name: &str) -> Result<Vec<String>, Failure> {
    let text = text(layers, name)?;
    let items = text.split(',').map(str::trim);
    Ok(items
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect())
}

fn parsed<T: FromStr>(layers: &Layers, name: &str, form: &str) -> Result<T, Failure> {
    let text = text(layers, name)?;
    text.trim().parse().map_err(|_| wrong(layers, name, form))
}

/// A whole number within its bounds.
fn between<T: FromStr + PartialOrd + fmt::Display>(
    layers: &Layers,
    name: &str,
    range: RangeInclusive<T>,
) -> Result<T, Failure> {
    let form = format!("a whole number from {} to {}", range.start(), range.end());
    let number = parsed(layers, name, &form)?;
    if range.contains(&number) {
        return Ok(number);
    }
    Err(wrong(layers, name, &form))
}

/// A duration within its bounds.
fn time(layers: &Layers, name: &str, range: RangeInclusive<Duration>) -> Result<Duration, Failure> {
    let text = text(layers, name)?;
    let given = match text.trim() {
        "0" => Some(Duration::ZERO),
        text => humantime::parse_duration(text).ok(),
    };
    let given =
        given.ok_or_else(|| wrong(layers, name, "a duration, such as 48h, 30days or 500ms"))?;
    if range.contains(&given) {
        return Ok(given);
    }
    let shown = |bound: &Duration| match bound.as_secs() {
        seconds if seconds >= 86_400 => format!("{}days", seconds / 86_400),
        _ => humantime::format_duration(*bound).to_string(),
    };
    let form = format!(
        "a duration from {} to {}",
        shown(range.start()),
        shown(range.end())
    );
    Err(wrong(layers, name, &form))
}

/// Where the receipts are. Nothing that is said quotes it.
fn address(layers: &Layers) -> Result<Address, Failure> {
    let Found { text, source } = found(layers, "store")?;
    if let Source::Flag(flag) = source
        && has_password(text)
    {
        return Err(Failure::new(
            Exit::Usage,
            format!("there is a password in {flag}, where every user of this machine can read it"),
        )
        .hint("put the address into COUNTERFOIL_STORE or counterfoil.toml, or leave the password out and name a file with it: COUNTERFOIL_STORE_PASSWORD_FILE or store_password_file"));
    }
    Address::parse(text)
        .map_err(|why| Failure::split(Exit::Config, &format!("store ({source}) {why}")))
}

/// A value that is none of a few words.
fn one_of(layers: &Layers, name: &str, words: &[&str]) -> Failure {
    let failure = wrong(layers, name, &words.join(" or "));
    let given = text(layers, name).unwrap_or_default();
    match nearest(&given, words.iter().copied()) {
        Some(near) => failure.hint(format!("did you mean {near}?")),
        None => failure,
    }
}

fn wrong(layers: &Layers, name: &str, form: &str) -> Failure {
    let source = found(layers, name).map_or_else(|_| String::new(), |f| f.source.to_string());
    Failure::new(Exit::Config, format!("{name} ({source}) must be {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(environment: &[(&str, &str)], file: Option<&str>) -> Result<Layers, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counterfoil.toml");
        std::fs::write(&path, file.unwrap_or_default()).unwrap();
        let flags = Flags {
            config: Some(path),
            values: vec![("server.listen", "--listen", "127.0.0.1:1".to_owned())],
        };
        let environment: Vec<_> = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        layers(&flags, &environment)
    }

    #[test]
    fn every_default_is_valid() {
        let config = Config::read(&with(&[], None).unwrap()).unwrap();
        assert_eq!(config.replay_for, Duration::from_secs(48 * 3600));
        assert_eq!(config.tombstone_for, Duration::from_secs(30 * 86_400));
        assert_eq!(config.body_bytes_max, 1_048_576);
        assert!(config.key_file.is_none());
    }

    #[test]
    fn the_guide_names_every_setting_with_its_default() {
        let guide = include_str!("../../../docs/guides/operating.md");
        for setting in SETTINGS {
            let line = format!("| `{}` |", setting.name);
            let line = guide.lines().find(|text| text.starts_with(&line));
            let line = line.unwrap_or_else(|| panic!("{} is missing", setting.name));
            let default = line.split('|').nth(2).unwrap();
            let expected = if setting.default.is_empty() {
                "none"
            } else {
                setting.default
            };
            assert!(default.contains(expected), "{}: {default}", setting.name);
        }
    }

    #[test]
    fn flags_beat_the_environment_beats_the_file() {
        let file = "[server]\nlisten = \"127.0.0.1:2\"\n[retention]\nreplay_for = \"1h\"\ntombstone_for = 0\n[mcp]\nmeta_prefix = \"assay\"";
        let variables = [
            ("COUNTERFOIL_SERVER_LISTEN", "127.0.0.1:3"),
            ("COUNTERFOIL_RETENTION_REPLAY_FOR", "2h"),
        ];
        let layers = with(&variables, Some(file)).unwrap();
        let config = Config::read(&layers).unwrap();
        assert_eq!(config.listen.port(), 1);
        assert_eq!(config.replay_for, Duration::from_secs(7200));
        assert_eq!(config.tombstone_for, Duration::ZERO);
        assert_eq!(config.meta_prefix, "assay");
        let source = |name: &str| layers[name].source.to_string();
        assert_eq!(source("server.listen"), "flag --listen");
        assert_eq!(
            source("retention.replay_for"),
            "environment COUNTERFOIL_RETENTION_REPLAY_FOR"
        );
        assert!(source("mcp.meta_prefix").starts_with("file "));
        assert_eq!(source("limits.drain"), "default");
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_right_one() {
        let said = |result: Result<Layers, Failure>| result.unwrap_err().to_string();
        let text = said(with(&[], Some("[retention]\nreplay_fro = \"1h\"")));
        assert!(
            text.contains("did you mean retention.replay_for?"),
            "{text}"
        );
        let text = said(with(&[], Some("[retenton]\nreplay_for = \"1h\"")));
        assert!(text.contains("did you mean retention?"), "{text}");
        let text = said(with(&[("COUNTERFOIL_RETENTION_REPLAYFOR", "1h")], None));
        assert!(
            text.contains("did you mean COUNTERFOIL_RETENTION_REPLAY_FOR?"),
            "{text}"
        );
    }

    #[test]
    fn wrong_values_say_which_and_what_they_must_be() {
        for (file, part) in [
            ("[retention]\nreplay_for = 48", "retention.replay_for"),
            ("[retention]\nreplay_for = \"soon\"", "must be a duration"),
            ("[retention]\nreplay_for = \"60days\"", "longer than"),
            ("[limits]\nqueue_max = 0", "from 1 to 1000000"),
            ("[limits]\nqueue_max = 9223372036854775807", "from 1 to"),
            ("[limits]\nconnections_max = 65537", "from 1 to 65536"),
            ("[limits]\nheaders_max = 15", "from 16 to 1000"),
            ("[limits]\nbody_bytes_max = 268435457", "from 1 to"),
            ("[limits]\nrate_per_second = 1000001", "from 0 to"),
            ("[limits]\nrate_burst = 0", "from 1 to"),
            ("[limits]\nlock_patience = \"0\"", "from 10ms to 5m"),
            ("[limits]\nlock_patience = \"1h\"", "from 10ms to 5m"),
            ("[limits]\ndrain = \"2h\"", "from 0s to 1h"),
            (
                "[retention]\ntombstone_for = \"290000y\"",
                "from 0s to 36500days",
            ),
            ("[server]\ndata = \"\"", "must be a folder"),
            ("[limits]\nqueue_max = \"many\"", "a whole number"),
            ("[sealing]\nnotes = true", "sealing.key_file"),
            ("[server]\nallow_remote = 1", "true or false"),
            ("[server\n", "line 1"),
            (
                "[telemetry]\notlp_endpoint = \"https://collector\"",
                "begin with http://",
            ),
            ("server = 1", "section"),
            ("store = 1", "text in quotes"),
            (
                "store = \"postgre://u:hunter2@h/d\"",
                "did you mean postgres://?",
            ),
            (
                "store = \"postgres//u:hunter2@h/d\"",
                "did you mean postgres://?",
            ),
            (
                "store = \"postgres://u@h/d?passwd=hunter2\"",
                "did you mean password?",
            ),
            ("stor = \"x\"", "did you mean store?"),
            ("[limits]\nstore = \"x\"", "above the first one"),
            ("store_connections = 7", "from 8 to 1000"),
            ("migrate = \"nevr\"", "did you mean never?"),
            (
                "store = \"postgres://u:p@h/d\"\nstore_password_file = \"f\"",
                "another one",
            ),
            (
                "[mcp]\nmeta_prefix = \"io.modelcontextprotocol\"",
                "reserved",
            ),
        ] {
            let result = with(&[], Some(file)).and_then(|layers| Config::read(&layers));
            let failure = result.unwrap_err();
            assert_eq!(failure.exit, Exit::Config, "{file}");
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
            assert!(failure.to_string().contains(part), "{file}: {failure}");
        }
    }
}
