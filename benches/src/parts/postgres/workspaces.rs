use counterfoil_test_postgres::Database;

use crate::{
    Error,
    callers::{CALLERS, Commits},
    keys::{Kind, Series},
    parts::{Bench, growth::runtime},
    report::{Figure, Report},
};

const MANY: usize = 1000;

/// Everybody in one workspace, and everybody in another of a thousand.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    runtime()?.block_on(async {
        let database = Database::new();
        super::introduce(&database)?;
        println!("\nPostgreSQL, workspaces, {CALLERS} callers");
        let mut loads = Vec::new();
        for commits in [Commits::Two, Commits::One] {
            for workspaces in [1, MANY] {
                let series = Series::new(Kind::TimeOrdered)?;
                let callers = super::callers(bench, &database, series, workspaces).await?;
                // The first call of each workspace is another matter.
                callers.fill(commits, 2 * MANY as u64).await?;
                loads.push((commits, workspaces, callers, Vec::new()));
            }
        }
        for _ in 0..bench.scale.rounds {
            for (commits, _, callers, rounds) in &mut loads {
                rounds.push(callers.run(*commits, CALLERS, bench.scale.until()).await?);
            }
        }
        let mut rates = Vec::new();
        for (commits, workspaces, _, rounds) in &loads {
            let figure = Figure::new(
                format!("{}, workspaces: {workspaces}", commits.name()),
                rounds,
            )?;
            report.figure(&figure);
            rates.push(figure.per_second);
        }
        if let [one, many, atomic_one, atomic_many] = rates.as_slice() {
            report.at_least(
                "PostgreSQL, receipts: one workspace / 1,000 workspaces",
                0.90,
                one / many,
                true,
            );
            report.quantity(
                "atomic handlers: one workspace against 1,000",
                atomic_one / atomic_many,
                "times",
            );
        }
        Ok(())
    })
}
