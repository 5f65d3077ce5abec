use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use counterfoil_proxy::{Keyless, Restart};

/// What `--help` says below the options.
pub(crate) const AFTER: &str = "\
Put it in front of the server's command in the client's configuration:

  counterfoil proxy -- npx -y @modelcontextprotocol/server-filesystem /some/folder

The options of the proxy stand before the command; all that follows it is the server's. Without the
`--` it works too, for clients that keep the first one for themselves.

Receipts are in counterfoil.db in the state folder, which any number of proxies share:
$XDG_STATE_HOME/counterfoil or ~/.local/state/counterfoil, on macOS ~/Library/Application
Support/counterfoil. `counterfoil operations list --state FOLDER` shows what became of calls.

A call without a key (--keyless):
  attach   gets the answer of an identical call whose answer is proven lost; runs if the answers of
           all identical ones arrived; otherwise is told of the possible duplicate
  ask      is told of the possible duplicate instead of being given another call's answer
  mint     runs, always
  require  is refused

The file that --config names is TOML, for several servers. Flags win over it; counterfoil.toml is
not read. Above its first section stand: state, store, store_password_file, store_ca, log, drain,
tools_prefix, tools (false: none), resolve_by_model, and for all servers: keyless, timeout,
restart, replay_for, tombstone_for, client_patience, attach_for, ask_for. Then:

  [upstream.NAME]                 # --name NAME; without it the only one
  command = [\"npx\", \"-y\", \"some-server\"]   # or url = \"https://…\"
  env = { TOKEN = { env = \"MY_TOKEN\" }, OTHER = { file = \"token.txt\" }, PLAIN = \"value\" }
  headers = { Authorization = { env = \"MY_TOKEN\", prefix = \"Bearer \" } }
  folder = \"somewhere\"            # and what is listed above for all servers

  [upstream.NAME.tools.TOOL]      # \"*\" for all others
  read_only = true                # keyless, keep_result, timeout, provider_window
  provider_key = { argument = \"request_id\" }   # or { header = \"Idempotency-Key\" }
  reconcile = { tool = \"find\", arguments = { id = \"{/id}\" }, happened_if_text = \"{/id}\", settle_after = \"1m\" }

  [listen]
  address = \"127.0.0.1:9000\"      # allow_remote, allowed_hosts, allowed_origins
  [[listen.client]]
  name = \"laptop\"
  token_file = \"laptop.token\"

With a command (or --url) as well, the file gives the rules only: those of [upstream.NAME] for
--name NAME. Without --name it may have none but those above the first section.";

/// Puts the guarantee in front of somebody else's MCP server
#[derive(Debug, Args)]
pub(crate) struct Proxy {
    /// Folder of the receipts, shared by all proxies [default: the user's state folder, see below]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) state: Option<PathBuf>,
    /// Where receipts are instead: postgres://user@host/database or sqlite:FILE, never with a password
    #[arg(long, value_name = "URL", conflicts_with = "state")]
    pub(crate) store: Option<String>,
    /// A pooler in transaction mode (PgBouncer) stands in front of the PostgreSQL database
    #[arg(long)]
    pub(crate) store_pooler: bool,
    /// What this server is called; tells two accounts of one server apart
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// What becomes of a changing call that brings no key [default: attach]
    #[arg(
        long,
        value_enum,
        value_name = "attach|ask|mint|require",
        hide_possible_values = true
    )]
    pub(crate) keyless: Option<KeylessName>,
    /// File with several servers and rules for their tools, see below
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The server is at this address, and speaks Streamable HTTP
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub(crate) url: Option<String>,
    /// Send a header whose whole value is in an environment variable, such as
    /// `Authorization=MY_VARIABLE`. May be given several times
    #[arg(long, value_name = "NAME=VARIABLE", value_parser = pair, requires = "url", conflicts_with = "command")]
    pub(crate) header_env: Vec<(String, String)>,
    /// Send a header whose whole value is the only line of a file. May be given several times
    #[arg(long, value_name = "NAME=FILE", value_parser = pair, requires = "url", conflicts_with = "command")]
    pub(crate) header_file: Vec<(String, String)>,
    /// Serve Streamable HTTP here, instead of one client on standard input and output
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Listen on an address that other machines reach; needs clients with tokens in --config.
    /// There is no TLS here: put a proxy in front
    #[arg(long)]
    pub(crate) allow_remote: bool,
    /// What the names of the proxy's own tools begin with [default: counterfoil_]
    #[arg(long, value_name = "PREFIX", conflicts_with = "no_tools")]
    pub(crate) tools_prefix: Option<String>,
    /// Add no tools of the proxy's own
    #[arg(long)]
    pub(crate) no_tools: bool,
    /// How long a changing call may take before its outcome counts as unknown [default: 120s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// What becomes of a server that ended by itself [default: on-demand]
    #[arg(
        long,
        value_enum,
        value_name = "on-demand|never",
        hide_possible_values = true
    )]
    pub(crate) restart: Option<RestartName>,
    /// How long calls under way may take once the client is gone, or the proxy is told to stop
    /// [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) drain: Option<Duration>,
    /// Start although the clock is not where the store last saw it. For once, after it was set right
    #[arg(long)]
    pub(crate) accept_clock: bool,
    /// Print what to put into a client's configuration for this, and do nothing else
    #[arg(long, value_enum, value_name = "CLIENT")]
    pub(crate) print_config: Option<ClientName>,
    /// The server's command and its arguments, best after `--`
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KeylessName {
    Attach,
    Ask,
    Mint,
    Require,
}

impl KeylessName {
    pub(super) const fn policy(self) -> Keyless {
        match self {
            Self::Attach => Keyless::Attach,
            Self::Ask => Keyless::Ask,
            Self::Mint => Keyless::Mint,
            Self::Require => Keyless::Require,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RestartName {
    OnDemand,
    Never,
}

impl RestartName {
    pub(super) const fn policy(self) -> Restart {
        match self {
            Self::OnDemand => Restart::OnDemand,
            Self::Never => Restart::Never,
        }
    }
}

/// Clients whose configuration can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientName {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    Vscode,
    Windsurf,
    Zed,
    Codex,
    GeminiCli,
    Inspector,
}

/// Where to listen. `localhost` is what every machine means by it: it is not looked up.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let literal = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    literal
        .parse()
        .map_err(|_| "it is an address and a port, such as 127.0.0.1:9000".to_owned())
}

/// A duration as people write it.
fn duration(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "0" => Ok(Duration::ZERO),
        text => humantime::parse_duration(text)
            .map_err(|_| "a duration is written such as 120s, 5m or 500ms".to_owned()),
    }
}

/// `NAME=WHERE`. What is wrong is not quoted: somebody may have put the secret itself there.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, place)) if !name.is_empty() && !place.is_empty() => {
            Ok((name.to_owned(), place.to_owned()))
        }
        Some(_) | None => Err("it is the header's name, a `=`, and where its value is".to_owned()),
    }
}
