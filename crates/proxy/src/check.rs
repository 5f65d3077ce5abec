//! Whether settings can be kept, and what follows from them for one tool.

use std::{collections::HashSet, fmt::Write as _, path::Path, time::Duration};

use counterfoil_core::{Mode, Policy, PrincipalId, Retention};
use http::{HeaderName, HeaderValue, Uri};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{InvalidSettings, ProviderKey, Reconcile, Settings, Target, ToolPolicy};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const CENTURY: Duration = Duration::from_secs(36_500 * 24 * 3600);
/// How long an attempt may be silent.
const LEASE: Duration = Duration::from_secs(30);
/// How long an upstream that honours a provider key is taken to do so, unless it is said.
const PROVIDER_WINDOW: Duration = DAY;
const NAME_CHARS_MAX: usize = 64;
const PREFIX_BYTES_MAX: usize = 64;
const MESSAGE_BYTES: std::ops::RangeInclusive<usize> = 1024..=(1 << 30);

/// Headers that the transport sets itself; those that begin with `mcp-` too.
const OWN_HEADERS: &[&str] = &[
    "accept",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl Settings {
    /// Checks that every part can be kept and that the parts fit together. Reads nothing and asks
    /// nobody: whether the program is there, or the address answers, is not looked at.
    ///
    /// # Errors
    /// [`InvalidSettings`] names the first part that does not hold, without any secret in it.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        check_target(&self.target)?;
        let long = self.name.chars().count() > NAME_CHARS_MAX;
        if long || self.name.chars().any(char::is_control) {
            return Err(InvalidSettings::Name);
        }
        self.check_windows()?;
        if !MESSAGE_BYTES.contains(&self.message_bytes_max) {
            return Err(bounds("message_bytes_max", "from 1 KiB to 1 GiB"));
        }
        if self.result_bytes_max > self.message_bytes_max {
            return Err(bounds("result_bytes_max", "at most message_bytes_max"));
        }
        if let Some(prefix) = &self.own_tools {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            let length = 1..=PREFIX_BYTES_MAX;
            if !length.contains(&prefix.len()) || !prefix.chars().all(fits) {
                return Err(InvalidSettings::Prefix(prefix.clone()));
            }
        }
        for (name, policy) in &self.tools {
            self.check_tool(name, policy)?;
        }
        self.policy("*").check()?;
        self.check_clients()
    }

    /// How the calls of a mutating tool are kept.
    #[must_use]
    pub fn policy(&self, tool: &str) -> Policy {
        let own = self.tool(tool);
        let timeout = own.timeout.unwrap_or(self.timeout);
        let provider_window = match own.provider_key {
            Some(_) => own.provider_window.unwrap_or(PROVIDER_WINDOW),
            None => Duration::ZERO,
        };
        Policy {
            mode: Mode::Guarded,
            retention: Retention {
                replay_for: self.replay_for,
                tombstone_for: self.tombstone_for,
            },
            lease: LEASE.min(timeout),
            attempt_limit: timeout,
            result_bytes_max: self.result_bytes_max,
            provider_window,
            ..Policy::default()
        }
    }

    /// Which upstream instance this is, as it stands in the identity of its calls: 32 hex digits of
    /// a digest over the command, its arguments and folder (by default the working folder of this
    /// process), or the URL, and the name. The variables and headers do not count: name two accounts
    /// of one server apart.
    #[must_use]
    pub fn upstream(&self) -> String {
        let mut digest = Sha256::new();
        let mut part = |bytes: &[u8]| {
            // With its length, so that no two lists of parts are the same bytes.
            digest.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
            digest.update(bytes);
        };
        part(b"counterfoil upstream 1");
        part(self.name.as_bytes());
        match &self.target {
            Target::Command {
                program,
                arguments,
                environment: _,
                folder,
            } => {
                part(b"command");
                part(program.as_bytes());
                // The same words in two folders are two servers, and however its path is written
                // it is one folder. Without a working folder the words alone must do.
                let folder = folder.as_deref().unwrap_or(Path::new("."));
                let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
                part(folder.as_os_str().as_encoded_bytes());
                for argument in arguments {
                    part(argument.as_bytes());
                }
            }
            Target::Url { url, headers: _ } => {
                part(b"url");
                part(url.as_bytes());
            }
        }
        let mut text = String::with_capacity(32);
        for byte in digest.finalize().iter().take(16) {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    fn check_windows(&self) -> Result<(), InvalidSettings> {
        if self.timeout.is_zero() || self.timeout > DAY {
            return Err(bounds("timeout", "above 0 and at most a day"));
        }
        if self.replay_for > CENTURY || self.tombstone_for > CENTURY {
            return Err(bounds("replay_for and tombstone_for", "at most 100 years"));
        }
        if self.client_patience > HOUR {
            return Err(bounds("client_patience", "at most an hour"));
        }
        if self.unannotated_fresh_for > HOUR {
            return Err(bounds("unannotated_fresh_for", "at most an hour"));
        }
        if self.attach_for > 2 * MINUTE {
            return Err(bounds("attach_for", "at most two minutes"));
        }
        if self.ask_for < self.attach_for {
            return Err(bounds("ask_for", "at least as long as attach_for"));
        }
        // Later the receipt that is asked about may be gone.
        if self.ask_for > self.replay_for.max(self.tombstone_for) {
            return Err(bounds(
                "ask_for",
                "at most as long as receipts are kept (tombstone_for, or replay_for)",
            ));
        }
        if self.drain_for > HOUR {
            return Err(bounds("drain", "at most an hour"));
        }
        Ok(())
    }

    fn check_tool(&self, name: &str, policy: &ToolPolicy) -> Result<(), InvalidSettings> {
        if let Some(timeout) = policy.timeout
            && (timeout.is_zero() || timeout > DAY)
        {
            return Err(bounds("the timeout of a tool", "above 0 and at most a day"));
        }
        if policy
            .provider_window
            .is_some_and(|window| window > CENTURY)
        {
            return Err(bounds("provider_window", "at most 100 years"));
        }
        match &policy.provider_key {
            Some(ProviderKey::Header(header)) => {
                // A child process gets no headers.
                if matches!(self.target, Target::Command { .. }) {
                    return Err(InvalidSettings::Header(header.clone()));
                }
                check_header(header, "")?;
            }
            Some(ProviderKey::Argument(argument)) if argument.is_empty() => {
                return Err(bounds("the argument of a provider key", "a name"));
            }
            Some(ProviderKey::Argument(_)) | None => {}
        }
        if let Some(recipe) = &policy.reconcile {
            check_recipe(name, recipe).map_err(|why| InvalidSettings::Reconcile {
                tool: name.to_owned(),
                why: why.to_owned(),
            })?;
        }
        Ok(self.policy(name).check()?)
    }

    fn check_clients(&self) -> Result<(), InvalidSettings> {
        let (mut names, mut tokens) = (HashSet::new(), HashSet::new());
        for (name, token) in &self.listening.clients {
            // What the proxy itself calls those that have no name.
            let taken = name == "local" || name.starts_with("bearer-");
            let visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
            if taken
                || PrincipalId::new(name.as_str()).is_err()
                || !visible
                || !names.insert(name)
                || !tokens.insert(token)
            {
                return Err(InvalidSettings::Client(name.clone()));
            }
        }
        Ok(())
    }
}

fn check_target(target: &Target) -> Result<(), InvalidSettings> {
    match target {
        Target::Command {
            program,
            arguments,
            environment,
            folder,
        } => {
            if program.trim().is_empty() {
                return Err(InvalidSettings::NoCommand);
            }
            let in_folder = folder
                .as_ref()
                .is_some_and(|folder| folder.as_os_str().as_encoded_bytes().contains(&0));
            let mut texts = std::iter::once(program).chain(arguments);
            if in_folder || texts.any(|text| text.contains('\0')) {
                return Err(InvalidSettings::Nul);
            }
            for (name, value) in environment {
                let unfit = name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
                if unfit {
                    return Err(InvalidSettings::Variable(name.clone()));
                }
            }
            Ok(())
        }
        Target::Url { url, headers } => {
            check_url(url)?;
            let mut seen = HashSet::new();
            for (name, value) in headers {
                check_header(name, value)?;
                if !seen.insert(name.to_ascii_lowercase()) {
                    return Err(InvalidSettings::Header(name.clone()));
                }
            }
            Ok(())
        }
    }
}

fn check_url(url: &str) -> Result<(), InvalidSettings> {
    // What stands behind the host may be a secret, and what stands before it too.
    let place = url.split(['?', '#']).next().unwrap_or_default();
    let shown = match (place.split_once("://"), place.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, after))) => format!("{scheme}://…@{after}"),
        (None, Some(_)) => "…".to_owned(),
        (Some(_) | None, None) => place.to_owned(),
    };
    let wrong = || InvalidSettings::Url(shown.clone());
    let parsed: Uri = url.parse().map_err(|_| wrong())?;
    let http = parsed
        .scheme_str()
        .is_some_and(|scheme| scheme == "http" || scheme == "https");
    let authority = parsed.authority().filter(|found| !found.host().is_empty());
    let authority = authority.filter(|_| http).ok_or_else(wrong)?;
    if authority.as_str().contains('@') {
        return Err(InvalidSettings::Credentials(authority.host().to_owned()));
    }
    Ok(())
}

