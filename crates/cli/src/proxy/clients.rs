//! `--print-config`: what the usual clients want to read to start a server through the proxy.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    args::{ClientName, KeylessName, Proxy, RestartName},
    file::Server,
    plan::{Chosen, check, choose, file},
};
use crate::{
    environment,
    exit::{Exit, Failure},
    output::{print, say},
};

/// What a server without any telling name is called.
const UNNAMED: &str = "server";

/// Prints the snippet on standard output, and on standard error where it goes.
pub(super) fn run(client: ClientName, args: &Proxy) -> Result<(), Failure> {
    let file = file(args)?;
    if args.listen.or(file.listen.address).is_some() {
        let text = "a client starts the proxy on standard input and output; --listen is not for it";
        return Err(Failure::new(Exit::Usage, text).hint(
            "leave --listen and [listen] out, or give the client the address http://ADDR:PORT/mcp",
        ));
    }
    let chosen = choose(args, &file)?;
    check(args, &file, chosen.clone())?;
    let here = environment::current_folder().unwrap_or_default();
    let line = Line {
        name: called(&chosen),
        program: environment::program(),
        arguments: arguments(args, &here),
    };
    print(&snippet(client, &line))?;
    say(&format!(
        "{}.",
        place(client).replace("NAME", &quoted(&line.name))
    ));
    if !args.command.is_empty() {
        say(
            "If the server's own entry has an `env`, carry it over into this one: what the client sets for the proxy, the server gets too.",
        );
    }
    let variables = variables(&chosen);
    if !variables.is_empty() {
        let list = variables.join(", ");
        say(&format!(
            "The proxy needs {list} from its environment; if the client does not pass it on, set it there under `env`."
        ));
    }
    Ok(())
}

/// How a client starts the proxy.
struct Line {
    name: String,
    program: String,
    arguments: Vec<String>,
}

/// Where the snippet goes.
const fn place(client: ClientName) -> &'static str {
    match client {
        ClientName::ClaudeDesktop => {
            "Put this into claude_desktop_config.json (Settings, Developer, Edit Config), in place of the server's own entry, and start Claude Desktop again"
        }
        ClientName::ClaudeCode => {
            "Run the first line, or put the rest into .mcp.json in the project"
        }
        ClientName::Cursor => {
            "Put this into ~/.cursor/mcp.json, or .cursor/mcp.json in the project"
        }
        ClientName::Vscode => {
            "Put this into .vscode/mcp.json, or the user's (MCP: Open User Configuration)"
        }
        ClientName::Windsurf => "Put this into ~/.codeium/windsurf/mcp_config.json, and refresh",
        ClientName::Zed => "Put this into settings.json (zed: open settings file)",
        ClientName::Codex => "Put this into ~/.codex/config.toml",
        ClientName::GeminiCli => {
            "Put this into ~/.gemini/settings.json, or .gemini/settings.json in the project"
        }
        ClientName::Inspector => {
            "Save this as mcp.json, then: npx @modelcontextprotocol/inspector --config mcp.json --server NAME"
        }
    }
}

fn snippet(client: ClientName, line: &Line) -> String {
    let plain = json!({ "command": line.program, "args": line.arguments });
    let typed = json!({ "type": "stdio", "command": line.program, "args": line.arguments });
    let under = |key: &str, entry: Value| {
        let mut servers = serde_json::Map::new();
        servers.insert(line.name.clone(), entry);
        let mut whole = serde_json::Map::new();
        whole.insert(key.to_owned(), Value::Object(servers));
        format!("{:#}\n", Value::Object(whole))
    };
    match client {
        ClientName::ClaudeDesktop
        | ClientName::Cursor
        | ClientName::Windsurf
        | ClientName::GeminiCli => under("mcpServers", plain),
        ClientName::ClaudeCode => {
            let words = [&line.name, "--", &line.program];
            let words = words
                .into_iter()
                .chain(line.arguments.iter().map(String::as_str));
            let words: Vec<String> = words.map(quoted).collect();
            let entry = under("mcpServers", typed);
            format!("claude mcp add {}\n\n{entry}", words.join(" "))
        }
        ClientName::Vscode => under("servers", typed),
        ClientName::Zed => under("context_servers", plain),
        ClientName::Inspector => under("mcpServers", typed),
        ClientName::Codex => {
            let text = |text: &String| toml::Value::String(text.clone());
            let arguments = toml::Value::Array(line.arguments.iter().map(text).collect());
            let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            let name = if line.name.chars().all(bare) {
                line.name.clone()
            } else {
                text(&line.name).to_string()
            };
            let program = text(&line.program);
            format!("[mcp_servers.{name}]\ncommand = {program}\nargs = {arguments}\n")
        }
    }
}

