//! One run of the suite, and what it says of each scenario.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::Instant;

use counterfoil_e2e::installed::conformance;
use serde_json::Value;
use tempfile::TempDir;

/// One check of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Check {
    pub(crate) id: String,
    /// `SUCCESS`, `FAILURE`, `WARNING`, `SKIPPED` or `INFO`.
    pub(crate) status: String,
    /// What is said of it if it is not well.
    pub(crate) why: String,
}

/// The checks of each scenario.
pub(crate) struct Outcomes(pub(crate) BTreeMap<String, Vec<Check>>);

/// Runs what a revision demands.
pub(crate) fn run(url: &str, revision: &str) -> Outcomes {
    let folder = TempDir::new().unwrap();
    // Whether it failed is in what it wrote.
    let words = [
        "server",
        "--url",
        url,
        "--requirements",
        revision,
        "--output-dir",
        "said",
    ];
    let started = Instant::now();
    let done = conformance(folder.path(), &words);
    println!("{revision} {url}: {:.1} s", started.elapsed().as_secs_f64());
    let mut scenarios = BTreeMap::new();
    for entry in fs::read_dir(folder.path().join("said"))
        .into_iter()
        .flatten()
    {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let text = fs::read_to_string(entry.path().join("checks.json")).unwrap();
        let checks: Vec<Value> = serde_json::from_str(&text).unwrap();
        scenarios.insert(
            scenario(&name).to_owned(),
            checks.iter().map(check).collect(),
        );
    }
    assert!(
        scenarios.len() > 30,
        "the suite ran {} scenarios against {url}\n{}\n{}",
        scenarios.len(),
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    Outcomes(scenarios)
}

/// `server-tools-list-2026-12-01T00-02-55-748Z` is about `tools-list`.
fn scenario(folder: &str) -> &str {
    let name = folder.strip_prefix("server-").unwrap_or(folder);
    let is_time = |at: usize| name[at..].starts_with("-20") && name[at..].contains('T');
    let time = name.match_indices("-20").map(|(at, _)| at);
    // The last that begins a time: a name may have a date in it.
    let time =
        time.filter(|at| is_time(*at) && name.len() - at == "-2026-12-01T00-02-55-748Z".len());
    time.last().map_or(name, |at| &name[..at])
}

fn check(said: &Value) -> Check {
    let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
    Check {
        id: text("id"),
        status: text("status"),
        why: text("errorMessage"),
    }
}

impl Outcomes {
    /// How many checks passed.
    pub(crate) fn passed(&self) -> usize {
        let all = self.0.values().flatten();
        all.filter(|check| check.status == "SUCCESS").count()
    }
}

impl fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scenario, checks) in &self.0 {
            writeln!(f, "{scenario}: {}", summary(checks))?;
        }
        Ok(())
    }
}

/// Such as `3 passed, 1 failed`.
pub(crate) fn summary(checks: &[Check]) -> String {
    let words = [
        ("SUCCESS", "passed"),
        ("FAILURE", "failed"),
        ("WARNING", "warned"),
        ("SKIPPED", "skipped"),
        ("INFO", "told"),
    ];
    let count = |status: &str| checks.iter().filter(|check| check.status == status).count();
    let counted = words.iter().map(|(status, word)| (count(status), word));
    let counted = counted.filter(|(count, _)| *count > 0);
    let counted: Vec<_> = counted
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    counted.join(", ")
}
