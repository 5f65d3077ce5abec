//! The proxy's configuration file: several servers, and rules for their tools.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use counterfoil_proxy::{Keyless, ProviderKey, Restart, ToolPolicy};
use toml::Table;

use super::{recipe::recipe, secret::Secret, section::Section};
use crate::{
    address::Address,
    config::{nearest, table, unreadable},
    exit::{Exit, Failure},
};

const TWO_MINUTES: Duration = Duration::from_secs(120);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
pub(super) const CENTURY: Duration = Duration::from_secs(36_500 * 24 * 3600);
const MOMENT: Duration = Duration::from_millis(1);
/// Largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

const KEYLESS: &[(&str, Keyless)] = &[
    ("attach", Keyless::Attach),
    ("ask", Keyless::Ask),
    ("mint", Keyless::Mint),
    ("require", Keyless::Require),
];
const RESTART: &[(&str, Restart)] = &[("on-demand", Restart::OnDemand), ("never", Restart::Never)];
/// What can be set for all servers and for each.
const RULES: &[&str] = &[
    "keyless",
    "timeout",
    "restart",
    "replay_for",
    "tombstone_for",
    "client_patience",
    "attach_for",
    "ask_for",
];
const TOP: &[&str] = &[
    "state",
    "store",
    "store_password_file",
    "store_ca",
    "log",
    "drain",
    "tools_prefix",
    "tools",
    "resolve_by_model",
    "listen",
    "upstream",
];
const UPSTREAM: &[&str] = &["command", "url", "env", "headers", "folder", "tools"];
const TOOL: &[&str] = &[
    "read_only",
    "keyless",
    "keep_result",
    "timeout",
    "provider_key",
    "provider_window",
    "reconcile",
];
const LISTEN: &[&str] = &[
    "address",
    "allow_remote",
    "allowed_hosts",
    "allowed_origins",
    "client",
];

/// What is in the file. No secret is read yet.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) path: PathBuf,
    /// Settings of the store, by their names in counterfoil.toml.
    pub(super) store: Vec<(&'static str, String)>,
    pub(super) drain: Option<Duration>,
    pub(super) tools_prefix: Option<String>,
    pub(super) tools: Option<bool>,
    pub(super) resolve_by_model: Option<bool>,
    pub(super) listen: Listen,
    /// For all servers.
    pub(super) rules: Rules,
    pub(super) upstreams: BTreeMap<String, Upstream>,
}

/// `[listen]`.
#[derive(Debug, Default)]
pub(super) struct Listen {
    pub(super) address: Option<SocketAddr>,
    pub(super) allow_remote: bool,
    pub(super) allowed_hosts: Vec<String>,
    pub(super) allowed_origins: Vec<String>,
    pub(super) clients: Vec<(String, Secret)>,
}

/// What holds for a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) keyless: Option<Keyless>,
    pub(super) timeout: Option<Duration>,
    pub(super) restart: Option<Restart>,
    pub(super) replay_for: Option<Duration>,
    pub(super) tombstone_for: Option<Duration>,
    pub(super) client_patience: Option<Duration>,
    pub(super) attach_for: Option<Duration>,
    pub(super) ask_for: Option<Duration>,
}

impl Rules {
    /// These, and where they say nothing, those.
    pub(super) fn or(self, those: &Self) -> Self {
        Self {
            keyless: self.keyless.or(those.keyless),
            timeout: self.timeout.or(those.timeout),
            restart: self.restart.or(those.restart),
            replay_for: self.replay_for.or(those.replay_for),
            tombstone_for: self.tombstone_for.or(those.tombstone_for),
            client_patience: self.client_patience.or(those.client_patience),
            attach_for: self.attach_for.or(those.attach_for),
            ask_for: self.ask_for.or(those.ask_for),
        }
    }
}

/// `[upstream.NAME]`.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    pub(super) server: Option<Server>,
    pub(super) rules: Rules,
    pub(super) tools: BTreeMap<String, ToolPolicy>,
}

/// How a server is reached.
#[derive(Clone, Debug)]
pub(super) enum Server {
    Command {
        command: Vec<String>,
        env: Vec<(String, Secret)>,
        folder: Option<PathBuf>,
    },
    Url {
        url: String,
        headers: Vec<(String, Secret)>,
    },
}