/// A word as a POSIX shell reads it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The arguments that were given, but for `--print-config`, and with full paths: the client may
/// start the proxy anywhere.
fn arguments(args: &Proxy, here: &Path) -> Vec<String> {
    let full = |path: &PathBuf| plain(&here.join(path));
    let mut line = vec!["proxy".to_owned()];
    let mut flag = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            line.push(format!("--{name}"));
            line.push(value);
        }
    };
    flag("state", args.state.as_ref().map(full));
    flag("store", args.store.clone());
    flag("name", args.name.clone());
    let keyless = args.keyless.map(|keyless| match keyless {
        KeylessName::Attach => "attach",
        KeylessName::Ask => "ask",
        KeylessName::Mint => "mint",
        KeylessName::Require => "require",
    });
    flag("keyless", keyless.map(str::to_owned));
    flag("config", args.config.as_ref().map(full));
    flag("url", args.url.clone());
    for (header, variable) in &args.header_env {
        flag("header-env", Some(format!("{header}={variable}")));
    }
    for (header, path) in &args.header_file {
        flag(
            "header-file",
            Some(format!("{header}={}", full(&PathBuf::from(path)))),
        );
    }
    flag("tools-prefix", args.tools_prefix.clone());
    let duration = |duration: std::time::Duration| humantime::format_duration(duration).to_string();
    flag(
        "timeout",
        args.timeout.map(duration).map(|text| text.replace(' ', "")),
    );
    flag(
        "drain",
        args.drain.map(duration).map(|text| text.replace(' ', "")),
    );
    let restart = args.restart.map(|restart| match restart {
        RestartName::OnDemand => "on-demand",
        RestartName::Never => "never",
    });
    flag("restart", restart.map(str::to_owned));
    for (name, given) in [
        ("store-pooler", args.store_pooler),
        ("no-tools", args.no_tools),
    ] {
        if given {
            line.push(format!("--{name}"));
        }
    }
    if !args.command.is_empty() {
        line.push("--".to_owned());
        let mut command = args.command.iter().cloned();
        // A path, and not a name that is looked for.
        line.extend(command.next().map(|program| match program.contains('/') {
            true => plain(&here.join(program)),
            false => program,
        }));
        line.extend(command);
    }
    line
}

/// A path without `.` within it.
fn plain(path: &Path) -> String {
    let parts: PathBuf = path.components().collect();
    parts.display().to_string()
}

/// What the client is to call it: its name, or what its command or address says.
fn called(chosen: &Chosen) -> String {
    if !chosen.name.is_empty() {
        return chosen.name.clone();
    }
    match &chosen.server {
        Server::Command { command, .. } => short(&super::label::of_command(command)),
        Server::Url { url, .. } => short(&super::label::of_url(url)),
    }
}

/// A package, path or host as one short word: `@scope/server-memory@1.2` is `memory`.
fn short(text: &str) -> String {
    let bare = text.rsplit(['/', '\\']).next().unwrap_or_default();
    let bare = bare.split(['@', '=']).next().unwrap_or_default();
    let bare = ["mcp-server-", "server-"]
        .iter()
        .find_map(|prefix| bare.strip_prefix(prefix))
        .unwrap_or(bare);
    let fit = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let word: String = bare.chars().take(40).map(fit).collect();
    let word = word.trim_matches('-');
    if word.is_empty() {
        return UNNAMED.to_owned();
    }
    word.to_ascii_lowercase()
}

/// The environment variables that secrets are taken from.
fn variables(chosen: &Chosen) -> Vec<&str> {
    let places = match &chosen.server {
        Server::Command { env, .. } => env,
        Server::Url { headers, .. } => headers,
    };
    places
        .iter()
        .filter_map(|(_, place)| place.variable())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_called_what_people_call_it() {
        for (text, word) in [
            ("@modelcontextprotocol/server-filesystem", "filesystem"),
            ("@modelcontextprotocol/server-memory@1.2.3", "memory"),
            ("mcp-server-git", "git"),
            ("mcp-server-sqlite==1.0", "sqlite"),
            ("/usr/local/bin/some server", "some-server"),
            ("server.py", "server-py"),
            ("...", "server"),
            ("", "server"),
        ] {
            assert_eq!(short(text), word, "{text}");
        }
    }

    #[test]
    fn a_shell_reads_each_word_as_it_was() {
        for (word, line) in [
            ("/usr/bin/x", "/usr/bin/x"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$(x)", "'$(x)'"),
        ] {
            assert_eq!(quoted(word), line);
        }
    }
}
