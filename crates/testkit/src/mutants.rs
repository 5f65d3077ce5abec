//! Plants one fault after the other in a copy of the sources and expects that the named test
//! fails. A mutant whose text does not match exactly once, that does not compile, or whose test
//! does not pass without it, is an error of its own: then nothing was shown.
#![allow(
    clippy::disallowed_methods,
    reason = "a development tool: it reads the environment as a binary does"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde::Deserialize;

/// The longest that one test program may run.
const LIMIT: Duration = Duration::from_secs(900);
/// Folders that are never sources.
const NO_SOURCES: [&str; 5] = [
    "target",
    ".git",
    "node_modules",
    ".venv",
    "counterfoil-data",
];

/// One planted fault.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// What is broken.
    pub name: String,
    /// Which invariant of the contract.
    pub invariant: String,
    /// In which file, from the root.
    pub file: String,
    /// What stands there now; matches exactly once.
    pub find: String,
    /// What is planted in its place.
    pub replace: String,
    /// Arguments of `cargo test` that must fail.
    pub test: Vec<String>,
    /// How many histories the simulator runs, if it is the test.
    pub histories: Option<u64>,
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The test failed: caught.
    Caught,
    /// The test passed: nothing guards this.
    Survived,
    /// Nothing was shown, and why.
    Unproven(String),
}

/// Why the run could not be done at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or a program.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// What went wrong.
        source: io::Error,
    },
    /// A mutant's file.
    #[error("{file}: {source}")]
    Toml {
        /// Which one.
        file: PathBuf,
        /// What is wrong with it.
        source: Box<toml::de::Error>,
    },
}

fn at<T>(what: impl Into<String>, result: io::Result<T>) -> Result<T, Error> {
    result.map_err(|source| Error::Io {
        what: what.into(),
        source,
    })
}

/// Reads every mutant of a folder, in the order of the files' names.
///
/// # Errors
/// If a file cannot be read or is no mutant.
pub fn read_all(folder: &Path) -> Result<Vec<Mutant>, Error> {
    let mut files = BTreeSet::new();
    for entry in at(folder.display().to_string(), std::fs::read_dir(folder))? {
        let path = at("a folder's entry", entry)?.path();
        if path.extension() == Some(OsStr::new("toml")) {
            files.insert(path);
        }
    }
    files
        .into_iter()
        .map(|file| {
            let text = at(file.display().to_string(), std::fs::read_to_string(&file))?;
            toml::from_str(&text).map_err(|source| Error::Toml {
                file,
                source: Box::new(source),
            })
        })
        .collect()
}

/// A copy of the sources with a build folder of its own.
#[derive(Debug)]
pub struct Bench {
    sources: PathBuf,
    build: PathBuf,
}

