use counterfoil_test_postgres::Database;

use crate::{
    Error,
    callers::{CALLERS, Commits},
    keys::{Kind, Series},
    parts::{Bench, growth::runtime},
    plain::Plain,
    report::{Figure, Report},
};

/// Look-ups of finished receipts with their results, against a bare look-up of the same body.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    let rows = bench.scale.small;
    let readers = bench.postgres.readers;
    runtime()?.block_on(async {
        let series = Series::new(Kind::TimeOrdered)?;
        let databases = [Database::new(), Database::new()];
        super::introduce(&databases[0])?;
        println!("\nPostgreSQL, replays of {rows} receipts, {CALLERS} callers");
        let callers = super::callers(bench, &databases[0], series, 1).await?;
        callers.fill(Commits::Two, rows).await?;
        let plain = Plain::open(databases[1].url(), readers, series).await?;
        let plain_on_more = Plain::open(databases[1].url(), 16, series).await?;
        plain.fill(rows).await?;
        databases.iter().try_for_each(super::settle)?;
        let mut rounds = [const { Vec::new() }; 3];
        for _ in 0..bench.scale.rounds {
            let until = bench.scale.until();
            rounds[0].push(plain.look(rows, CALLERS, until).await?);
            rounds[1].push(plain_on_more.look(rows, CALLERS, until).await?);
            rounds[2].push(callers.find(rows, CALLERS, until).await?);
        }
        let figures = [
            format!("SELECT ... WHERE key = $1, {readers} connections"),
            "SELECT ... WHERE key = $1, 16 connections".to_owned(),
            format!("replays from the store, {readers} connections"),
        ];
        let mut rates = Vec::new();
        for (name, rounds) in figures.into_iter().zip(&rounds) {
            let figure = Figure::new(name, rounds)?;
            report.figure(&figure);
            rates.push(figure.per_second);
        }
        if let [plain, _, replays] = rates.as_slice() {
            report.at_least(
                "PostgreSQL, replays / bare look-up on as many connections",
                0.70,
                replays / plain,
                true,
            );
        }
        Ok(())
    })
}
