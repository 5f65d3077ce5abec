//! The rounds: load, a power cut, a start.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use counterfoil_e2e::{Folder, Random, Server, until};

use crate::model::Model;
use crate::{ROUNDS, STORE};

const CALLERS: u64 = 8;
/// Latest moment of a kill, in milliseconds after the start of the process.
const KILL_MS_MAX: u64 = 700;

#[test]
fn i1_i2_i3_field_14_kill_9_at_random_moments_under_load() {
    let seed = Random::seed();
    let rounds = std::env::var("E2E_KILL_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    println!("E2E_SEED={seed} E2E_KILL_ROUNDS={rounds}");
    let folder = Folder::new(STORE);
    Server::start(&folder).stop();
    let model = Arc::new(Model::new());
    let mut random = Random::new(seed);
    let started = Instant::now();
    for round in 0..rounds {
        // Sometimes two processes share the store.
        let servers = if random.below(4) == 0 { 2 } else { 1 };
        let servers: Vec<_> = (0..servers).map(|_| Server::launch(&folder, &[])).collect();
        let key = folder.key();
        let over = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let server = &servers[usize::try_from(caller).unwrap() % servers.len()];
                let http = server.http_as(&key);
                let (model, over) = (Arc::clone(&model), Arc::clone(&over));
                let mut random = Random::new(seed ^ (round << 8) ^ caller);
                thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        model.step(&http, &mut random);
                    }
                })
            })
            .collect();
        // The one sleep that is no wait for anything: the moment of the power cut.
        thread::sleep(Duration::from_millis(random.below(KILL_MS_MAX)));
        for server in servers {
            server.kill();
        }
        over.store(true, Ordering::Relaxed);
        for caller in callers {
            caller
                .join()
                .unwrap_or_else(|_| panic!("E2E_SEED={seed}, round {round}"));
        }
    }
    let took = started.elapsed();
    let server = Server::start(&folder);
    let http = server.http();
    let counts = model.finish(&http);
    println!(
        "{rounds} rounds in {:.0} s: {} keys, {} acknowledged in time, {} replays compared, \
         {} answers lost",
        took.as_secs_f64(),
        counts.keys,
        counts.acknowledged,
        counts.compared,
        counts.lost
    );
    assert!(
        counts.keys >= rounds,
        "there was load: {} keys",
        counts.keys
    );
    assert!(
        counts.acknowledged > 0 && counts.lost > 0,
        "the kills met calls in flight"
    );
    until("nothing is left running", Duration::from_secs(30), || {
        let reply = http
            .request("GET", "/api/v1/operations?limit=100")
            .send()
            .unwrap();
        let value = reply.value();
        let operations = value["operations"].as_array().expect("operations").clone();
        let open = operations.iter().filter(|one| one["state"] == "running");
        (open.count() == 0).then_some(())
    });
    server.stop();
}
