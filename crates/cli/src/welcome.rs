use std::{net::SocketAddr, path::Path};

use serde_json::json;

use crate::{
    environment,
    folder::{FirstKey, Folder},
};

/// What a person who has just started the server reads: where it is, and what to paste next.
pub(crate) fn text(
    address: SocketAddr,
    data: &Path,
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
    };
    let quoted = shell_quoted(&file);
    let curl = format!(
        "  curl -si {url}/api/v1/notes \\\n    -H \"Authorization: Bearer $(cat {quoted})\" \\\n    -H 'Idempotency-Key: my-first-note' \\\n    -H 'Content-Type: application/json' \\\n    -d '{{\"body\":\"hello\"}}'\n"
    );
    // The key itself is shown once, above.
    let credential = format!("<the line in {file}>");
    let http_client = json!({
        "mcpServers": { "counterfoil": {
            "type": "http",
            "url": format!("{url}/mcp"),
            "headers": { "Authorization": format!("Bearer {credential}") },
        }}
    });
    let data = std::path::absolute(data).unwrap_or_else(|_| data.to_owned());
    let stdio_client = json!({
        "mcpServers": { "counterfoil": {
            "command": environment::program(),
            "args": ["mcp", "--stdio", "--data", data.display().to_string()],
        }}
    });
    format!(
        "Counterfoil listens on {url}\n\n{greeting}\n\
         Create a note:\n\n{curl}\n\
         The same command again replays it: the same answer, with Idempotent-Replayed: true, and still one note:\n\n{curl}\n\
         An MCP client over HTTP:\n\n{}\n\n\
         or as a command:\n\n{}\n\n\
         Ctrl-C stops it, after what is in flight is done.\n",
        indented(&format!("{http_client:#}")),
        indented(&format!("{stdio_client:#}")),
    )
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