fn check_header(name: &str, value: &str) -> Result<(), InvalidSettings> {
    let wrong = || InvalidSettings::Header(name.to_owned());
    let parsed: HeaderName = name.parse().map_err(|_| wrong())?;
    let own = OWN_HEADERS.contains(&parsed.as_str()) || parsed.as_str().starts_with("mcp-");
    if own || HeaderValue::from_str(value).is_err() {
        return Err(wrong());
    }
    Ok(())
}

fn check_recipe(tool: &str, recipe: &Reconcile) -> Result<(), &'static str> {
    if recipe.tool.is_empty() {
        return Err("it names no tool to ask");
    }
    if recipe.tool == tool {
        return Err("it asks the tool itself, which would run it again");
    }
    if !recipe.arguments.is_object() {
        return Err("its arguments must be an object");
    }
    if recipe.happened_if_text.trim().is_empty() {
        return Err("happened_if_text is empty, and would be found in every answer");
    }
    check_pointers_in(&recipe.arguments)?;
    let pointers = check_pointers(&recipe.happened_if_text)?;
    if recipe.settle_after.is_some() && pointers == 0 {
        return Err(
            "settle_after needs a happened_if_text that is unique to the call: put a {/pointer} into it",
        );
    }
    Ok(())
}

fn check_pointers_in(value: &Value) -> Result<(), &'static str> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        Value::String(text) => check_pointers(text).map(drop),
        Value::Array(items) => items.iter().try_for_each(check_pointers_in),
        Value::Object(members) => members.values().try_for_each(check_pointers_in),
    }
}

