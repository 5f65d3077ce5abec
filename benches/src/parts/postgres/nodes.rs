use counterfoil_test_postgres::Database;

use crate::{
    Error,
    keys::{Kind, Series},
    load::{Expected, Keys, Load, Pick, Round, Until},
    parts::{Bench, Product},
    processor::{Rounds, Watch, Whose},
    report::{Figure, Report},
    request::Request,
};

/// Nodes of the larger cluster.
const NODES: usize = 3;
/// Receipts that are replayed: far fewer than a node's memory of finished receipts holds.
const HOT: u64 = 1000;

/// Some nodes on one database.
struct Cluster {
    nodes: Vec<Product>,
    postmaster: u32,
    loads: [Loaded; 2],
    // Dropped last.
    _database: Database,
}

/// One load, its rounds, and the cores that were busy in each.
struct Loaded {
    load: Load,
    rounds: Vec<Round>,
    cores: Rounds,
}

/// Three nodes of the release binary against one, on one machine.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    let mut clusters = [cluster(bench, 1)?, cluster(bench, NODES)?];
    println!("\nPostgreSQL, nodes of the application, 64 connections in turn");
    for _ in 0..bench.scale.rounds {
        for cluster in &mut clusters {
            cluster.round(bench.scale.until())?;
        }
    }
    let mut rates = Vec::new();
    for cluster in &clusters {
        for loaded in &cluster.loads {
            let figure = Figure::new(loaded.load.name.clone(), &loaded.rounds)?;
            report.figure(&figure);
            loaded.cores.tell(report, &figure);
            rates.push(figure.per_second);
        }
    }
    if let [first, replays, first_of_many, replays_of_many] = rates.as_slice() {
        for (what, ratio) in [
            ("first calls", first_of_many / first),
            ("replays", replays_of_many / replays),
        ] {
            report.quantity(format!("{what}, {NODES} nodes against one"), ratio, "times");
        }
    }
    Ok(())
}

fn cluster(bench: &Bench, count: usize) -> Result<Cluster, Error> {
    let database = Database::new();
    super::introduce(&database)?;
    let mut nodes = Vec::new();
    for number in 0..count {
        let data = bench.new_folder(&format!("node-{number}-of-{count}"))?;
        nodes.push(bench.node(&data, database.url(), nodes.first())?);
    }
    let first = nodes.first().ok_or(Error::Form("the number of nodes"))?;
    let load = |what: &str, keys, pick, holds, lacks| Load {
        name: format!("{what}, nodes: {count}"),
        addresses: nodes.iter().map(|node| node.server.address).collect(),
        request: Request::note(&first.credential),
        keys,
        pick,
        expected: Expected {
            status: 201,
            holds,
            lacks,
        },
    };
    let keys = Keys::new(Series::new(Kind::TimeOrdered)?);
    let replayed = "idempotent-replayed";
    let new = load("first calls", keys, Pick::New, None, Some(replayed));
    new.run(Until::Used(HOT))?;
    let again = load(
        "replays of 1,000 receipts",
        new.keys.again(),
        Pick::Again(HOT),
        Some(replayed),
        None,
    );
    Ok(Cluster {
        loads: [new, again].map(|load| Loaded {
            load,
            rounds: Vec::new(),
            cores: Rounds::default(),
        }),
        nodes,
        postmaster: super::postmaster(&database)?,
        _database: database,
    })
}

impl Cluster {
    fn round(&mut self, until: Until) -> Result<(), Error> {
        for loaded in &mut self.loads {
            let nodes = self.nodes.iter();
            let watch = Watch::new(vec![
                ("PostgreSQL", vec![Whose::Family(self.postmaster)]),
                (
                    "nodes",
                    nodes.map(|node| Whose::Process(node.server.id())).collect(),
                ),
                ("load generator", vec![Whose::Process(std::process::id())]),
            ])?;
            loaded.rounds.push(loaded.load.run(until)?);
            loaded.cores.add(watch.shares()?);
        }
        Ok(())
    }
}