impl File {
    /// Reads and checks the file.
    pub(super) fn load(path: &Path) -> Result<Self, Failure> {
        use std::io::Read as _;
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| unreadable(path, &error))?;
        Self::read(path, &text)
    }

    pub(super) fn read(path: &Path, text: &str) -> Result<Self, Failure> {
        let whole = table(path, text)?;
        let top = Section::new("", &whole, path, &[TOP, RULES].concat())?;
        let mut upstreams = BTreeMap::new();
        for (name, table) in top.tables("upstream")? {
            upstreams.insert(name.to_owned(), upstream(name, table, path)?);
        }
        Ok(Self {
            path: path.to_owned(),
            store: store(&top)?,
            drain: top.time("drain", Duration::ZERO..=HOUR)?,
            tools_prefix: top.text("tools_prefix")?,
            tools: top.switch("tools")?,
            resolve_by_model: top.switch("resolve_by_model")?,
            listen: listen(&top, path)?,
            rules: rules(&top)?,
            upstreams,
        })
    }

    /// A server was given beside the file, and not which of its sections holds for it.
    pub(super) fn unnamed(&self) -> Failure {
        let names: Vec<&str> = self.upstreams.keys().map(String::as_str).collect();
        let text = format!(
            "{} has rules for {}, and it is not said whether they hold for this server",
            self.path.display(),
            names.join(", ")
        );
        Failure::new(Exit::Usage, text).hint(format!(
            "say whose with --name, such as --name {}; or name a file without [upstream.…] sections",
            names.first().unwrap_or(&"NAME")
        ))
    }

    /// The server that is meant: the one of that name, or the only one.
    pub(super) fn upstream(&self, name: Option<&str>) -> Result<(&str, &Upstream), Failure> {
        let file = self.path.display();
        let found = match name {
            Some(name) => self.upstreams.get_key_value(name),
            None if self.upstreams.len() == 1 => self.upstreams.first_key_value(),
            None => None,
        };
        if let Some((name, upstream)) = found {
            return Ok((name, upstream));
        }
        let names: Vec<&str> = self.upstreams.keys().map(String::as_str).collect();
        let list = names.join(", ");
        Err(match name {
            Some(name) => {
                let text = format!("there is no [upstream.{name}] in {file}");
                let failure = Failure::new(Exit::Config, text);
                match nearest(name, names.iter().copied()) {
                    Some(near) => failure.hint(format!("did you mean --name {near}?")),
                    None if names.is_empty() => failure.hint("write one with a command or a url"),
                    None => failure.hint(format!("there are {list}")),
                }
            }
            None if names.is_empty() => {
                let text =
                    format!("there is no [upstream.NAME] in {file}, and no command was given");
                Failure::new(Exit::Config, text)
                    .hint("write one with a command or a url, or give the command after `--`")
            }
            None => Failure::new(Exit::Usage, format!("there are several servers in {file}"))
                .hint(format!("name one with --name: {list}")),
        })
    }
}

/// Where receipts are, as settings of counterfoil.toml.
fn store(top: &Section<'_>) -> Result<Vec<(&'static str, String)>, Failure> {
    let mut settings = Vec::new();
    let path = |key| Ok::<_, Failure>(top.path(key)?.map(|path| path.display().to_string()));
    if let Some(state) = path("state")? {
        settings.push(("server.data", state));
    }
    if let Some(text) = top.text("store")? {
        // Nothing that is said quotes it.
        let text = match Address::parse(&text) {
            Ok(Address::Sqlite(Some(file))) => {
                format!(
                    "sqlite:{}",
                    top.beside(&file.display().to_string()).display()
                )
            }
            Ok(Address::Sqlite(None) | Address::Postgres(_)) | Err(_) => text,
        };
        settings.push(("store", text));
    }
    for key in ["store_password_file", "store_ca"] {
        if let Some(path) = path(key)? {
            settings.push((key, path));
        }
    }
    if let Some(log) = top.text("log")? {
        settings.push(("telemetry.log", log));
    }
    Ok(settings)
}

fn rules(section: &Section<'_>) -> Result<Rules, Failure> {
    Ok(Rules {
        keyless: section.word("keyless", KEYLESS)?,
        timeout: section.time("timeout", MOMENT..=DAY)?,
        restart: section.word("restart", RESTART)?,
        replay_for: section.time("replay_for", Duration::ZERO..=CENTURY)?,
        tombstone_for: section.time("tombstone_for", Duration::ZERO..=CENTURY)?,
        client_patience: section.time("client_patience", Duration::ZERO..=HOUR)?,
        attach_for: section.time("attach_for", Duration::ZERO..=TWO_MINUTES)?,
        ask_for: section.time("ask_for", Duration::ZERO..=CENTURY)?,
    })
}

