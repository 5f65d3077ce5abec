//! Which upstream instance a call belongs to, and what people call it.

use std::path::Path;

use crate::{Settings, Target};

/// Longest label, in characters.
const LABEL_CHARS_MAX: usize = 80;

/// The upstream instance as it stands in the identity of its calls: [`Settings::upstream`] with the
/// folder made absolute, so that the same words in two folders are two upstreams. 32 hex digits.
pub(crate) fn upstream_id(settings: &Settings) -> String {
    let mut settings = settings.clone();
    if let Target::Command { folder, .. } = &mut settings.target {
        let here = folder.as_deref().unwrap_or(Path::new("."));
        // Without a working folder the words alone must do.
        if let Ok(absolute) = std::path::absolute(here) {
            *folder = Some(absolute);
        }
    }
    settings.upstream()
}

/// What people call the upstream: its name, else a short form of its command or URL. Holds no
/// query, user, password, nor anything that looks like a secret among the arguments.
pub(crate) fn upstream_label(settings: &Settings) -> String {
    if !settings.name.is_empty() {
        return shortened(&settings.name);
    }
    match &settings.target {
        Target::Url { url, .. } => shortened(&address(url)),
        Target::Command {
            program, arguments, ..
        } => shortened(&command(program, arguments)),
    }
}

fn shortened(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut label: String = printable.clone().take(LABEL_CHARS_MAX).collect();
    if printable.count() > LABEL_CHARS_MAX {
        label.pop();
        label.push('…');
    }
    label
}

/// A URL without user, query and fragment; steps of its path that may be secrets are left out.
fn address(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let host = authority.rsplit('@').next().unwrap_or_default();
    let steps: Vec<&str> = path
        .split('/')
        .map(|step| if looks_secret(step) { "…" } else { step })
        .collect();
    let path = steps.join("/");
    let path = path.trim_end_matches('/');
    if scheme.is_empty() {
        format!("{host}{path}")
    } else {
        format!("{scheme}://{host}{path}")
    }
}

/// The program and those of its arguments that say what runs: no options, nothing that may be the
/// value of one, nothing that looks like a secret.
fn command(program: &str, arguments: &[String]) -> String {
    // Options of launchers that have no value, or whose value is what runs.
    const PLAIN: [&str; 8] = ["-y", "--yes", "-q", "--quiet", "-m", "-u", "--", "run"];
    let mut words = vec![last_step(program).to_owned()];
    let mut after_option = false;
    for argument in arguments {
        let option = argument.starts_with('-');
        if !option && !after_option && argument != "run" {
            let word = if argument.contains("://") {
                address(argument)
            } else {
                argument.clone()
            };
            if !looks_secret(&word) {
                words.push(word);
            }
        }
        after_option = option && !argument.contains('=') && !PLAIN.contains(&argument.as_str());
    }
    words.join(" ")
}

fn last_step(program: &str) -> &str {
    let last = program.rsplit(['/', '\\']).next();
    last.filter(|last| !last.is_empty()).unwrap_or(program)
}

