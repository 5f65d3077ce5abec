//! What an upstream is called where operations are listed. An identity only holds a digest of it;
//! the proxy leaves the label in the store. Arguments may hold secrets: they are not part of it.

use std::collections::BTreeMap;

use counterfoil_core::Receipt;
use counterfoil_proxy::{Settings, Target};
use counterfoil_store::{Error, Store};

use crate::output::shown;

/// Programs that start what their first argument names.
const RUNNERS: &[&str] = &[
    "bunx", "node", "npx", "pipx", "pnpx", "py", "python", "python3", "uvx",
];
/// Words between such a program and what it starts.
const WORDS: &[&str] = &["run", "exec", "--"];
const LABEL_CHARS_MAX: usize = 80;

/// What a command starts: its program, or the package that a runner is told to run.
pub(super) fn of_command(command: &[String]) -> String {
    let program = command.first().map_or("", String::as_str);
    let file = program.rsplit(['/', '\\']).next().unwrap_or(program);
    let bare = file.split('.').next().unwrap_or(file);
    if !RUNNERS.contains(&bare) {
        return file.to_owned();
    }
    // The value of an option could be anything: only these are known to have none.
    let mut rest = command.iter().skip(1).map(String::as_str);
    let what = rest.find(|word| !matches!(*word, "-y" | "--yes" | "-q" | "--quiet" | "-u" | "-m"));
    let what = what.filter(|word| !word.starts_with('-') && !WORDS.contains(word));
    what.map_or_else(|| file.to_owned(), str::to_owned)
}

/// The host of an address.
pub(super) fn of_url(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    host.to_owned()
}

/// The name, or what the server is.
fn of(settings: &Settings) -> String {
    let text = match &settings.target {
        _ if !settings.name.is_empty() => settings.name.clone(),
        Target::Command {
            program, arguments, ..
        } => {
            let command: Vec<String> = std::iter::once(program).chain(arguments).cloned().collect();
            of_command(&command)
        }
        Target::Url { url, .. } => of_url(url),
    };
    text.chars().take(LABEL_CHARS_MAX).collect()
}

/// Leaves the label in the store, under the digest.
pub(super) async fn keep(store: &dyn Store, settings: &Settings) -> Result<(), Error> {
    let (note, label) = (note(&settings.upstream()), of(settings));
    let known = store.note(&note).await?;
    if known.as_deref() == Some(label.as_bytes()) {
        return Ok(());
    }
    store.set_note(&note, label.into_bytes()).await
}

fn note(upstream: &str) -> String {
    format!("upstream {upstream}")
}

/// Labels of the upstreams of some receipts.
#[derive(Default)]
pub(crate) struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Reads the labels of what these receipts are of. One that is not known is left out.
    pub(crate) async fn read<'a>(
        store: &dyn Store,
        receipts: impl Iterator<Item = &'a Receipt>,
    ) -> Result<Self, Error> {
        let mut labels = BTreeMap::new();
        for receipt in receipts {
            let upstream = &receipt.identity.target.upstream;
            if upstream.is_empty() || labels.contains_key(upstream) {
                continue;
            }
            let found = store.note(&note(upstream)).await?;
            let label = found.and_then(|bytes| String::from_utf8(bytes).ok());
            labels.insert(upstream.clone(), label.unwrap_or_else(|| upstream.clone()));
        }
        Ok(Self(labels))
    }

    /// What the upstream of a receipt is called, or its digest; `None` for our own operations.
    pub(crate) fn of(&self, receipt: &Receipt) -> Option<&str> {
        self.0
            .get(&receipt.identity.target.upstream)
            .map(String::as_str)
    }

    /// Tool and upstream of a receipt, for people. Our own operations are as ever.
    pub(crate) fn target(&self, receipt: &Receipt) -> String {
        let target = &receipt.identity.target;
        match self.of(receipt) {
            None => target.to_string(),
            Some(label) => {
                let tool = tool(receipt).unwrap_or("any tool (key in _meta)");
                shown(&format!("{tool} @ {label}"))
            }
        }
    }
}

/// The tool that was called, where the identity says so: a key in `_meta` stands for any.
pub(crate) fn tool(receipt: &Receipt) -> Option<&str> {
    receipt.identity.target.operation.strip_prefix("MCP ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_the_server_and_none_of_its_arguments() {
        let of = |line: &str| of_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (line, label) in [
            (
                "npx -y @modelcontextprotocol/server-memory",
                "@modelcontextprotocol/server-memory",
            ),
            ("uvx mcp-server-git --repository /r", "mcp-server-git"),
            ("python3 -m some_server", "some_server"),
            ("/usr/bin/node server.js --token hunter2", "server.js"),
            ("npx --api-key hunter2 server", "npx"),
            ("/opt/server --token hunter2", "server"),
            ("docker run -e KEY=hunter2 image", "docker"),
        ] {
            assert_eq!(of(line), label, "{line}");
        }
        assert_eq!(
            of_url("https://me:hunter2@host:1/mcp?key=hunter2"),
            "host:1"
        );
    }
}
