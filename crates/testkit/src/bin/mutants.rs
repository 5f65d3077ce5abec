//! Runs the planted mutants of the folder `mutants/`: `mutants [WORD...]` runs those whose name
//! holds one of the words, all without any.
#![allow(
    clippy::disallowed_methods,
    reason = "a development tool: it reads the environment as a binary does"
)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use counterfoil_testkit::mutants::{Bench, Error, Mutant, Verdict, read_all};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether every mutant was caught.
fn run(words: &[String]) -> Result<bool, Error> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).unwrap_or(here);
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut mutants = read_all(&root.join("mutants"))?;
    mutants.retain(|mutant| words.is_empty() || words.iter().any(|w| mutant.name.contains(w)));
    let bench = Bench::new(root, &target.join("mutants"))?;
    let mut without: HashMap<_, Option<String>> = HashMap::new();
    let mut all = !mutants.is_empty();
    for mutant in &mutants {
        let test = (mutant.test.clone(), mutant.histories);
        let broken = match without.get(&test) {
            Some(broken) => broken.clone(),
            None => {
                let broken = bench.baseline(mutant)?;
                without.insert(test, broken.clone());
                broken
            }
        };
        let verdict = match broken {
            Some(why) => Verdict::Unproven(why),
            None => bench.try_mutant(mutant)?,
        };
        all &= verdict == Verdict::Caught;
        report(mutant, &verdict);
    }
    Ok(all)
}

fn report(mutant: &Mutant, verdict: &Verdict) {
    let (word, why) = match verdict {
        Verdict::Caught => ("caught", ""),
        Verdict::Survived => ("SURVIVED", ""),
        Verdict::Unproven(why) => ("UNPROVEN", why.as_str()),
    };
    let Mutant {
        name, invariant, ..
    } = mutant;
    println!("{word:<9} {invariant:<3} {name}");
    if !why.is_empty() {
        println!("          {why}");
    }
}
