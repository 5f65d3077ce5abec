use std::{net::SocketAddr, time::Duration};

use crate::{
    Error,
    keys::{Kind, Series},
    load::{Expected, Keys, Load, Pick, Until},
    report::{Figure, Report},
    request::{Era, Request},
};

/// One load on one running server.
#[derive(Debug, clap::Args)]
pub(crate) struct Single {
    /// Where it listens.
    #[arg(long)]
    address: SocketAddr,
    /// Its agent key.
    #[arg(long, default_value = "none")]
    credential: String,
    /// Tool calls instead of REST.
    #[arg(long)]
    tool: bool,
    /// Makes so many receipts, then replays them; without it every call is a first one.
    #[arg(long)]
    replay: Option<u64>,
    /// How long.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Single {
    /// Runs it and prints the figure.
    pub(crate) fn run(&self) -> Result<(), Error> {
        let request = if self.tool {
            Request::tool(&self.credential, Era::Handshake)
        } else {
            Request::note(&self.credential)
        };
        let first = Load {
            name: "first calls".to_owned(),
            addresses: vec![self.address],
            request,
            keys: Keys::new(Series::new(Kind::TimeOrdered)?),
            pick: Pick::New,
            expected: Expected {
                status: if self.tool { 200 } else { 201 },
                holds: None,
                lacks: None,
            },
        };
        let load = match self.replay {
            None => first,
            Some(count) => {
                first.run(Until::Used(count))?;
                Load {
                    name: format!("replays of {count} receipts"),
                    keys: first.keys.again(),
                    pick: Pick::Again(count),
                    expected: Expected {
                        holds: Some("replayed"),
                        ..first.expected.clone()
                    },
                    ..first
                }
            }
        };
        let round = load.run(Until::Elapsed {
            warm_up: Duration::ZERO,
            measured: Duration::from_secs(self.seconds),
        })?;
        Report::default().figure(&Figure::new(load.name, &[round])?);
        Ok(())
    }
}