/// Rather too often than too seldom: what it says is left out of a label, nothing else.
fn looks_secret(text: &str) -> bool {
    const WORDS: [&str; 9] = [
        "token",
        "secret",
        "passw",
        "apikey",
        "api_key",
        "api-key",
        "bearer",
        "credential",
        "auth=",
    ];
    const BEGINNINGS: [&str; 12] = [
        "sk-",
        "sk_",
        "pk_",
        "rk_",
        "ghp_",
        "gho_",
        "github_pat_",
        "xox",
        "eyj",
        "akia",
        "glpat-",
        "npm_",
    ];
    let lower = text.to_ascii_lowercase();
    if text.contains('=')
        || WORDS.iter().any(|word| lower.contains(word))
        || BEGINNINGS.iter().any(|begin| lower.starts_with(begin))
    {
        return true;
    }
    // A long run of letters and digits mixed is no word.
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|run| {
        run.len() >= 16
            && run.bytes().any(|byte| byte.is_ascii_digit())
            && run.bytes().any(|byte| byte.is_ascii_alphabetic())
    }) || text.len() >= 24 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(program: &str, arguments: &[&str], folder: Option<&str>) -> Settings {
        Settings::new(Target::Command {
            program: program.to_owned(),
            arguments: arguments.iter().map(|&text| text.to_owned()).collect(),
            environment: Vec::new(),
            folder: folder.map(Into::into),
        })
    }

    fn url(url: &str) -> Settings {
        Settings::new(Target::Url {
            url: url.to_owned(),
            headers: vec![("Authorization".to_owned(), "Bearer hunter2".to_owned())],
        })
    }

    #[test]
    fn i4_the_folder_counts_as_it_is_whole() {
        let here = std::env::current_dir().unwrap();
        let id = |folder: Option<&str>| upstream_id(&settings("server", &["db"], folder));
        assert_eq!(id(None), id(Some(".")));
        assert_eq!(id(None), id(here.to_str()));
        assert_ne!(id(None), id(Some("/")));
        assert_ne!(id(Some("a")), id(Some("b")));
        assert_eq!(id(None).len(), 32);
        assert!(id(None).bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn i4_upstreams_are_told_apart_and_their_secrets_do_not_count() {
        let base = settings("npx", &["-y", "server"], Some("/srv"));
        let mut all = vec![
            base.clone(),
            settings("npx", &["-yserver"], Some("/srv")),
            settings("npx", &["-y", "server", ""], Some("/srv")),
            settings("npx -y", &["server"], Some("/srv")),
            url("https://example.com/mcp"),
            url("https://example.com/mcp?account=2"),
        ];
        all.push(Settings {
            name: "second".to_owned(),
            ..base.clone()
        });
        let mut ids: Vec<String> = all.iter().map(upstream_id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all.len());

        let mut other = base.clone();
        if let Target::Command { environment, .. } = &mut other.target {
            environment.push(("TOKEN".to_owned(), "rotated".to_owned()));
        }
        assert_eq!(upstream_id(&other), upstream_id(&base));
    }

    #[test]
    fn a_label_says_what_runs() {
        let label =
            |program: &str, arguments: &[&str]| upstream_label(&settings(program, arguments, None));
        assert_eq!(
            label(
                "/usr/bin/npx",
                &["-y", "@modelcontextprotocol/server-filesystem", "/home/ann"]
            ),
            "npx @modelcontextprotocol/server-filesystem /home/ann"
        );
        assert_eq!(
            label("uvx", &["mcp-server-git", "--repository", "/srv/x"]),
            "uvx mcp-server-git"
        );
        assert_eq!(label("uv", &["run", "-m", "server"]), "uv server");
        assert_eq!(label(r"C:\bin\server.exe", &[]), "server.exe");
        let mut named = settings("x", &[], None);
        named.name = "work\naccount".to_owned();
        assert_eq!(upstream_label(&named), "work account");
        let long = label("server", &["a b ".repeat(60).as_str()]);
        assert_eq!(long.chars().count(), LABEL_CHARS_MAX);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn a_label_holds_no_secret() {
        for arguments in [
            &["--api-key", "hunter2"][..],
            &["--api-key=hunter2"],
            &["-k", "hunter2"],
            &["KEY=hunter2"],
            &["sk-hunter2"],
            &["ghp_hunter2"],
            &["postgres://ann:hunter2@db.example.com/work"],
            &["https://example.com/mcp?key=hunter2#hunter2"],
            &["my-token-hunter2"],
            &["hunter2hunter2hunter2"],
        ] {
            let label = upstream_label(&settings("server", arguments, None));
            assert!(label.starts_with("server"), "{label}");
            assert!(!label.contains("hunter2"), "{label}");
        }
        for (address, label) in [
            (
                "https://ann:hunter2@example.com:8443/mcp?key=hunter2",
                "https://example.com:8443/mcp",
            ),
            ("http://example.com/?hunter2", "http://example.com"),
            (
                "https://example.com/s/a1b2c3d4e5f6a7b8c9/mcp/",
                "https://example.com/s/…/mcp",
            ),
        ] {
            assert_eq!(upstream_label(&url(address)), label);
        }
    }
}
