use std::{
    fmt,
    path::{Path, PathBuf},
};

use toml::Value;

use super::section::Section;
use crate::{
    environment,
    exit::{Exit, Failure},
    folder::{read_line, warn_if_open},
};

/// Where the value of a variable or a header is.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Secret {
    /// Here, in the file.
    Plain(String),
    /// In this environment variable, after this prefix.
    Variable(String, String),
    /// The only line of this file, after this prefix.
    File(PathBuf, String),
}

/// Never the value itself.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(_) => f.write_str("Plain"),
            Self::Variable(name, _) => write!(f, "Variable({name})"),
            Self::File(path, _) => write!(f, "File({})", path.display()),
        }
    }
}

impl Secret {
    /// From `"value"`, `{ env = "VARIABLE" }` or `{ file = "path" }`.
    pub(super) fn read(
        at: &str,
        name: &str,
        value: &Value,
        file: &Path,
        plain: bool,
    ) -> Result<Self, Failure> {
        let form = if plain {
            "text in quotes, { env = \"VARIABLE\" } or { file = \"path\" }"
        } else {
            "{ env = \"VARIABLE\" } or { file = \"path\" }, because it is a secret"
        };
        let wrong = || {
            let text = format!("{at}{name} in {} must be {form}", file.display());
            Failure::new(Exit::Config, text)
        };
        if let (Value::String(text), true) = (value, plain) {
            return Ok(Self::Plain(text.clone()));
        }
        let table = value.as_table().ok_or_else(wrong)?;
        let at = format!("{at}{name}.");
        let section = Section::new(&at, table, file, &["env", "file", "prefix"])?;
        let prefix = section.text("prefix")?.unwrap_or_default();
        match (section.text("env")?, section.path("file")?) {
            (Some(variable), None) => Ok(Self::Variable(variable, prefix)),
            (None, Some(path)) => Ok(Self::File(path, prefix)),
            (Some(_), Some(_)) | (None, None) => Err(wrong()),
        }
    }

    /// The value. `whose` says for whom, should it not be there.
    pub(super) fn resolve(&self, whose: &str) -> Result<String, Failure> {
        match self {
            Self::Plain(text) => Ok(text.clone()),
            Self::Variable(name, prefix) => {
                let value = environment::variable(name).filter(|value| !value.is_empty());
                let value = value.ok_or_else(|| {
                    let text = format!("the environment variable {name}, for {whose}, is not set");
                    Failure::new(Exit::Config, text).hint(
                        "set it where the proxy is started: in the client's configuration, under `env`",
                    )
                })?;
                Ok(format!("{prefix}{value}"))
            }
            Self::File(path, prefix) => {
                warn_if_open(path);
                let line = read_line(path, &format!("the file for {whose},"), "the secret")?;
                Ok(format!("{prefix}{line}"))
            }
        }
    }

    /// The environment variable that it is taken from.
    pub(super) fn variable(&self) -> Option<&str> {
        match self {
            Self::Variable(name, _) => Some(name),
            Self::Plain(_) | Self::File(..) => None,
        }
    }
}
