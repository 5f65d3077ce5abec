use crate::{
    Error,
    child::Server,
    keys::{Kind, Series},
    load::{Expected, Keys, Load, Pick},
    parts::Bench,
    report::{Report, in_turn},
    request::{Era, Request},
};

const CALLED: Expected = Expected {
    status: 200,
    holds: Some("note_id"),
    lacks: Some("replayed\":true"),
};
const REPLAYED: Expected = Expected {
    status: 200,
    holds: Some("replayed\":true"),
    lacks: None,
};
const HOT: u64 = 1000;

/// A bare server of the Rust SDK against our endpoint, with the same tool call.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    let bare = Server::of_bench("tool", &bench.new_folder("tool")?)?;
    let product = bench.product(&bench.new_folder("mcp")?)?;
    for (era, version) in [
        (Era::Handshake, "2025-11-25"),
        (Era::Stateless, "2026-07-28"),
    ] {
        let request = Request::tool(&product.credential, era);
        println!(
            "\nMCP {version}: one tool call of {} bytes",
            request.bytes.len()
        );
        let load = |name: &str, server: &Server, keys: &Keys, pick, expected| Load {
            name: format!("{name}, {version}"),
            addresses: vec![server.address],
            request: request.clone(),
            keys: keys.clone(),
            pick,
            expected,
        };
        let keys = Keys::new(Series::new(Kind::TimeOrdered)?);
        let of_bare = Keys::new(Series::new(Kind::TimeOrdered)?);
        let first = load(
            "our endpoint, first calls",
            &product.server,
            &keys,
            Pick::New,
            CALLED,
        );
        // So that there is something to replay in the first round.
        first.run(crate::load::Until::Used(HOT))?;
        let again = keys.again();
        let figures = in_turn(
            &[
                load(
                    "bare server, nothing stored",
                    &bare,
                    &of_bare,
                    Pick::New,
                    CALLED,
                ),
                first,
                load(
                    "our endpoint, replays",
                    &product.server,
                    &again,
                    Pick::Again(HOT),
                    REPLAYED,
                ),
            ],
            &bench.scale,
        )?;
        for figure in &figures {
            report.figure(figure);
        }
        if let [bare, first, replays] = figures.as_slice() {
            for (figure, name) in [(first, "first calls"), (replays, "replays")] {
                report.at_least(
                    &format!("MCP {version}, {name} / bare server without receipts"),
                    0.80,
                    figure.per_second / bare.per_second,
                    true,
                );
            }
        }
    }
    Ok(())
}
