use counterfoil_test_postgres::Database;

use crate::{
    Error,
    callers::{Callers, Commits},
    keys::{Kind, Series},
    parts::{Bench, growth::runtime, megabytes},
    report::{Figure, Report},
    scale::Scale,
};

/// First calls on a small and on a large database.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    let scale = &bench.scale;
    for kind in [Kind::TimeOrdered, Kind::Random] {
        let keys = kind.name();
        let rates = runtime()?.block_on(async {
            let databases = [Database::new(), Database::new()];
            super::introduce(&databases[0])?;
            println!("\nPostgreSQL, growth, {keys}");
            let mut sizes = Vec::new();
            for (database, receipts) in databases.iter().zip([scale.small, scale.large]) {
                let callers = filled(bench, report, database, kind, receipts).await?;
                sizes.push((receipts, callers, Vec::new()));
            }
            for _ in 0..scale.rounds {
                for (_, callers, rounds) in &mut sizes {
                    rounds.push(callers.more(Commits::Two, scale.growth_calls).await?);
                }
            }
            let mut rates = Vec::new();
            for (receipts, _, rounds) in &sizes {
                let name = format!("{} at {receipts} receipts", Commits::Two.name());
                let figure = Figure::new(name, rounds)?;
                report.figure(&figure);
                rates.push(figure.per_second);
            }
            Ok::<_, Error>(rates)
        })?;
        if let [small, large] = rates.as_slice() {
            report.at_least(
                &format!("PostgreSQL, first calls, {keys}: large / small"),
                0.80,
                large / small,
                scale.large >= Scale::full().large,
            );
        }
    }
    Ok(())
}

/// Callers of a database with so many receipts, as real calls leave them.
async fn filled(
    bench: &Bench,
    report: &mut Report,
    database: &Database,
    kind: Kind,
    receipts: u64,
) -> Result<Callers, Error> {
    let callers = super::callers(bench, database, Series::new(kind)?, 1).await?;
    let round = callers.fill(Commits::Two, receipts).await?;
    let name = format!("filling up to {receipts} receipts, 256 callers");
    report.quantity(name, round.per_second, "calls/s");
    super::settle(database)?;
    let bytes = database.try_psql("SELECT pg_database_size(current_database())")?;
    let bytes = bytes.parse().map_err(|_| Error::Form("a size"))?;
    let name = format!("the database with {receipts} receipts");
    report.quantity(name, megabytes(bytes), "MB");
    Ok(callers)
}
