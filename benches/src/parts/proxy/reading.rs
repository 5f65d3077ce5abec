use crate::{
    Error,
    child::Server,
    parts::{Bench, proxy},
    piped::{Call, Peer},
    report::{Figure, Report, Run, alternating},
};

use super::others::{self, Fronted};

/// Calls in flight.
const IN_FLIGHT: [usize; 3] = [1, 8, 64];
/// How many the other proxies are compared at.
const MANY: usize = 64;

/// Calls of a tool that says it only reads: they pass, nothing is kept of them.
pub(super) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    let (mut direct, _) = proxy::direct(bench)?;
    let (mut through, _) = proxy::proxied(bench, "proxy reading")?;
    for in_flight in IN_FLIGHT {
        let figures = alternating(
            &mut [
                reading("direct", &mut direct, in_flight, bench),
                reading("through the proxy", &mut through, in_flight, bench),
            ],
            &bench.scale,
        )?;
        for figure in &figures {
            report.figure(figure);
        }
        if let [direct, through] = figures.as_slice() {
            report.at_least(
                &format!("proxy, reading, {in_flight} in flight / direct"),
                0.80,
                through.per_second / direct.per_second,
                true,
            );
        }
    }
    drop(direct);
    against_others(bench, through, report)
}

fn reading<'a>(name: &str, peer: &'a mut Peer, in_flight: usize, bench: &'a Bench) -> Run<'a> {
    Run::new(
        format!("reading, {name}, {in_flight} in flight"),
        move || proxy::round(peer, Call::Reading, in_flight, bench),
    )
}

/// None of the others goes from pipes to pipes: each is measured on the ways it has, beside ours on
/// the same way, and beside ours from pipes to pipes.
fn against_others(bench: &Bench, mut through: Peer, report: &mut Report) -> Result<(), Error> {
    let python = others::python(bench);
    let node = others::node(bench);
    let upstream = Server::of_bench("upstream", &bench.folder)?;
    let url = format!("http://{}/mcp", upstream.address);
    let server = proxy::server(bench)?;

    let mut to_http = proxy::proxy(bench, "proxy to http")?;
    to_http.args(["--url", &url]);
    let (mut to_http, _) = proxy::start(bench, "proxy to http", to_http)?;
    let mut of_http = proxy::proxy(bench, "proxy of http")?;
    let address = others::free_address()?;
    of_http.args(["--listen", &address.to_string(), "--"]);
    of_http.args(&server);
    let of_http = Fronted::start("counterfoil", of_http, address, bench)?;

    let mut python_to_http = None;
    let mut python_of_http = None;
    if let Some(python) = &python {
        python_to_http = Some(proxy::start(bench, "PyPI mcp-proxy", python.to_http(&url))?);
        let address = others::free_address()?;
        let command = python.of_http(address, &server);
        python_of_http = Some(Fronted::start("PyPI mcp-proxy", command, address, bench)?);
    }
    let mut node_of_http = None;
    if let Some(node) = &node {
        let address = others::free_address()?;
        let command = node.of_http(address, &server);
        node_of_http = Some(Fronted::start("npm mcp-proxy", command, address, bench)?);
    }

    let mut runs = vec![
        reading("pipes to pipes, ours", &mut through, MANY, bench),
        reading("pipes to HTTP, ours", &mut to_http, MANY, bench),
        of_http.reading("HTTP to pipes, ours", bench)?,
    ];
    let mut foreign = Vec::new();
    if let Some((peer, _)) = &mut python_to_http {
        foreign.push(("PyPI mcp-proxy, pipes to HTTP", 1));
        runs.push(reading("pipes to HTTP, PyPI mcp-proxy", peer, MANY, bench));
    }
    if let Some(fronted) = &python_of_http {
        foreign.push(("PyPI mcp-proxy, HTTP to pipes", 2));
        runs.push(fronted.reading("HTTP to pipes, PyPI mcp-proxy", bench)?);
    }
    if let Some(fronted) = &node_of_http {
        foreign.push(("npm mcp-proxy, HTTP to pipes", 2));
        runs.push(fronted.reading("HTTP to pipes, npm mcp-proxy", bench)?);
    }
    let figures = alternating(&mut runs, &bench.scale)?;
    for figure in &figures {
        report.figure(figure);
    }
    let ours = |index: usize| figures.get(index).map_or(0.0, |figure| figure.per_second);
    for ((name, same_way), theirs) in foreign.iter().zip(figures.iter().skip(3)) {
        judge(report, name, theirs, ours(0), ours(*same_way));
    }
    Ok(())
}

fn judge(report: &mut Report, name: &str, theirs: &Figure, piped: f64, same_way: f64) {
    report.at_least(
        &format!("proxy, reading, pipes to pipes / {name}"),
        5.0,
        piped / theirs.per_second,
        true,
    );
    report.at_least(
        &format!("proxy, reading, the same way / {name}"),
        5.0,
        same_way / theirs.per_second,
        true,
    );
}
