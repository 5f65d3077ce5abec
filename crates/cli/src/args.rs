use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::{
    config::Flags,
    proxy::{self, Proxy},
};

/// Makes an agent's tool calls safe to retry.
#[derive(Debug, Parser)]
#[command(
    name = "counterfoil",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Settings come from counterfoil.toml (or the file --config or COUNTERFOIL_CONFIG names), then the\n\
                  environment (COUNTERFOIL_SECTION_KEY, COUNTERFOIL_STORE), then flags;\n\
                  `counterfoil config check` shows what is in force and why.\n\n\
                  Exit codes: 0 done, 1 failure, 2 wrong command line, 3 wrong configuration,\n\
                  4 store or data folder unusable, 5 not found, 6 cannot listen."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve REST and MCP over HTTP
    Serve(Serve),
    /// Serve MCP to one local client
    Mcp(Mcp),
    /// Put the guarantee in front of somebody else's MCP server
    ///
    /// `counterfoil proxy -- COMMAND ARGS…` speaks MCP on standard input and output, starts the
    /// command, and passes everything between the two as it is. A call of a tool that changes
    /// something runs once: retried, timed-out and reconnected calls get its first answer.
    #[command(after_long_help = proxy::AFTER)]
    Proxy(Box<Proxy>),
    /// Agent keys: the credentials of callers
    #[command(subcommand)]
    Keys(Keys),
    /// What became of calls
    #[command(subcommand)]
    Operations(Operations),
    /// Bring the tables of the store up to date
    ///
    /// A start does the same, unless `migrate = "never"` is set: for nodes whose role in the
    /// database may not change tables. Any number may be run at once.
    Migrate(Reading),
    /// Record lapsed leases and free the space of expired receipts
    ///
    /// A receipt is purged only when two sweeps at least an hour apart, by a clock that no
    /// adjustment moves, both find it past its time. The first sweep therefore purges nothing, and
    /// a jump of the wall clock purges nothing either. A running server sweeps hourly by itself.
    Sweep(Receipts),
    /// The store as a whole: check it, move it
    #[command(subcommand)]
    Store(StoreCommand),
    /// The configuration
    #[command(subcommand)]
    Config(Config),
    /// Print a completion script
    Completions {
        /// For which shell
        shell: Shell,
    },
}

/// Where things are. Every command takes these.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// Folder of the SQLite database and the first agent key [default: ./counterfoil-data]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Where receipts are: postgres://user@host/database or sqlite:FILE, never with a password
    /// [default: the SQLite database in the data folder]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// A pooler in transaction mode (PgBouncer) stands in front of the PostgreSQL database
    #[arg(long)]
    pub(crate) store_pooler: bool,
    /// Configuration file [default: ./counterfoil.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl Place {
    pub(crate) fn flags(&self) -> Flags {
        let data = self.data.as_ref().map(|data| data.display().to_string());
        let pooler = self.store_pooler.then(|| true.to_string());
        let given = [
            ("server.data", "--data", data),
            ("store", "--store", self.store.clone()),
            ("store_pooler", "--store-pooler", pooler),
        ];
        Flags {
            config: self.config.clone(),
            values: given
                .into_iter()
                .filter_map(|(name, flag, value)| Some((name, flag, value?)))
                .collect(),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Address and port to listen on [default: 127.0.0.1:8700]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<String>,
    /// Listen on an address that other machines reach. There is no TLS here: put a proxy in front
    #[arg(long)]
    pub(crate) allow_remote: bool,
    /// Start although the clock is not where the store last saw it. For once, after it was set right
    #[arg(long)]
    pub(crate) accept_clock: bool,
}

impl Serve {
    pub(crate) fn flags(&self) -> Flags {
        let mut flags = self.place.flags();
        if let Some(listen) = &self.listen {
            let flag = ("server.listen", "--listen", listen.clone());
            flags.values.push(flag);
        }
        if self.allow_remote {
            let flag = ("server.allow_remote", "--allow-remote", "true".to_owned());
            flags.values.push(flag);
        }
        flags
    }
}

#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// Speak MCP on standard input and output (the only way yet)
    #[arg(long, required = true)]
    pub(crate) stdio: bool,
    #[command(flatten)]
    pub(crate) place: Place,
    /// File whose only line is the agent key to act as [default: FOLDER/agent-key]
    #[arg(long, value_name = "FILE")]
    pub(crate) agent_key_file: Option<PathBuf>,
}

/// A command that reads, or reports what it did.
#[derive(Debug, Args)]
pub(crate) struct Reading {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A command on receipts, whoever made them: a server, an application, a proxy.
#[derive(Debug, Args)]
pub(crate) struct Receipts {
    #[command(flatten)]
    reading: Reading,
    /// What `counterfoil proxy` keeps in this state folder [the proxy's default is the user's,
    /// such as ~/.local/state/counterfoil]
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["data", "store"])]
    state: Option<PathBuf>,
}

