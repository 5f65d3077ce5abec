use crate::{
    Error,
    child::Server,
    keys::{Kind, Series},
    load::{Expected, Keys, Load, Pick},
    parts::{Bench, megabytes},
    report::{Figure, Report, in_turn},
    request::Request,
};

/// Receipts of the hot set: far fewer than the memory of finished receipts holds.
const HOT: u64 = 1000;
const CREATED: Expected = Expected {
    status: 201,
    holds: None,
    lacks: Some("idempotent-replayed"),
};
const REPLAYED: Expected = Expected {
    status: 201,
    holds: Some("idempotent-replayed: true"),
    lacks: None,
};

/// A bare echo, a transaction for each request, the guarded layer and the real application, all
/// with the same request.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    let data = |name| bench.new_folder(name);
    let echo = Server::of_bench("echo", &data("echo")?)?;
    let transaction = Server::of_bench("transaction", &data("transaction")?)?;
    let one_connection = Server::of_bench("one-connection", &data("one-connection")?)?;
    let guarded = Server::of_bench("guarded", &data("guarded")?)?;
    let product = bench.product(&data("rest")?)?;

    let request = Request::note(&product.credential);
    let bytes = request.bytes.len();
    println!("\nREST: one request of {bytes} bytes for all, 64 connections");
    let load = |name: &str, server: &Server, keys: &Keys, pick: Pick, expected: Expected| Load {
        name: name.to_owned(),
        addresses: vec![server.address],
        request: request.clone(),
        keys: keys.clone(),
        pick,
        expected,
    };
    let keys = |kind| Series::new(kind).map(Keys::new);
    let first =
        |name: &str, server: &Server, keys: &Keys| load(name, server, keys, Pick::New, CREATED);

    let of_guarded = keys(Kind::TimeOrdered)?;
    let of_product = keys(Kind::TimeOrdered)?;
    let firsts = [
        first("bare echo", &echo, &keys(Kind::Random)?),
        first(
            "a transaction per request",
            &transaction,
            &keys(Kind::TimeOrdered)?,
        ),
        first(
            "a transaction per request, one connection",
            &one_connection,
            &keys(Kind::TimeOrdered)?,
        ),
        first(
            "guarded route, first calls, UUIDv7 keys",
            &guarded,
            &of_guarded,
        ),
        first(
            "guarded route, first calls, random keys",
            &guarded,
            &keys(Kind::Random)?,
        ),
        first(
            "application, first calls, UUIDv7 keys",
            &product.server,
            &of_product,
        ),
        first(
            "application, first calls, random keys",
            &product.server,
            &keys(Kind::Random)?,
        ),
    ];
    let firsts = in_turn(&firsts, &bench.scale)?;
    for figure in &firsts {
        report.figure(figure);
    }
    judge_first_calls(&firsts, report);

    let made = of_product
        .used()
        .saturating_sub(crate::load::CONNECTIONS as u64);
    let replay = |name: &str, server: &Server, keys: &Keys, count| {
        load(name, server, &keys.again(), Pick::Again(count), REPLAYED)
    };
    let replays = [
        first("bare echo, beside the replays", &echo, &keys(Kind::Random)?),
        replay(
            "application, replays of 1,000 receipts",
            &product.server,
            &of_product,
            HOT.min(made),
        ),
        replay(
            &format!("application, replays all over {made} receipts"),
            &product.server,
            &of_product,
            made,
        ),
        replay(
            "guarded route, replays of 1,000 receipts",
            &guarded,
            &of_guarded,
            HOT,
        ),
    ];
    let replays = in_turn(&replays, &bench.scale)?;
    for figure in &replays {
        report.figure(figure);
    }
    judge_replays(&replays, report);
    let resident = product.server.resident()?;
    report.quantity(
        "application, resident after this, at most",
        megabytes(resident.peak),
        "MB",
    );
    Ok(())
}

fn judge_first_calls(figures: &[Figure], report: &mut Report) {
    let [echo, transaction, one, guarded, guarded_random, ..] = figures else {
        return;
    };
    let times = |figure: &Figure, base: &Figure| figure.per_second / base.per_second;
    report.quantity(
        "guarded first calls, UUIDv7, against one connection",
        times(guarded, one),
        "times",
    );
    for (figure, kind) in [(guarded, Kind::TimeOrdered), (guarded_random, Kind::Random)] {
        let kind = kind.name();
        report.at_least(
            &format!("first calls, two commits, {kind} / transaction per request"),
            8.0,
            times(figure, transaction),
            true,
        );
        report.at_least(
            &format!("first calls, two commits, {kind} / bare echo"),
            0.30,
            times(figure, echo),
            true,
        );
        report.at_most(
            &format!("first calls, two commits, {kind}, p99 (ms)"),
            10.0,
            figure.p99_ms,
            true,
        );
    }
}

fn judge_replays(figures: &[Figure], report: &mut Report) {
    let [echo, hot, cold, guarded] = figures else {
        return;
    };
    for (figure, name) in [
        (hot, "replays, hot / bare echo"),
        (cold, "replays, all over / bare echo"),
        (guarded, "replays through the layer alone, hot / bare echo"),
    ] {
        report.at_least(name, 0.70, figure.per_second / echo.per_second, true);
    }
}
