use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use super::settings::{CONFIG_VARIABLE, Kind, SETTINGS, Setting, nearest};
use crate::{
    address::Address,
    exit::{Exit, Failure},
};

/// The file that is read if none is named.
const FILE: &str = "counterfoil.toml";

/// Where a value comes from, in rising precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A value as text, with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) text: String,
    pub(crate) source: Source,
}

/// What the command line sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// `--config`.
    pub(crate) config: Option<PathBuf>,
    /// The setting, the flag, the value.
    pub(crate) values: Vec<(&'static str, &'static str, String)>,
}

/// Every setting with the value in force.
pub(crate) type Layers = BTreeMap<&'static str, Found>;

/// Every setting with its default.
pub(crate) fn defaults() -> Layers {
    let default = |setting: &Setting| Found {
        text: setting.default.to_owned(),
        source: Source::Default,
    };
    SETTINGS
        .iter()
        .map(|setting| (setting.name, default(setting)))
        .collect()
}

/// Lays file, environment and flags over the defaults.
pub(crate) fn layers(flags: &Flags, environment: &[(String, String)]) -> Result<Layers, Failure> {
    let mut layers = defaults();
    if let Some((path, text)) = config_file(flags, environment)? {
        lay_file(&mut layers, &path, &text)?;
    }
    for (name, value) in environment {
        if name == CONFIG_VARIABLE {
            continue;
        }
        let Some(setting) = SETTINGS.iter().find(|s| s.variable() == *name) else {
            let variables: Vec<_> = SETTINGS.iter().map(Setting::variable).collect();
            let known = variables.iter().map(String::as_str);
            return Err(unknown("environment variable", name, nearest(name, known)));
        };
        let source = Source::Environment(name.clone());
        lay(&mut layers, setting.name, value.clone(), source);
    }
    for (name, flag, value) in &flags.values {
        lay(&mut layers, name, value.clone(), Source::Flag(flag));
    }
    Ok(layers)
}

/// Lays one value over what is there. Only a setting that exists can be laid over.
pub(crate) fn lay(layers: &mut Layers, name: &str, text: String, source: Source) {
    if let Some(found) = layers.get_mut(name) {
        *found = Found { text, source };
    }
}

fn config_file(
    flags: &Flags,
    environment: &[(String, String)],
) -> Result<Option<(PathBuf, String)>, Failure> {
    let variable = environment
        .iter()
        .find_map(|(name, value)| (name == CONFIG_VARIABLE).then(|| PathBuf::from(value)));
    let named = flags.config.clone().or(variable);
    let path = named.clone().unwrap_or_else(|| PathBuf::from(FILE));
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => Ok(None),
        Err(error) => Err(unreadable(&path, &error)),
    }
}

/// A configuration file that was named and cannot be read.
pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let path = path.display();
    let text = format!("the configuration file {path} cannot be read: {error}");
    Failure::new(Exit::Config, text).hint("check the path and its permissions")
}

/// The TOML of a configuration file.
pub(crate) fn table(path: &Path, text: &str) -> Result<toml::Table, Failure> {
    text.parse().map_err(|error: toml::de::Error| {
        // The error's own rendering would show the line, and so perhaps a secret.
        let line = error
            .span()
            .and_then(|span| text.get(..span.start))
            .map_or(1, |before| before.matches('\n').count() + 1);
        Failure::new(
            Exit::Config,
            format!("{}, line {line}: {}", path.display(), error.message()),
        )
        .hint("the file is TOML: sections in brackets, then key = value")
    })
}

fn lay_file(layers: &mut Layers, path: &Path, text: &str) -> Result<(), Failure> {
    let table = table(path, text)?;
    for (section, value) in &table {
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.name == section) {
            let text = spelled(setting, value, path)?;
            lay(layers, setting.name, text, Source::File(path.to_owned()));
            continue;
        }
        let in_section = |setting: &&Setting| setting.section() == Some(section);
        if !SETTINGS.iter().any(|setting| in_section(&setting)) {
            let names = SETTINGS.iter().map(|s| s.section().unwrap_or(s.name));
            let near = nearest(section, names);
            return Err(if value.is_table() {
                unknown("section", &format!("[{section}]"), near)
            } else {
                unknown("key", section, near)
            });
        }
        let toml::Value::Table(keys) = value else {
            return Err(Failure::new(
                Exit::Config,
                format!(
                    "`{section}` in {} is a section, not a value",
                    path.display()
                ),
            )
            .hint(format!("write [{section}] on a line of its own")));
        };
        for (key, value) in keys {
            let name = format!("{section}.{key}");
            let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
                if SETTINGS.iter().any(|setting| setting.name == *key) {
                    let failure = unknown("key", &name, None);
                    return Err(failure.hint(format!(
                        "`{key}` belongs to no section: write it above the first one"
                    )));
                }
                let in_this = SETTINGS.iter().filter(in_section).map(|s| s.name);
                return Err(unknown("key", &name, nearest(&name, in_this)));
            };
            let text = spelled(setting, value, path)?;
            lay(layers, setting.name, text, Source::File(path.to_owned()));
        }
    }
    Ok(())
}

/// A value of the file in the spelling that environment and flags use.
fn spelled(setting: &Setting, value: &toml::Value, path: &Path) -> Result<String, Failure> {
    use toml::Value;
    let fits = match (setting.kind, value) {
        (Kind::Text | Kind::Duration, Value::String(text)) => Some(text.clone()),
        (Kind::Duration, Value::Integer(0)) => Some("0".to_owned()),
        (Kind::Path, Value::String(text)) if text.is_empty() => Some(String::new()),
        (Kind::Store, Value::String(text)) => Some(match Address::parse(text) {
            Ok(Address::Sqlite(Some(file))) => {
                let folder = path.parent().unwrap_or(Path::new(""));
                format!("sqlite:{}", folder.join(file).display())
            }
            Ok(Address::Sqlite(None) | Address::Postgres(_)) | Err(_) => text.clone(),
        }),
        (Kind::Path, Value::String(text)) => {
            let folder = path.parent().unwrap_or(Path::new(""));
            Some(folder.join(text).display().to_string())
        }
        (Kind::Number, Value::Integer(number)) => Some(number.to_string()),
        (Kind::Switch, Value::Boolean(on)) => Some(on.to_string()),
        (Kind::List, Value::Array(items)) => items
            .iter()
            .map(Value::as_str)
            .collect::<Option<Vec<_>>>()
            .map(|items| items.join(",")),
        (
            Kind::Text
            | Kind::Duration
            | Kind::Path
            | Kind::Number
            | Kind::Switch
            | Kind::List
            | Kind::Store,
            _,
        ) => None,
    };
    fits.ok_or_else(|| {
        let form = match setting.kind {
            Kind::Text | Kind::Path | Kind::Store => "text in quotes",
            Kind::Duration => "a duration in quotes, such as \"48h\"",
            Kind::Number => "a whole number",
            Kind::Switch => "true or false",
            Kind::List => "an array of texts",
        };
        Failure::new(
            Exit::Config,
            format!("{} in {} must be {form}", setting.name, path.display()),
        )
    })
}

fn unknown(what: &str, name: &str, near: Option<&str>) -> Failure {
    let failure = Failure::new(Exit::Config, format!("there is no {what} {name}"));
    failure.hint(near.map_or_else(
        || "`counterfoil config check` lists what there is".to_owned(),
        |near| format!("did you mean {near}?"),
    ))
}