/// How many `{/pointer}` there are in a text.
fn check_pointers(text: &str) -> Result<usize, &'static str> {
    let (mut count, mut rest) = (0, text);
    while let Some((_, after)) = rest.split_once("{/") {
        let (pointer, next) = after
            .split_once('}')
            .ok_or("there is a {/ without its closing }")?;
        let escapes = pointer.split('~').skip(1);
        if !escapes
            .into_iter()
            .all(|after| after.starts_with(['0', '1']))
        {
            return Err("a ~ in a pointer is written ~0, a / in a name ~1");
        }
        (count, rest) = (count + 1, next);
    }
    Ok(count)
}

const fn bounds(name: &'static str, form: &'static str) -> InvalidSettings {
    InvalidSettings::Bounds { name, form }
}

#[cfg(test)]
mod tests {
    use counterfoil_core::InvalidPolicy;
    use serde_json::json;

    use super::*;

    fn command() -> Settings {
        Settings::new(Target::Command {
            program: "server".to_owned(),
            arguments: vec!["--flag".to_owned()],
            environment: vec![("TOKEN".to_owned(), "x".to_owned())],
            folder: None,
        })
    }

    fn at(url: &str, headers: &[(&str, &str)]) -> Settings {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Settings::new(Target::Url {
            url: url.to_owned(),
            headers: headers.iter().map(own).collect(),
        })
    }

    fn with_tool(mut settings: Settings, tool: &str, policy: ToolPolicy) -> Settings {
        settings.tools.insert(tool.to_owned(), policy);
        settings
    }