fn listen(top: &Section<'_>, file: &Path) -> Result<Listen, Failure> {
    let Some(table) = top.table("listen")? else {
        return Ok(Listen::default());
    };
    let section = Section::new("listen.", table, file, LISTEN)?;
    let address = section.text("address")?;
    let form = "an address and a port, such as \"127.0.0.1:9000\"";
    let address = address
        .map(|text| super::args::address(&text).map_err(|_| section.wrong("address", form)))
        .transpose()?;
    let mut clients = Vec::new();
    if let Some(list) = section.get("client") {
        let form = "sections, each [[listen.client]] with a name and a token_file";
        let wrong = || section.wrong("client", form);
        for client in list.as_array().ok_or_else(wrong)? {
            let table = client.as_table().ok_or_else(wrong)?;
            let client = Section::new("listen.client.", table, file, &["name", "token_file"])?;
            let name = client.text("name")?.ok_or_else(wrong)?;
            let token = client.path("token_file")?.ok_or_else(wrong)?;
            clients.push((name, Secret::File(token, String::new())));
        }
    }
    Ok(Listen {
        address,
        allow_remote: section.switch("allow_remote")?.unwrap_or(false),
        allowed_hosts: section.texts("allowed_hosts")?.unwrap_or_default(),
        allowed_origins: section.texts("allowed_origins")?.unwrap_or_default(),
        clients,
    })
}

fn upstream(name: &str, table: &Table, file: &Path) -> Result<Upstream, Failure> {
    let at = format!("upstream.{name}.");
    let section = Section::new(&at, table, file, &[UPSTREAM, RULES].concat())?;
    let mut tools = BTreeMap::new();
    for (tool, table) in section.tables("tools")? {
        tools.insert(
            tool.to_owned(),
            tool_policy(&format!("{at}tools.{tool}."), table, file)?,
        );
    }
    Ok(Upstream {
        server: server(&section, &at, file)?,
        rules: rules(&section)?,
        tools,
    })
}

fn server(section: &Section<'_>, at: &str, file: &Path) -> Result<Option<Server>, Failure> {
    let form = "the program and its arguments, such as [\"npx\", \"-y\", \"some-server\"]";
    let command = match section.texts("command") {
        Ok(Some(command)) if command.is_empty() => return Err(section.wrong("command", form)),
        Ok(command) => command,
        Err(_) => return Err(section.wrong("command", form)),
    };
    let url = section.text("url")?;
    let only = |key: &str, other: &str| {
        let text = format!(
            "{at}{key} in {} means nothing beside {at}{other}",
            file.display()
        );
        Failure::new(Exit::Config, text).hint("leave one of them out")
    };
    match (command, url) {
        (Some(_), Some(_)) => Err(only("command", "url")),
        (Some(mut command), None) => {
            if section.get("headers").is_some() {
                return Err(only("headers", "command"));
            }
            // A path, and not a name that is looked for.
            if let Some(program) = command.first_mut()
                && program.contains('/')
            {
                *program = section.beside(program).display().to_string();
            }
            let mut env = Vec::new();
            if let Some(table) = section.table("env")? {
                let at = format!("{at}env.");
                for (name, value) in table {
                    env.push((name.clone(), Secret::read(&at, name, value, file, true)?));
                }
            }
            let folder = section.path("folder")?;
            Ok(Some(Server::Command {
                command,
                env,
                folder,
            }))
        }
        (None, Some(url)) => {
            for key in ["env", "folder"] {
                if section.get(key).is_some() {
                    return Err(only(key, "url"));
                }
            }
            let mut headers = Vec::new();
            if let Some(table) = section.table("headers")? {
                let at = format!("{at}headers.");
                for (name, value) in table {
                    let plain = !is_secret(name);
                    headers.push((name.clone(), Secret::read(&at, name, value, file, plain)?));
                }
            }
            Ok(Some(Server::Url { url, headers }))
        }
        (None, None) => {
            let stray = ["env", "headers", "folder"];
            match stray.into_iter().find(|key| section.get(key).is_some()) {
                None => Ok(None),
                Some(key) => Err(section.wrong(key, "beside a command or a url")),
            }
        }
    }
}

/// Whether a header of this name usually holds a secret, which is not to stand in the file.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [
        "auth",
        "cookie",
        "key",
        "token",
        "secret",
        "password",
        "credential",
    ]
    .iter()
    .any(|part| name.contains(part))
}

