//! What the flags and the file come to.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use counterfoil_proxy::{InvalidSettings, Settings, Target};

use super::{
    args::Proxy,
    file::{File, Rules, Server, Upstream},
    secret::Secret,
};
use crate::{
    config::{Config, Layers, Source, defaults, lay},
    environment,
    exit::{Exit, Failure},
};

/// Settings of the store and the log that the environment may set for the proxy too. What else it
/// says is for the server.
const FROM_ENVIRONMENT: &[&str] = &[
    "store",
    "store_password_file",
    "store_pooler",
    "store_ca",
    "store_connections",
    "migrate",
    "limits.queue_max",
    "limits.lock_patience",
    "telemetry.log",
    "telemetry.log_format",
    "telemetry.otlp_endpoint",
];
/// A proxy in front of a client is quiet.
const LOG: &str = "warn";

/// A server, what holds for it, and where its address and secrets come from.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    /// From `--name`, or the name of its section; empty if it has none.
    pub(super) name: String,
    pub(super) server: Server,
    rules: Rules,
    tools: std::collections::BTreeMap<String, counterfoil_proxy::ToolPolicy>,
}

/// What is to be run, checked.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Settings,
    /// Of the store and the log.
    pub(super) config: Config,
    /// Where to listen; `None`: one client on standard input and output.
    pub(super) listen: Option<SocketAddr>,
}

/// The file that `--config` names; an empty one if it names none.
pub(super) fn file(args: &Proxy) -> Result<File, Failure> {
    args.config
        .as_deref()
        .map_or_else(|| Ok(File::default()), File::load)
}

/// Which server it is. Reads no secret.
pub(super) fn choose(args: &Proxy, file: &File) -> Result<Chosen, Failure> {
    let given = given(args)?;
    let name = args.name.as_deref();
    let (found, upstream) = match (&given, name) {
        // Rules that somebody wrote and that do not hold would be found out too late.
        (Some(_), None) if !file.upstreams.is_empty() => return Err(file.unnamed()),
        (Some(_), None) => (None, &Upstream::default()),
        (Some(_), Some(name)) if args.config.is_none() => (Some(name), &Upstream::default()),
        (None, _) if args.config.is_none() => return Err(no_command()),
        (Some(_) | None, name) => {
            let (name, upstream) = file.upstream(name)?;
            (Some(name), upstream)
        }
    };
    let server = given.or_else(|| upstream.server.clone());
    let server = server.ok_or_else(|| {
        let name = found.unwrap_or_default();
        let text = format!(
            "[upstream.{name}] in {} has neither a command nor a url",
            file.path.display()
        );
        Failure::new(Exit::Config, text).hint("write one there, or give the command after `--`")
    })?;
    Ok(Chosen {
        name: found.unwrap_or_default().to_owned(),
        server,
        rules: upstream.rules.clone().or(&file.rules),
        tools: upstream.tools.clone(),
    })
}

/// The server on the command line, if there is one.
fn given(args: &Proxy) -> Result<Option<Server>, Failure> {
    if let Some(url) = &args.url {
        let from_variables = args.header_env.iter().map(|(header, variable)| {
            (
                header.clone(),
                Secret::Variable(variable.clone(), String::new()),
            )
        });
        let from_files = args.header_file.iter().map(|(header, path)| {
            (
                header.clone(),
                Secret::File(PathBuf::from(path), String::new()),
            )
        });
        return Ok(Some(Server::Url {
            url: url.clone(),
            headers: from_variables.chain(from_files).collect(),
        }));
    }
    if args.command.is_empty() {
        return Ok(None);
    }
    Ok(Some(Server::Command {
        command: args.command.clone(),
        env: Vec::new(),
        folder: None,
    }))
}

fn no_command() -> Failure {
    Failure::new(Exit::Usage, InvalidSettings::NoCommand.to_string())
        .hint("counterfoil proxy -- npx -y some-mcp-server; or give --url or --config")
}

/// Whether all would be right at a start, as far as it can be said without reading a secret.
pub(super) fn check(args: &Proxy, file: &File, mut chosen: Chosen) -> Result<(), Failure> {
    match &mut chosen.server {
        Server::Command { env, .. } => env.clear(),
        Server::Url { headers, .. } => headers.clear(),
    }
    settings(args, file, chosen, None)?
        .check()
        .map_err(|error| Failure::split(Exit::Config, &error.to_string()))
}

/// All that is needed to run, with the secrets read.
pub(super) fn plan(args: &Proxy) -> Result<Plan, Failure> {
    let file = file(args)?;
    let chosen = choose(args, &file)?;
    let config = Config::read(&layers(args, &file)?)?;
    let listen = args.listen.or(file.listen.address);
    let settings = settings(args, &file, chosen, listen)?;
    settings
        .check()
        .map_err(|error| Failure::split(Exit::Config, &error.to_string()))?;
    if let Some(address) = listen {
        check_address(
            address,
            args.allow_remote || file.listen.allow_remote,
            &settings,
        )?;
    }
    Ok(Plan {
        settings,
        config,
        listen,
    })
}

