use counterfoil_test_postgres::Database;

use crate::{
    Error,
    callers::{CALLERS, Callers, Commits},
    keys::{Kind, Series},
    load::Round,
    parts::{Bench, growth::runtime},
    plain::Plain,
    processor::Rounds,
    report::{Figure, Report},
};

/// Connections of the plain table.
const CONNECTIONS: usize = 16;
/// Callers of the second figure.
const MANY: usize = 256;

/// One kind of keys: the plain table and the store, each with a database of its own.
struct Side {
    kind: Kind,
    plain: Plain,
    rounds_of_plain: Vec<Round>,
    cores_of_plain: Rounds,
    callers: Callers,
    loads: [Load; 2],
    // Dropped last, with whoever is connected.
    databases: [Database; 2],
}

#[derive(Default)]
struct Load {
    callers: usize,
    rounds: Vec<Round>,
    cores: Rounds,
    calls: u64,
    transactions: u64,
}

/// First calls with two durable commits each, against one plain row with one.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    runtime()?.block_on(async {
        let mut sides = Vec::new();
        for kind in [Kind::TimeOrdered, Kind::Random] {
            sides.push(side(bench, kind).await?);
        }
        let postmaster = match sides.as_slice() {
            [side, ..] => super::postmaster(&side.databases[0])?,
            [] => return Err(Error::Form("the kinds of keys")),
        };
        println!("\nPostgreSQL, first calls");
        for _ in 0..bench.scale.rounds {
            for side in &mut sides {
                let watch = super::watch(postmaster)?;
                let plain = side.plain.insert(bench.scale.until()).await?;
                side.rounds_of_plain.push(plain);
                side.cores_of_plain.add(watch.shares()?);
                for load in &mut side.loads {
                    let before = super::transactions(&side.databases[0])?;
                    let used = side.callers.used();
                    let callers = &side.callers;
                    let watch = super::watch(postmaster)?;
                    let round = callers.run(Commits::Two, load.callers, bench.scale.until());
                    load.rounds.push(round.await?);
                    load.cores.add(watch.shares()?);
                    load.calls += callers.used() - used;
                    load.transactions += super::transactions(&side.databases[0])? - before;
                }
            }
        }
        for side in &sides {
            judge(side, report)?;
        }
        Ok(())
    })
}

async fn side(bench: &Bench, kind: Kind) -> Result<Side, Error> {
    let databases = [Database::new(), Database::new()];
    super::introduce(&databases[0])?;
    Ok(Side {
        kind,
        callers: super::callers(bench, &databases[0], Series::new(kind)?, 1).await?,
        plain: Plain::open(databases[1].url(), CONNECTIONS, Series::new(kind)?).await?,
        rounds_of_plain: Vec::new(),
        cores_of_plain: Rounds::default(),
        loads: [CALLERS, MANY].map(|callers| Load {
            callers,
            ..Load::default()
        }),
        databases,
    })
}

fn judge(side: &Side, report: &mut Report) -> Result<(), Error> {
    let keys = side.kind.name();
    let name = format!("INSERT ... ON CONFLICT, {CONNECTIONS} connections, {keys}");
    let plain = Figure::new(name, &side.rounds_of_plain)?;
    report.figure(&plain);
    side.cores_of_plain.tell(report, &plain);
    for load in &side.loads {
        let callers = load.callers;
        let name = format!("first calls, {callers} callers, {keys}");
        let figure = Figure::new(name, &load.rounds)?;
        report.figure(&figure);
        load.cores.tell(report, &figure);
        #[allow(clippy::cast_precision_loss, reason = "a figure for reading")]
        let steps = 2.0 * load.calls as f64 / load.transactions.max(1) as f64;
        report.quantity("  steps in one transaction", steps, "on average");
        report.at_least(
            &format!("PostgreSQL, first calls, {callers} callers, {keys} / INSERT"),
            2.0,
            figure.per_second / plain.per_second,
            true,
        );
    }
    Ok(())
}
