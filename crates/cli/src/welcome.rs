use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{
    address::{Address, has_password},
    config::Config,
    environment,
    folder::{FirstKey, Folder},
};

/// What a person who has just started the server reads: where it is, and what to paste next.
pub(crate) fn text(
    address: SocketAddr,
    config: &Config,
    folder: &Folder,
    first: &FirstKey,
    key: &str,
) -> String {
    let url = format!("http://{address}");
    let file = folder.agent_key().display().to_string();
    let greeting = match first {
        FirstKey::New => format!(
            "The first agent key, of workspace `default`; it is shown this once and kept in {file}:\n\n  {key}\n"
        ),
        FirstKey::Old => format!("The agent key is in {file}, as it was.\n"),
        FirstKey::Stale => format!(
            "The agent key in {file} is not valid (any more). Put the right one there, or remove the file and start again for a new one. A new key is a new principal: what the old one called is not recognized under it, and runs again.\n"
        ),
        FirstKey::Elsewhere(oldest) => format!(
            "This database has agent keys already, and none of them is in {file}. The oldest is {} ({}); who made it has its secret. `counterfoil keys list` shows all, `counterfoil keys issue --name NAME` makes one.\n",
            oldest.id, oldest.name
        ),
    };
    let (credential, shell) = match first {
        // The key itself is shown once, above.
        FirstKey::New | FirstKey::Old | FirstKey::Stale => (
            format!("<the line in {file}>"),
            format!("$(cat {})", shell_quoted(&file)),
        ),
        FirstKey::Elsewhere(_) => ("<an agent key>".to_owned(), "$KEY".to_owned()),
    };
    let curl = format!(
        "  curl -si {url}/api/v1/notes \\\n    -H \"Authorization: Bearer {shell}\" \\\n    -H 'Idempotency-Key: my-first-note' \\\n    -H 'Content-Type: application/json' \\\n    -d '{{\"body\":\"hello\"}}'\n"
    );
    let http_client = json!({
        "mcpServers": { "counterfoil": {
            "type": "http",
            "url": format!("{url}/mcp"),
            "headers": { "Authorization": format!("Bearer {credential}") },
        }}
    });
    let stdio_client = json!({
        "mcpServers": { "counterfoil": stdio_client(config) }
    });
    let store = match &config.store {
        Address::Sqlite(None) => String::new(),
        named @ (Address::Sqlite(Some(_)) | Address::Postgres(_)) => {
            format!("Receipts are in {named}\n\n")
        }
    };
    format!(
        "Counterfoil listens on {url}\n\n{store}{greeting}\n\
         Create a note:\n\n{curl}\n\
         The same command again replays it: the same answer, with Idempotent-Replayed: true, and still one note:\n\n{curl}\n\
         An MCP client over HTTP:\n\n{}\n\n\
         or as a command:\n\n{}\n\n\
         Ctrl-C stops it, after what is in flight is done.\n",
        indented(&format!("{http_client:#}")),
        indented(&format!("{stdio_client:#}")),
    )
}

/// How a client starts `counterfoil mcp` on the same store. A password goes where it came from.
fn stdio_client(config: &Config) -> Value {
    let absolute = |path: &std::path::Path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        path.display().to_string()
    };
    let mut arguments = ["mcp", "--stdio", "--data"].map(str::to_owned).to_vec();
    arguments.push(absolute(&config.data));
    let store = match &config.store {
        Address::Sqlite(None) => None,
        Address::Sqlite(Some(file)) => Some(format!("sqlite:{}", absolute(file))),
        Address::Postgres(url) if has_password(url) => None,
        Address::Postgres(url) => Some(url.clone()),
    };
    if let Some(store) = store {
        arguments.extend(["--store".to_owned(), store]);
    }
    if config.store_pooler {
        arguments.push("--store-pooler".to_owned());
    }
    let mut client = json!({ "command": environment::program(), "args": arguments });
    if matches!(&config.store, Address::Postgres(url) if has_password(url)) {
        client["env"] = json!({ "COUNTERFOIL_STORE": "<the address of the database>" });
    } else if let Some(file) = &config.store_password_file {
        client["env"] = json!({ "COUNTERFOIL_STORE_PASSWORD_FILE": absolute(file) });
    }
    client
}

fn indented(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

/// A path as a shell reads it back.
fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    if text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_where_needed() {
        assert_eq!(shell_quoted("a/b-c.d"), "a/b-c.d");
        assert_eq!(shell_quoted("a b"), "'a b'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
    }
}