    fn said(settings: &Settings) -> String {
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_hold() {
        assert_eq!(command().check(), Ok(()));
        let fine = at(
            "https://host:8443/mcp?x=1",
            &[("Authorization", "Bearer x")],
        );
        assert_eq!(fine.check(), Ok(()));
        let policy = command().policy("anything");
        assert_eq!(policy.mode, Mode::Guarded);
        assert_eq!(policy.attempt_limit, 2 * MINUTE);
        assert!(policy.resend_window().is_zero(), "nothing is sent again");
    }

    #[test]
    fn targets_that_cannot_be_used_are_refused_without_their_secrets() {
        let mut settings = command();
        settings.target = Target::Command {
            program: " ".to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            folder: None,
        };
        assert_eq!(settings.check(), Err(InvalidSettings::NoCommand));
        settings.target = Target::Command {
            program: "p".to_owned(),
            arguments: vec!["a\0".to_owned()],
            environment: Vec::new(),
            folder: None,
        };
        assert_eq!(settings.check(), Err(InvalidSettings::Nul));
        settings.target = Target::Command {
            program: "p".to_owned(),
            arguments: Vec::new(),
            environment: vec![("A=B".to_owned(), "hunter2".to_owned())],
            folder: None,
        };
        assert!(said(&settings).contains("A=B"));
        assert!(!said(&settings).contains("hunter2"));
        for (url, part) in [
            ("ftp://host/", "no http://"),
            ("host/mcp", "no http://"),
            ("http://", "no http://"),
            ("http:///mcp?key=hunter2", "no http://"),
            ("https://me:hunter2@host/mcp", "credentials"),
            ("https://me:hunter2@ho st/mcp", "no http://"),
            ("me:hunter2@host", "no http://"),
        ] {
            let said = said(&at(url, &[]));
            assert!(said.contains(part), "{url}: {said}");
            assert!(!said.contains("hunter2"), "{url}: {said}");
        }
        for headers in [
            &[("a b", "x")][..],
            &[("X-Key", "a\nhunter2")],
            &[("Content-Type", "text/plain")],
            &[("mcp-session-id", "x")],
            &[("X-A", "1"), ("x-a", "2")],
        ] {
            let refused = at("http://h/", headers).check();
            assert!(
                matches!(refused, Err(InvalidSettings::Header(_))),
                "{headers:?}"
            );
        }
    }

    #[test]
    fn windows_and_limits_fit_together() {
        type Change = fn(&mut Settings);
        let cases: [(&str, Change); 11] = [
            ("timeout", |s| s.timeout = Duration::ZERO),
            ("timeout", |s| s.timeout = 2 * DAY),
            ("attach_for", |s| s.attach_for = 3 * MINUTE),
            ("ask_for", |s| s.ask_for = MINUTE),
            ("ask_for", |s| s.ask_for = 31 * DAY),
            ("client_patience", |s| s.client_patience = 2 * HOUR),
            ("drain", |s| s.drain_for = 2 * HOUR),
            ("message_bytes_max", |s| s.message_bytes_max = 0),
            ("result_bytes_max", |s| s.result_bytes_max = 128 << 20),
            ("name", |s| s.name = "a\u{1b}[2J".to_owned()),
            ("begin a tool's name", |s| {
                s.own_tools = Some("two words".to_owned());
            }),
        ];
        for (part, change) in cases {
            let mut settings = command();
            change(&mut settings);
            let said = said(&settings);
            assert!(said.contains(part), "{part}: {said}");
        }
        let mut settings = command();
        settings.replay_for = 31 * DAY;
        let refused = InvalidPolicy::ReplayOutlivesTombstone;
        assert_eq!(settings.check(), Err(InvalidSettings::Policy(refused)));
        settings.tombstone_for = Duration::ZERO;
        assert_eq!(settings.check(), Ok(()));
    }

    #[test]
    fn a_provider_key_has_a_place_and_a_window() {
        let key = |place| ToolPolicy {
            provider_key: Some(place),
            ..ToolPolicy::default()
        };
        let header = key(ProviderKey::Header("Idempotency-Key".to_owned()));
        let of_child = with_tool(command(), "pay", header.clone());
        assert!(matches!(of_child.check(), Err(InvalidSettings::Header(_))));
        let remote = with_tool(at("https://h/mcp", &[]), "pay", header);
        assert_eq!(remote.check(), Ok(()));
        assert_eq!(remote.policy("pay").provider_window, DAY);
        assert!(remote.policy("other").provider_window.is_zero());
        let unnamed = key(ProviderKey::Argument(String::new()));
        assert!(with_tool(command(), "*", unnamed).check().is_err());
        let mut named = key(ProviderKey::Argument("key".to_owned()));
        named.provider_window = Some(HOUR);
        named.timeout = Some(5 * MINUTE);
        let settings = with_tool(command(), "*", named);
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(settings.policy("any").provider_window, HOUR);
        assert_eq!(settings.policy("any").attempt_limit, 5 * MINUTE);
    }

    #[test]
    fn a_recipe_that_proves_nothing_is_refused() {
        let recipe = |tool: &str, arguments: Value, text: &str, settle_after| ToolPolicy {
            reconcile: Some(Reconcile {
                tool: tool.to_owned(),
                arguments,
                happened_if_text: text.to_owned(),
                settle_after,
            }),
            ..ToolPolicy::default()
        };
        for (policy, part) in [
            (recipe("", json!({}), "x", None), "names no tool"),
            (recipe("write", json!({}), "x", None), "run it again"),
            (recipe("read", json!([]), "x", None), "an object"),
            (recipe("read", json!({}), " ", None), "every answer"),
            (
                recipe("read", json!({"a": ["{/b"]}), "x", None),
                "closing }",
            ),
            (recipe("read", json!({}), "{/a~2}", None), "~1"),
            (
                recipe("read", json!({}), "x", Some(HOUR)),
                "unique to the call",
            ),
        ] {
            let said = said(&with_tool(command(), "write", policy));
            assert!(said.contains("`write`") && said.contains(part), "{said}");
        }
        let good = recipe("read", json!({"path": "{/path}"}), "{/a~1b/0}", Some(HOUR));
        assert_eq!(with_tool(command(), "write", good).check(), Ok(()));
    }

    #[test]
    fn i4_two_clients_are_never_one_principal() {
        for clients in [
            &[("", "t")][..],
            &[("a b", "t")],
            &[("a", "")],
            &[("a", "two words")],
            &[("a", "t"), ("a", "u")],
            &[("a", "t"), ("b", "t")],
            &[("local", "t")],
            &[("bearer-0123", "t")],
        ] {
            let mut settings = command();
            let own = |(name, token): &(&str, &str)| ((*name).to_owned(), (*token).to_owned());
            settings.listening.clients = clients.iter().map(own).collect();
            let refused = settings.check();
            assert!(
                matches!(refused, Err(InvalidSettings::Client(_))),
                "{clients:?}"
            );
        }
    }

    #[test]
    fn i4_instances_of_a_server_are_told_apart() {
        let of = |program: &str, arguments: &[&str], folder: Option<&str>, name: &str| {
            let mut settings = Settings::new(Target::Command {
                program: program.to_owned(),
                arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
                environment: Vec::new(),
                folder: folder.map(Into::into),
            });
            settings.name = name.to_owned();
            settings.upstream()
        };
        let mut all = vec![
            of("p", &[], None, ""),
            of("p", &["a", "b"], None, ""),
            of("p", &["ab"], None, ""),
            of("p", &["b", "a"], None, ""),
            of("p", &["", "ab"], None, ""),
            of("p", &[], Some("/a"), ""),
            of("p", &["/a"], None, ""),
            of("p", &[], None, "work"),
            of("work", &[], None, ""),
            at("http://p/", &[]).upstream(),
            at("http://p/x", &[]).upstream(),
        ];
        for one in &all {
            assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
        let here = std::env::current_dir().unwrap();
        let here = of("p", &[], here.to_str(), "");
        assert_eq!(of("p", &[], None, ""), here);
        assert_eq!(of("p", &[], Some("."), ""), here);
        // A rotated token is the same upstream.
        let token = |value| at("http://p/", &[("Authorization", value)]).upstream();
        assert_eq!(token("Bearer a"), token("Bearer b"));
    }
}
