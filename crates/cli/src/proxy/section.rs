//! One section of the proxy's configuration file, read key by key. A key that there is not is
//! refused with the nearest one that there is.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use toml::{Table, Value};

use crate::{
    config::nearest,
    exit::{Exit, Failure},
};

/// A table of the file and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Section<'a> {
    /// `upstream.git.`, with its dot; empty above the first section.
    at: &'a str,
    table: &'a Table,
    file: &'a Path,
}

impl<'a> Section<'a> {
    /// A table in which there are these keys and no others.
    pub(super) fn new(
        at: &'a str,
        table: &'a Table,
        file: &'a Path,
        keys: &[&str],
    ) -> Result<Self, Failure> {
        let section = Self { at, table, file };
        match table.keys().find(|key| !keys.contains(&key.as_str())) {
            None => Ok(section),
            Some(key) => Err(section.unknown(key, keys)),
        }
    }

    fn unknown(&self, key: &str, keys: &[&str]) -> Failure {
        let text = format!(
            "there is no key {}{key} in {}",
            self.at,
            self.file.display()
        );
        let hint = match nearest(key, keys.iter().copied()) {
            Some(near) => format!("did you mean {}{near}?", self.at),
            None => format!("there are {}", keys.join(", ")),
        };
        Failure::new(Exit::Config, text).hint(hint)
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.table.get(key)
    }

    /// The value of a key is not what it must be.
    pub(super) fn wrong(&self, key: &str, form: &str) -> Failure {
        let file = self.file.display();
        Failure::new(
            Exit::Config,
            format!("{}{key} in {file} must be {form}", self.at),
        )
    }

    fn read<T>(
        &self,
        key: &str,
        form: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        self.get(key)
            .map(|value| read(value).ok_or_else(|| self.wrong(key, form)))
            .transpose()
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<String>, Failure> {
        self.read(key, "text in quotes", |value| {
            value.as_str().map(str::to_owned)
        })
    }

    /// A path, relative to the file's folder.
    pub(super) fn path(&self, key: &str) -> Result<Option<PathBuf>, Failure> {
        let text = self.read(key, "a path in quotes", |value| {
            value.as_str().filter(|text| !text.is_empty())
        })?;
        Ok(text.map(|text| self.beside(text)))
    }

    /// A path of the file, which is relative to its folder.
    pub(super) fn beside(&self, text: &str) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(text)
    }

    pub(super) fn switch(&self, key: &str) -> Result<Option<bool>, Failure> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<String>>, Failure> {
        self.read(key, "an array of texts", |value| {
            let items = value.as_array()?.iter();
            items.map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    pub(super) fn time(
        &self,
        key: &str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>, Failure> {
        let form = "a duration in quotes, such as \"48h\", \"2m\" or \"500ms\"";
        let given = self.read(key, form, |value| match value {
            Value::Integer(0) => Some(Duration::ZERO),
            Value::String(text) if text.trim() == "0" => Some(Duration::ZERO),
            Value::String(text) => humantime::parse_duration(text).ok(),
            Value::Integer(_)
            | Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_)
            | Value::Array(_)
            | Value::Table(_) => None,
        })?;
        match given {
            Some(given) if !range.contains(&given) => {
                let shown = |bound: &Duration| humantime::format_duration(*bound).to_string();
                let (from, to) = (shown(range.start()), shown(range.end()));
                Err(self.wrong(key, &format!("a duration from {from} to {to}")))
            }
            given => Ok(given),
        }
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Failure> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let given = value.as_str().unwrap_or_default();
        if let Some((_, meant)) = words.iter().find(|(word, _)| *word == given) {
            return Ok(Some(*meant));
        }
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let failure = self.wrong(key, &names.join(" or "));
        Err(match nearest(given, names.into_iter()) {
            Some(near) => failure.hint(format!("did you mean {near}?")),
            None => failure,
        })
    }

    /// A table under a key.
    pub(super) fn table(&self, key: &str) -> Result<Option<&'a Table>, Failure> {
        let name = format!("{}{key}", self.at);
        match self.get(key) {
            None => Ok(None),
            Some(Value::Table(table)) => Ok(Some(table)),
            Some(_) => Err(self.wrong(key, "a section").hint(format!(
                "write [{name}] on a line of its own, or {key} = {{ … }}"
            ))),
        }
    }

    /// The tables under a key by their names, such as `[upstream.NAME]`.
    pub(super) fn tables(&self, key: &str) -> Result<Vec<(&'a str, &'a Table)>, Failure> {
        let Some(table) = self.table(key)? else {
            return Ok(Vec::new());
        };
        let named = |(name, value): (&'a String, &'a Value)| {
            let table = value.as_table().ok_or_else(|| {
                self.wrong(&format!("{key}.{name}"), "a section")
                    .hint(format!(
                        "write [{}{key}.NAME] on a line of its own",
                        self.at
                    ))
            })?;
            Ok((name.as_str(), table))
        };
        table.iter().map(named).collect()
    }
}
