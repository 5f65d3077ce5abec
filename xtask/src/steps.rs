//! A list of steps, run in order: each says its name and how long it took; the first that fails
//! ends the list.

use std::time::{Duration, Instant};

/// The steps that were run.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<(&'static str, Duration)>,
    failed: Option<(&'static str, String)>,
}

impl Steps {
    /// Runs one step, unless an earlier one failed.
    pub(crate) fn step(&mut self, name: &'static str, body: impl FnOnce() -> Result<(), String>) {
        if self.failed.is_some() {
            return;
        }
        println!("\n== {name}");
        let started = Instant::now();
        let result = body();
        let took = started.elapsed();
        self.done.push((name, took));
        match result {
            Ok(()) => println!("== {name}: {:.1} s", took.as_secs_f64()),
            Err(why) => {
                println!("== {name}: FAILED after {:.1} s\n{why}", took.as_secs_f64());
                self.failed = Some((name, why));
            }
        }
    }

    /// Prints the summary. True if every step passed.
    pub(crate) fn summary(self) -> bool {
        println!("\n== summary");
        for (name, took) in &self.done {
            let failed = self.failed.as_ref().is_some_and(|(at, _)| at == name);
            let word = if failed { "FAILED" } else { "ok" };
            println!("{:>8.1} s  {word:<6}  {name}", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, took)| *took).sum();
        match &self.failed {
            None => println!(
                "{:>8.1} s  all {} steps passed",
                total.as_secs_f64(),
                self.done.len()
            ),
            Some((name, why)) => println!("stopped at `{name}`: {why}"),
        }
        self.failed.is_none()
    }
}