impl Receipts {
    /// Whether JSON is printed.
    pub(crate) const fn json(&self) -> bool {
        self.reading.json
    }

    pub(crate) fn flags(&self) -> Flags {
        let mut flags = self.reading.place.flags();
        if let Some(state) = &self.state {
            let folder = state.display().to_string();
            flags.values.push(("server.data", "--state", folder));
            // Whatever else is configured: the receipts are in this folder.
            flags.values.push(("store", "--state", String::new()));
        }
        flags
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RoleName {
    /// Calls, and sees its own operations
    Member,
    /// Also sees the workspace's operations and handles its keys
    Admin,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Issue a key; its secret is shown once
    Issue {
        #[command(flatten)]
        reading: Reading,
        /// In this workspace, which is created if it is not there
        #[arg(long, value_name = "W", default_value = counterfoil_server::DEFAULT_WORKSPACE)]
        workspace: String,
        /// What people call it
        #[arg(long, value_name = "N")]
        name: String,
        /// What it may do
        #[arg(long, value_enum, default_value = "member")]
        role: RoleName,
    },
    /// List the keys of a workspace, without secrets
    List {
        #[command(flatten)]
        reading: Reading,
        /// Of this workspace
        #[arg(long, value_name = "W", default_value = counterfoil_server::DEFAULT_WORKSPACE)]
        workspace: String,
    },
    /// Replace the secret of a key; its id and its receipts stay
    Rotate {
        #[command(flatten)]
        reading: Reading,
        /// The key's id, `ak_…`
        id: String,
    },
    /// Revoke a key for good, at once
    Revoke {
        #[command(flatten)]
        reading: Reading,
        /// The key's id, `ak_…`
        id: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum VerdictName {
    /// It happened
    Happened,
    /// It did not happen, and no attempt of it still can
    NotHappened,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Operations {
    /// List operations, those in doubt first
    List {
        #[command(flatten)]
        receipts: Receipts,
        /// Of this workspace
        #[arg(long, value_name = "W", default_value = counterfoil_server::DEFAULT_WORKSPACE)]
        workspace: String,
        /// Only in this state, such as outcome_unknown
        #[arg(long = "in", value_name = "STATE")]
        within: Option<String>,
        /// At most this many, 1 to 100
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Go on from here
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show what happened to an operation, event by event
    Show {
        #[command(flatten)]
        receipts: Receipts,
        /// The operation's id, `op_…`
        id: String,
    },
    /// Settle an operation in doubt, after looking at its target
    Resolve {
        #[command(flatten)]
        receipts: Receipts,
        /// The operation's id, `op_…`
        id: String,
        /// What was found out
        #[arg(long = "as", value_enum, value_name = "VERDICT")]
        verdict: VerdictName,
        /// How it was found out; kept in the event log
        #[arg(long)]
        reason: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Check the configuration and print what is in force and where it comes from
    Check(Reading),
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Look at the store and at every receipt in it
    ///
    /// Reads everything and changes nothing; a server may run meanwhile. Ends with 1 if something
    /// is found, and says what to do about it.
    Check(Receipts),
    /// Copy everything into another store: from SQLite to PostgreSQL, or back
    ///
    /// Receipts with their logs, answers and questions, workspaces, agent keys and notes. Stop all
    /// servers on both stores first. A copy that was cut off goes on when it is run again; at its
    /// end everything is compared. The source is only read.
    Copy(Copy),
}

#[derive(Debug, Args)]
pub(crate) struct Copy {
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// From this store: sqlite:FILE or postgres://…, never with a password [default: the configured store]
    #[arg(long, value_name = "URL", required_unless_present = "to")]
    pub(crate) from: Option<String>,
    /// Into this one, which must be empty, or hold a copy that was begun [default: the configured store]
    #[arg(long, value_name = "URL")]
    pub(crate) to: Option<String>,
    /// Copy attempts that are running, too. Whoever runs them completes them in the old store
    #[arg(long)]
    pub(crate) with_running: bool,
    /// Read everything, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Receipts in one transaction, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) page: u32,
}

impl Copy {
    /// The flags of one side; without a URL the store is the configured one.
    pub(crate) fn flags(&self, flag: &'static str, url: Option<&String>) -> Flags {
        let mut flags = self.reading.place.flags();
        if let Some(url) = url {
            flags.values.retain(|(name, ..)| *name != "store");
            flags.values.push(("store", flag, url.clone()));
        }
        flags
    }
}
