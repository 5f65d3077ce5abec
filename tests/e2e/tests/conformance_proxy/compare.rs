//! What is the same, what differs, and which differences are as they should be.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::suite::{Check, Outcomes, summary};

/// Prints a table, and fails if the proxy makes a difference that is not expected, or if an
/// expected one is not there any more.
pub(crate) fn same(server: &str, revision: &str, direct: &Outcomes, through: &[(&str, Outcomes)]) {
    let expected = expected(server);
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    println!(
        "{server} {revision}\n{:48}{:34}through the proxy",
        "", "direct"
    );
    let names: BTreeSet<&String> = through
        .iter()
        .flat_map(|(_, outcomes)| outcomes.0.keys())
        .chain(direct.0.keys())
        .collect();
    for name in names {
        let none = Vec::new();
        let alone = direct.0.get(name).unwrap_or(&none);
        print!("{name:48}{:34}", summary(alone));
        for (way, outcomes) in through {
            let behind = outcomes.0.get(name).unwrap_or(&none);
            let differs = !only(alone, behind).is_empty() || !only(behind, alone).is_empty();
            let word = if differs {
                summary(behind)
            } else {
                "same".to_owned()
            };
            print!("{way}: {word:12}  ");
            for check in only(behind, alone) {
                let place = format!("{name}:{}", check.id);
                let allowed = [name, &place]
                    .into_iter()
                    .find(|one| expected.contains(*one));
                let is_well = !matches!(check.status.as_str(), "FAILURE" | "WARNING");
                match allowed.filter(|_| is_well) {
                    Some(one) => {
                        seen.insert(one.clone());
                    }
                    None => wrong.push(format!(
                        "{place} through the proxy ({way}): {} {}",
                        check.status, check.why
                    )),
                }
            }
            for check in only(alone, behind) {
                let place = format!("{name}:{}", check.id);
                if !expected.contains(name) && !expected.contains(&place) {
                    wrong.push(format!("{place} direct, not {way}: {}", check.status));
                }
            }
        }
        println!();
    }
    for stale in expected.difference(&seen) {
        let scenario = stale.split(':').next().unwrap_or_default();
        if direct.0.contains_key(scenario) {
            wrong.push(format!("{stale} is expected to differ and does not"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{server} {revision}:\n{}",
        wrong.join("\n")
    );
}

/// The checks of one side that the other does not have, each as often as it is missing.
fn only<'a>(one: &'a [Check], other: &[Check]) -> Vec<&'a Check> {
    let mut left: Vec<&Check> = other.iter().collect();
    let mut only = Vec::new();
    for check in one {
        let same = |kept: &&Check| kept.id == check.id && kept.status == check.status;
        match left.iter().position(same) {
            Some(at) => drop(left.swap_remove(at)),
            None => only.push(check),
        }
    }
    only
}

/// The scenarios, or `scenario:check`, that differ for this server.
fn expected(server: &str) -> BTreeSet<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("conformance/expected-differences-of-the-proxy.yml");
    let text = fs::read_to_string(file).unwrap();
    let section = format!("{server}:");
    let mut lines = text.lines();
    lines
        .find(|line| *line == section)
        .expect("a section for each server");
    let lines = lines.take_while(|line| line.starts_with(' '));
    let entries = lines.filter_map(|line| line.trim().strip_prefix("- "));
    entries.map(str::to_owned).collect()
}
