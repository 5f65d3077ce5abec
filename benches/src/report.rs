//! What the bench prints, and the line of JSON it leaves.

use std::{fs::OpenOptions, io::Write as _, path::Path};

use serde::Serialize;

use crate::{
    Error,
    load::{Load, Round},
    scale::Scale,
};

/// One figure: its rounds, and the median of them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) name: String,
    /// Calls per second, the median of the rounds.
    pub(crate) per_second: f64,
    /// The lowest and the highest round.
    pub(crate) range: (f64, f64),
    /// The median of the rounds' medians, in milliseconds.
    pub(crate) p50_ms: f64,
    /// The median of the rounds' 99th percentiles, in milliseconds.
    pub(crate) p99_ms: f64,
}

impl Figure {
    /// From its rounds.
    pub(crate) fn new(name: impl Into<String>, rounds: &[Round]) -> Result<Self, Error> {
        let name = name.into();
        let rates = rounds.iter().map(|round| round.per_second);
        let (Some(per_second), Some(p50_us), Some(p99_us)) = (
            median(rates.clone()),
            median(rounds.iter().map(|round| f64::from(round.p50_us))),
            median(rounds.iter().map(|round| f64::from(round.p99_us))),
        ) else {
            return Err(Error::Silent(name));
        };
        Ok(Self {
            name,
            per_second,
            range: (
                rates.clone().fold(f64::INFINITY, f64::min),
                rates.fold(0.0, f64::max),
            ),
            p50_ms: p50_us / 1000.0,
            p99_ms: p99_us / 1000.0,
        })
    }
}

/// Another quantity.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Quantity {
    /// What was measured.
    pub(crate) name: String,
    /// How much.
    pub(crate) value: f64,
    /// Of what.
    pub(crate) unit: &'static str,
}

/// A target and what came out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Target {
    /// What is wanted, in words.
    pub(crate) name: String,
    /// The bound.
    pub(crate) bound: f64,
    /// What was measured.
    pub(crate) measured: f64,
    /// Whether it is within the bound.
    pub(crate) met: bool,
    /// Whether it was measured at the size the target is about.
    pub(crate) full_size: bool,
}

/// Everything of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Seconds since the Unix epoch.
    pub(crate) at: u64,
    /// Cores of the machine.
    pub(crate) cores: usize,
    /// A quick run: the sizes are not those of the targets.
    pub(crate) quick: bool,
    /// Rates and latencies.
    pub(crate) figures: Vec<Figure>,
    /// Memory, times, batch sizes, ratios.
    pub(crate) quantities: Vec<Quantity>,
    /// The targets.
    pub(crate) targets: Vec<Target>,
    /// How long the run took, in seconds.
    pub(crate) seconds: f64,
}

impl Report {
    /// Adds a figure, and says it.
    pub(crate) fn figure(&mut self, figure: &Figure) {
        println!(
            "{:<58} {:>9.0}/s  ({:.0} to {:.0})  p50 {:.2} ms  p99 {:.2} ms",
            figure.name,
            figure.per_second,
            figure.range.0,
            figure.range.1,
            figure.p50_ms,
            figure.p99_ms
        );
        self.figures.push(figure.clone());
    }

    /// Adds a quantity, and says it.
    pub(crate) fn quantity(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let name = name.into();
        println!("{name:<58} {value:>9.1} {unit}");
        self.quantities.push(Quantity { name, value, unit });
    }

    /// Adds a target that wants at least `bound`.
    pub(crate) fn at_least(&mut self, name: &str, bound: f64, measured: f64, full_size: bool) {
        self.target(name, bound, measured, measured >= bound, full_size);
    }

    /// Adds a target that wants at most `bound`.
    pub(crate) fn at_most(&mut self, name: &str, bound: f64, measured: f64, full_size: bool) {
        self.target(name, bound, measured, measured <= bound, full_size);
    }

    fn target(&mut self, name: &str, bound: f64, measured: f64, met: bool, full_size: bool) {
        self.targets.push(Target {
            name: name.to_owned(),
            bound,
            measured,
            met,
            full_size,
        });
    }

    /// Prints the targets.
    pub(crate) fn print_targets(&self) {
        println!("\n{:<62} {:>8} {:>9}", "target", "wanted", "measured");
        for target in &self.targets {
            let verdict = match (target.met, target.full_size) {
                (true, true) => "met",
                (false, true) => "NOT MET",
                (true, false) => "met, at a smaller size",
                (false, false) => "NOT MET, at a smaller size",
            };
            println!(
                "{:<62} {:>8.2} {:>9.2}  {verdict}",
                target.name, target.bound, target.measured
            );
        }
    }

    /// Appends the run as one line.
    pub(crate) fn append_to(&self, path: &Path) -> Result<(), Error> {
        let line = serde_json::to_string(self).map_err(|_| Error::Form("the report"))?;
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(Error::io("opening the report"))?;
        writeln!(file, "{line}").map_err(Error::io("writing the report"))
    }
}

/// Measures several loads in turn, round by round, so that a drift of the machine hits all alike.
pub(crate) fn in_turn(loads: &[Load], scale: &Scale) -> Result<Vec<Figure>, Error> {
    let mut runs: Vec<Run<'_>> = loads
        .iter()
        .map(|load| Run::new(load.name.clone(), || load.run(scale.until())))
        .collect();
    alternating(&mut runs, scale)
}

/// One of the things that are measured in turn.
pub(crate) struct Run<'a> {
    name: String,
    round: Box<dyn FnMut() -> Result<Round, Error> + 'a>,
}

impl<'a> Run<'a> {
    /// What the report calls it, and how a round of it is made.
    pub(crate) fn new(
        name: impl Into<String>,
        round: impl FnMut() -> Result<Round, Error> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            round: Box::new(round),
        }
    }
}

/// As [`in_turn`], for anything that has rounds.
pub(crate) fn alternating(runs: &mut [Run<'_>], scale: &Scale) -> Result<Vec<Figure>, Error> {
    let mut rounds = vec![Vec::new(); runs.len()];
    for _ in 0..scale.rounds {
        for (run, rounds) in runs.iter_mut().zip(&mut rounds) {
            rounds.push((run.round)()?);
        }
    }
    runs.iter()
        .zip(&rounds)
        .map(|(run, rounds)| Figure::new(run.name.clone(), rounds))
        .collect()
}

/// The middle one, the lower of two.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    values.get(middle).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(1.0));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn targets_are_judged_as_they_are_meant() {
        let mut report = Report::default();
        report.at_least("rate", 0.7, 0.69, true);
        report.at_most("memory", 150.0, 149.0, true);
        let met: Vec<bool> = report.targets.iter().map(|target| target.met).collect();
        assert_eq!(met, [false, true]);
    }
}
