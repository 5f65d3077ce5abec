use std::path::Path;

use tokio::runtime::Runtime;

use crate::{
    Error,
    callers::{Callers, Commits},
    keys::{Kind, Series},
    load::{Expected, Keys, Load, Pick, Until},
    parts::{Bench, database_in, megabytes},
    report::{Figure, Report, in_turn},
    request::Request,
    scale::Scale,
};

/// First calls on a small and on a large database, and the memory of the release binary on the
/// large one.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    let full_size = bench.scale.large >= Scale::full().large;
    for kind in [Kind::TimeOrdered, Kind::Random] {
        let name = kind.name();
        println!("\nGrowth, {name}");
        // The release binary makes the database, so that it can be served afterwards.
        let data = bench.new_folder(&format!("large-{kind:?}"))?;
        drop(bench.product(&data)?);
        let large = database_in(&data)?;
        let small = bench.new_folder(&format!("small-{kind:?}"))?;
        for (commits, ratio) in grow(bench, report, kind, &small, &large)? {
            report.at_least(
                &format!("{}, {name}: large / small", commits.name()),
                0.80,
                ratio,
                full_size,
            );
        }
        if kind == Kind::Random {
            memory(bench, report, &data, full_size)?;
        }
        std::fs::remove_dir_all(&data).map_err(Error::io("removing a folder"))?;
    }
    Ok(())
}

/// The rates at both sizes, for each kind of call: large by small.
fn grow(
    bench: &Bench,
    report: &mut Report,
    kind: Kind,
    folder: &Path,
    large: &Path,
) -> Result<Vec<(Commits, f64)>, Error> {
    let scale = &bench.scale;
    runtime()?.block_on(async {
        let large_callers = filled(report, kind, large, scale.large).await?;
        let mut ratios = Vec::new();
        for commits in [Commits::Two, Commits::One] {
            // A new one each time, because the calls themselves make it grow.
            let small = folder.join(format!("{commits:?}.db"));
            let stores = [
                (
                    scale.small,
                    filled(report, kind, &small, scale.small).await?,
                ),
                (scale.large, large_callers.clone()),
            ];
            let mut rounds = [Vec::new(), Vec::new()];
            for _ in 0..scale.rounds {
                for ((_, callers), rounds) in stores.iter().zip(&mut rounds) {
                    rounds.push(callers.more(commits, scale.growth_calls).await?);
                }
            }
            let mut rates = Vec::new();
            for ((receipts, _), rounds) in stores.iter().zip(&rounds) {
                let name = format!("{} at {receipts} receipts", commits.name());
                let figure = Figure::new(name, rounds)?;
                report.figure(&figure);
                rates.push(figure.per_second);
            }
            if let [small, large] = rates.as_slice() {
                ratios.push((commits, large / small));
            }
        }
        let bytes = std::fs::metadata(large).map_err(Error::io("the large database"))?;
        report.quantity("the large database", megabytes(bytes.len()), "MB");
        Ok(ratios)
    })
}

async fn filled(
    report: &mut Report,
    kind: Kind,
    path: &Path,
    receipts: u64,
) -> Result<Callers, Error> {
    let callers = Callers::open(path, Series::new(kind)?).await?;
    let round = callers.fill(Commits::One, receipts).await?;
    let name = format!("filling up to {receipts} receipts, 256 callers");
    report.quantity(name, round.per_second, "calls/s");
    Ok(callers)
}

/// The release binary under a mixed load on the large database.
fn memory(bench: &Bench, report: &mut Report, data: &Path, full_size: bool) -> Result<(), Error> {
    let product = bench.product(data)?;
    report.quantity(
        "a start on the large database, until /readyz",
        product.ready_after.as_secs_f64() * 1000.0,
        "ms",
    );
    let keys = Keys::new(Series::new(Kind::Random)?);
    let request = Request::note(&product.credential);
    let load = |name: &str, keys: &Keys, pick, expected| Load {
        name: name.to_owned(),
        addresses: vec![product.server.address],
        request: request.clone(),
        keys: keys.clone(),
        pick,
        expected,
    };
    let expected = |holds, lacks| Expected {
        status: 201,
        holds,
        lacks,
    };
    let first = load(
        "application, first calls, random keys, large database",
        &keys,
        Pick::New,
        expected(None, Some("idempotent-replayed")),
    );
    let made = bench.scale.growth_calls;
    first.run(Until::Used(made))?;
    let replays = load(
        "application, replays, large database",
        &keys.again(),
        Pick::Again(made),
        expected(Some("idempotent-replayed: true"), None),
    );
    for figure in in_turn(&[first, replays], &bench.scale)? {
        report.figure(&figure);
    }
    let resident = product.server.resident()?;
    report.quantity(
        "resident under this load, at most",
        megabytes(resident.peak),
        "MB",
    );
    report.quantity("resident after this load", megabytes(resident.now), "MB");
    report.at_most(
        "resident memory under load, large database (MB)",
        150.0,
        megabytes(resident.peak),
        full_size,
    );
    Ok(())
}

/// For callers inside this process.
pub(crate) fn runtime() -> Result<Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::io("the callers' runtime"))
}