fn tool_policy(at: &str, table: &Table, file: &Path) -> Result<ToolPolicy, Failure> {
    let section = Section::new(at, table, file, TOOL)?;
    Ok(ToolPolicy {
        read_only: section.switch("read_only")?,
        keyless: section.word("keyless", KEYLESS)?,
        keep_result: section.switch("keep_result")?,
        timeout: section.time("timeout", MOMENT..=DAY)?,
        provider_key: provider_key(&section, at, file)?,
        provider_window: section.time("provider_window", Duration::ZERO..=CENTURY)?,
        reconcile: recipe(&section, at, file)?,
    })
}

fn provider_key(tool: &Section<'_>, at: &str, file: &Path) -> Result<Option<ProviderKey>, Failure> {
    let Some(table) = tool.table("provider_key")? else {
        return Ok(None);
    };
    let at = format!("{at}provider_key.");
    let section = Section::new(&at, table, file, &["argument", "header"])?;
    match (section.text("argument")?, section.text("header")?) {
        (Some(argument), None) => Ok(Some(ProviderKey::Argument(argument))),
        (None, Some(header)) => Ok(Some(ProviderKey::Header(header))),
        (Some(_), Some(_)) | (None, None) => {
            Err(tool.wrong("provider_key", "{ argument = \"…\" } or { header = \"…\" }"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<File, Failure> {
        File::read(Path::new("/etc/proxy.toml"), text)
    }

    #[test]
    fn everything_that_can_be_set_is_read() {
        let file = read(
            r#"
state = "state"
drain = "3s"
tools_prefix = "mine_"
resolve_by_model = true
keyless = "ask"
timeout = "1m"

[listen]
address = "127.0.0.1:9000"
allowed_origins = ["https://app.example"]
[[listen.client]]
name = "laptop"
token_file = "laptop.token"

[upstream.git]
command = ["./bin/git-server", "--repository", "/r"]
env = { A = "plain", B = { env = "MY_B" }, C = { file = "c.txt" } }
folder = "repo"
keyless = "require"
restart = "never"
replay_for = "1h"
tombstone_for = "2h"
client_patience = "5s"
attach_for = "1m"
ask_for = "1h"
[upstream.git.tools.git_commit]
timeout = "5m"
keep_result = false
provider_key = { argument = "id" }
provider_window = "1h"
reconcile = { tool = "git_log", arguments = { max = 5, of = ["{/repo}"] }, happened_if_text = "{/message}", settle_after = "10s" }
[upstream.git.tools."*"]
read_only = false
keyless = "mint"

[upstream.far]
url = "https://far.example/mcp"
headers = { Authorization = { env = "FAR", prefix = "Bearer " }, X-Team = "blue" }
"#,
        )
        .unwrap();
        assert_eq!(file.store, [("server.data", "/etc/state".to_owned())]);
        assert_eq!(file.drain, Some(Duration::from_secs(3)));
        assert_eq!(file.listen.address.unwrap().port(), 9000);
        let token = Secret::File("/etc/laptop.token".into(), String::new());
        assert_eq!(file.listen.clients, [("laptop".to_owned(), token)]);
        let git = &file.upstreams["git"];
        let Some(Server::Command {
            command,
            env,
            folder,
        }) = &git.server
        else {
            panic!("a command");
        };
        assert_eq!(command, &["/etc/./bin/git-server", "--repository", "/r"]);
        assert_eq!(folder.as_deref(), Some(Path::new("/etc/repo")));
        let c = Secret::File("/etc/c.txt".into(), String::new());
        assert!(env.contains(&("C".to_owned(), c)));
        let rules = git.rules.clone().or(&file.rules);
        assert_eq!(rules.keyless, Some(Keyless::Require));
        assert_eq!(rules.timeout, Some(Duration::from_secs(60)));
        assert_eq!(rules.ask_for, Some(HOUR));
        let commit = &git.tools["git_commit"];
        assert_eq!(commit.keep_result, Some(false));
        let key = ProviderKey::Argument("id".to_owned());
        assert_eq!(commit.provider_key, Some(key));
        let recipe = commit.reconcile.as_ref().unwrap();
        assert_eq!(recipe.arguments, json!({"max": 5, "of": ["{/repo}"]}));
        assert_eq!(recipe.settle_after, Some(Duration::from_secs(10)));
        assert_eq!(git.tools["*"].keyless, Some(Keyless::Mint));
        let Some(Server::Url { headers, .. }) = &file.upstreams["far"].server else {
            panic!("a url");
        };
        let prefixed = Secret::Variable("FAR".to_owned(), "Bearer ".to_owned());
        assert!(headers.contains(&("Authorization".to_owned(), prefixed)));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_right() {
        for (text, part) in [
            ("keylees = \"ask\"", "did you mean keyless?"),
            ("[upstreem.a]\n", "did you mean upstream?"),
            (
                "[upstream.a]\ncomand = [\"x\"]",
                "did you mean upstream.a.command?",
            ),
            (
                "[upstream.a]\ncommand = [\"x\"]\n[upstream.a.tools.t]\nreadonly = true",
                "did you mean upstream.a.tools.t.read_only?",
            ),
            (
                "[upstream.a.tools.t.provider_key]\nargumnet = \"x\"",
                "did you mean upstream.a.tools.t.provider_key.argument?",
            ),
            (
                "[upstream.a.tools.t.reconcile]\ntool = \"x\"\nhapened_if_text = \"y\"",
                "reconcile.happened_if_text?",
            ),
            ("[listen]\nadress = \"x\"", "did you mean listen.address?"),
            ("keyless = \"atach\"", "did you mean attach?"),
            ("keyless = 1", "attach or ask or mint or require"),
            ("timeout = 120", "a duration in quotes"),
            ("timeout = \"2d\"", "from 1ms to 1day"),
            ("attach_for = \"3m\"", "from 0s to 2m"),
            ("tools = \"no\"", "true or false"),
            (
                "[upstream.a]\ncommand = \"npx -y x\"",
                "the program and its arguments",
            ),
            (
                "[upstream.a]\ncommand = []",
                "the program and its arguments",
            ),
            (
                "[upstream.a]\ncommand = [\"x\"]\nurl = \"http://h\"",
                "means nothing beside",
            ),
            (
                "[upstream.a]\ncommand = [\"x\"]\nheaders = { A = \"b\" }",
                "means nothing beside",
            ),
            (
                "[upstream.a]\nenv = { A = \"b\" }",
                "beside a command or a url",
            ),
            (
                "[upstream.a]\nurl = \"http://h\"\nheaders = { Authorization = \"hunter2\" }",
                "because it is a secret",
            ),
            (
                "[upstream.a]\nurl = \"http://h\"\nheaders = { X-Api-Key = \"hunter2\" }",
                "because it is a secret",
            ),
            (
                "[upstream.a]\ncommand = [\"x\"]\nenv = { A = { envv = \"hunter2\" } }",
                "did you mean upstream.a.env.A.env?",
            ),
            (
                "[upstream.a]\ncommand = [\"x\"]\nenv = { A = {} }",
                "{ env = ",
            ),
            ("upstream = 1", "a section"),
            ("[upstream]\na = 1", "a section"),
            ("[listen]\naddress = \"localhost\"", "an address and a port"),
            ("[[listen.client]]\nname = \"a\"", "a token_file"),
            (
                "[upstream.a.tools.t]\nreconcile = { tool = \"x\", happened_if_text = \"to {email}\" }",
                "is written {/email}",
            ),
            (
                "[upstream.a.tools.t]\nreconcile = { tool = \"x\", happened_if_text = \"{/a}\", arguments = { q = [\"a {/b} {user/id}\"] } }",
                "is written {/user/id}",
            ),
            (
                "[upstream.a.tools.t]\nreconcile = { tool = \"x\" }",
                "happened_if_text",
            ),
            ("[upstream", "line 1"),
        ] {
            let failure = read(text).unwrap_err();
            assert_eq!(failure.exit, Exit::Config, "{text}");
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
            assert!(failure.to_string().contains(part), "{text}: {failure}");
        }
    }

    #[test]
    fn localhost_is_this_machine() {
        let file = read("[listen]\naddress = \"localhost:9000\"").unwrap();
        let address = file.listen.address.unwrap();
        assert_eq!(address.to_string(), "127.0.0.1:9000");
    }

    #[test]
    fn a_server_is_named_unless_it_is_the_only_one() {
        let said = |file: &File, name| file.upstream(name).unwrap_err().to_string();
        let none = read("").unwrap();
        assert!(said(&none, None).contains("no [upstream.NAME]"));
        let one = read("[upstream.git]\ncommand = [\"x\"]").unwrap();
        assert_eq!(one.upstream(None).unwrap().0, "git");
        assert!(said(&one, Some("gitt")).contains("did you mean --name git?"));
        let two = read("[upstream.git]\n[upstream.mail]\n").unwrap();
        assert!(said(&two, None).contains("--name: git, mail"));
        assert!(said(&two, Some("zzz")).contains("there are git, mail"));
        assert_eq!(two.upstream(Some("mail")).unwrap().0, "mail");
    }

    #[test]
    fn what_is_shown_of_a_file_holds_no_value() {
        let text = "[upstream.a]\ncommand = [\"x\"]\nenv = { A = \"hunter2\" }";
        let shown = format!("{:?}", read(text).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