impl Bench {
    /// Copies the sources at `root` to a folder below `scratch`. What has not changed since the
    /// last copy is left alone, so that it is not built again.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn new(root: &Path, scratch: &Path) -> Result<Self, Error> {
        let bench = Self {
            sources: scratch.join("sources"),
            build: scratch.join("build"),
        };
        copy(root, &bench.sources)?;
        Ok(bench)
    }

    /// The named tests pass without any fault; the ones that do not, with the reason.
    ///
    /// # Errors
    /// If cargo cannot be run.
    pub fn baseline(&self, mutant: &Mutant) -> Result<Option<String>, Error> {
        let output = self.test(mutant, false)?;
        let told = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Ok(Some(format!(
                "its test fails without it:\n{}",
                tail(&output)
            )));
        }
        if passed(&told) == 0 {
            return Ok(Some("its arguments name no test".to_owned()));
        }
        Ok(None)
    }

    /// Plants a mutant, runs its test, and takes it out again.
    ///
    /// # Errors
    /// If a file or cargo fails; the mutant is taken out in any case.
    pub fn try_mutant(&self, mutant: &Mutant) -> Result<Verdict, Error> {
        let file = self.sources.join(&mutant.file);
        let original = at(mutant.file.clone(), std::fs::read_to_string(&file))?;
        let matches = original.matches(&mutant.find).count();
        if matches != 1 {
            let text = format!("`find` matches {matches} times in {}", mutant.file);
            return Ok(Verdict::Unproven(text));
        }
        let mutated = original.replacen(&mutant.find, &mutant.replace, 1);
        at(mutant.file.clone(), std::fs::write(&file, mutated))?;
        let verdict = self.judge(mutant);
        at(mutant.file.clone(), std::fs::write(&file, original))?;
        verdict
    }

    fn judge(&self, mutant: &Mutant) -> Result<Verdict, Error> {
        let built = self.test(mutant, true)?;
        if !built.status.success() {
            let text = format!("it does not compile:\n{}", tail(&built));
            return Ok(Verdict::Unproven(text));
        }
        let output = self.test(mutant, false)?;
        if output.status.success() {
            return Ok(Verdict::Survived);
        }
        // Only a test that said so has failed; anything else is a broken run.
        let told = String::from_utf8_lossy(&output.stdout);
        if told.contains("test result: FAILED") {
            Ok(Verdict::Caught)
        } else {
            Ok(Verdict::Unproven(format!(
                "it did not run:\n{}",
                tail(&output)
            )))
        }
    }

    fn test(&self, mutant: &Mutant, only_build: bool) -> Result<Output, Error> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .arg("test")
            .args(only_build.then_some("--no-run"))
            .args(&mutant.test)
            .current_dir(&self.sources)
            .env("CARGO_TARGET_DIR", &self.build)
            .env("RUST_BACKTRACE", "0")
            .env_remove("COUNTERFOIL_SEED")
            .env_remove("COUNTERFOIL_HISTORIES")
            .stdin(Stdio::null());
        if let Some(histories) = mutant.histories {
            command.env("COUNTERFOIL_HISTORIES", histories.to_string());
        }
        bounded(command)
    }
}

/// Runs a program to its end or its limit, whichever comes first.
fn bounded(mut command: Command) -> Result<Output, Error> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = at("cargo", command.spawn())?;
    let id = child.id();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    match told.recv_timeout(LIMIT) {
        Ok(output) => at("cargo", output),
        Err(_) => {
            let _ = Command::new("kill").arg(id.to_string()).status();
            let error = io::Error::new(io::ErrorKind::TimedOut, "it did not end in time");
            at("cargo test", Err(error))
        }
    }
}

/// How many tests passed, over all programs that ran.
fn passed(told: &str) -> u64 {
    told.lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

fn tail(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// Copies what differs, and removes what is no longer there.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    at(to.display().to_string(), std::fs::create_dir_all(to))?;
    let mut names = BTreeSet::new();
    for entry in at(from.display().to_string(), std::fs::read_dir(from))? {
        let entry = at("a folder's entry", entry)?;
        let name = entry.file_name();
        let kind = at(name.display().to_string(), entry.file_type())?;
        let (source, copied) = (entry.path(), to.join(&name));
        if NO_SOURCES.iter().any(|skipped| name == *skipped) || kind.is_symlink() {
            continue;
        }
        names.insert(name);
        if kind.is_dir() {
            copy(&source, &copied)?;
            continue;
        }
        let bytes = at(source.display().to_string(), std::fs::read(&source))?;
        if std::fs::read(&copied).ok().as_deref() != Some(bytes.as_slice()) {
            at(copied.display().to_string(), std::fs::write(&copied, bytes))?;
        }
    }
    for entry in at(to.display().to_string(), std::fs::read_dir(to))? {
        let entry = at("a folder's entry", entry)?;
        if names.contains(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        at(path.display().to_string(), removed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_counted() {
        let told = "test result: ok. 3 passed; 0 failed; 0 ignored\n\
                    test result: ok. 0 passed; 0 failed\ntest result: FAILED. 9 passed; 1 failed";
        assert_eq!(passed(told), 3);
        assert_eq!(passed("error: could not compile"), 0);
    }

    #[test]
    fn every_planted_mutant_still_fits_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mutants = read_all(&root.join("mutants")).expect("mutants");
        assert!(mutants.len() >= 8, "{}", mutants.len());
        for mutant in mutants {
            let text = std::fs::read_to_string(root.join(&mutant.file)).expect("its file");
            let matches = text.matches(&mutant.find).count();
            assert_eq!(matches, 1, "`{}` in {}", mutant.name, mutant.file);
        }
    }
}