/// The settings of the store, in rising precedence: the file, the environment, the flags.
fn layers(args: &Proxy, file: &File) -> Result<Layers, Failure> {
    let mut layers = defaults();
    lay(
        &mut layers,
        "telemetry.log",
        LOG.to_owned(),
        Source::Default,
    );
    let state = environment::state_folder().map(|path| path.display().to_string());
    lay(
        &mut layers,
        "server.data",
        state.unwrap_or_default(),
        Source::Default,
    );
    for (name, value) in &file.store {
        lay(
            &mut layers,
            name,
            value.clone(),
            Source::File(file.path.clone()),
        );
    }
    for (variable, value) in environment::variables() {
        let wanted = FROM_ENVIRONMENT.iter().find(|name| {
            let known = crate::config::SETTINGS
                .iter()
                .find(|known| known.name == **name);
            known.is_some_and(|known| known.variable() == variable)
        });
        if let Some(name) = wanted {
            lay(&mut layers, name, value, Source::Environment(variable));
        }
    }
    if let Some(state) = &args.state {
        // Whatever else is said: the receipts are in this folder.
        let source = Source::Flag("--state");
        lay(
            &mut layers,
            "server.data",
            state.display().to_string(),
            source.clone(),
        );
        lay(&mut layers, "store", String::new(), source);
    }
    if let Some(store) = &args.store {
        lay(&mut layers, "store", store.clone(), Source::Flag("--store"));
    }
    if args.store_pooler {
        let source = Source::Flag("--store-pooler");
        lay(&mut layers, "store_pooler", true.to_string(), source);
    }
    let homeless = layers
        .get("server.data")
        .is_none_or(|found| found.text.is_empty());
    if homeless {
        return Err(Failure::new(
            Exit::Config,
            "this user has no home folder to keep receipts in",
        )
        .hint("name a folder with --state"));
    }
    Ok(layers)
}

fn settings(
    args: &Proxy,
    file: &File,
    chosen: Chosen,
    listen: Option<SocketAddr>,
) -> Result<Settings, Failure> {
    let mut settings = Settings::new(target(chosen.server)?);
    settings.name = chosen.name;
    settings.tools = chosen.tools;
    let rules = chosen.rules;
    let keyless = args.keyless.map(super::args::KeylessName::policy);
    let restart = args.restart.map(super::args::RestartName::policy);
    put(&mut settings.keyless, keyless.or(rules.keyless));
    put(&mut settings.restart, restart.or(rules.restart));
    put(&mut settings.timeout, args.timeout.or(rules.timeout));
    put(&mut settings.drain_for, args.drain.or(file.drain));
    put(&mut settings.replay_for, rules.replay_for);
    put(&mut settings.tombstone_for, rules.tombstone_for);
    put(&mut settings.client_patience, rules.client_patience);
    put(&mut settings.attach_for, rules.attach_for);
    put(&mut settings.ask_for, rules.ask_for);
    let prefix = args
        .tools_prefix
        .clone()
        .or_else(|| file.tools_prefix.clone());
    let wanted = args.tools_prefix.is_some() || file.tools.unwrap_or(true);
    if args.no_tools || !wanted {
        settings.own_tools = None;
    } else if prefix.is_some() {
        settings.own_tools = prefix;
    }
    settings.resolve_by_model = file.resolve_by_model.unwrap_or(false);
    let listening = &mut settings.listening;
    listening
        .allowed_hosts
        .clone_from(&file.listen.allowed_hosts);
    listening
        .allowed_origins
        .clone_from(&file.listen.allowed_origins);
    if let Some(address) = listen {
        // An address is nobody's name: it cannot be turned against us by DNS.
        listening.allowed_hosts.push(match address {
            SocketAddr::V4(address) => address.ip().to_string(),
            SocketAddr::V6(address) => format!("[{}]", address.ip()),
        });
        for (name, token) in &file.listen.clients {
            let token = token.resolve(&format!("the client {name}"))?;
            listening.clients.push((name.clone(), token));
        }
    }
    Ok(settings)
}

fn put<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn target(server: Server) -> Result<Target, Failure> {
    match server {
        Server::Command {
            command,
            env,
            folder,
        } => {
            let mut command = command.into_iter();
            // Where it runs is part of which server it is.
            let here = environment::current_folder().map_err(|error| {
                let text = format!("the folder that this was started in cannot be found: {error}");
                Failure::new(Exit::Failure, text).hint("start it in a folder that is there")
            })?;
            Ok(Target::Command {
                program: command.next().unwrap_or_default(),
                arguments: command.collect(),
                environment: resolved(env, "the variable")?,
                folder: Some(folder.map_or(here, |folder| absolute(&folder))),
            })
        }
        Server::Url { url, headers } => Ok(Target::Url {
            url,
            headers: resolved(headers, "the header")?,
        }),
    }
}

/// As it stands in the identity of calls: however the path was written, it is one folder.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn resolved(places: Vec<(String, Secret)>, what: &str) -> Result<Vec<(String, String)>, Failure> {
    places
        .into_iter()
        .map(|(name, place)| {
            let value = place.resolve(&format!("{what} {name}"))?;
            Ok((name, value))
        })
        .collect()
}

/// An address that other machines reach is listened on only if somebody said so, and only for
/// those who show who they are.
fn check_address(
    address: SocketAddr,
    allow_remote: bool,
    settings: &Settings,
) -> Result<(), Failure> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    if !allow_remote {
        let text = format!("{address} can be reached by other machines, and there is no TLS here");
        return Err(Failure::new(Exit::Config, text)
            .hint("listen on 127.0.0.1 behind a proxy that ends TLS, or say --allow-remote"));
    }
    if settings.listening.clients.is_empty() {
        let text =
            format!("{address} can be reached by other machines, and anybody there could call");
        return Err(Failure::new(Exit::Config, text).hint(
            "name who may call in the file of --config: [[listen.client]] with a name and a token_file",
        ));
    }
    Ok(())
}
