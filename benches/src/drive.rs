//! Callers inside this process, each with one call at a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use tokio::task::JoinSet;

use crate::{
    Error,
    load::{Round, Until},
};

/// Lets so many callers call. Each call is told who calls and the next number of `next`.
pub(crate) async fn drive<F>(
    callers: usize,
    next: &Arc<AtomicU64>,
    until: Until,
    call: impl Fn(usize, u64) -> F + Clone + Send + 'static,
) -> Result<Round, Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (next, call) = (Arc::clone(next), call.clone());
        tasks.spawn(async move {
            let mut latencies_us = Vec::new();
            loop {
                let begun = start.elapsed();
                if matches!(until, Until::Elapsed { warm_up, measured } if begun >= warm_up + measured)
                {
                    return Ok::<_, Error>(latencies_us);
                }
                let index = next.fetch_add(1, Ordering::Relaxed);
                if matches!(until, Until::Used(count) if index >= count) {
                    return Ok(latencies_us);
                }
                call(caller, index).await?;
                let ended = start.elapsed();
                let counts = match until {
                    Until::Elapsed { warm_up, measured } => {
                        begun >= warm_up && ended <= warm_up + measured
                    }
                    Until::Used(_) => true,
                };
                if counts {
                    let took = (ended - begun).as_micros();
                    latencies_us.push(u32::try_from(took).unwrap_or(u32::MAX));
                }
            }
        });
    }
    let mut latencies_us = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        latencies_us.extend(ended.map_err(|_| Error::Task)??);
    }
    let lasted = match until {
        Until::Elapsed { measured, .. } => measured,
        Until::Used(_) => start.elapsed(),
    };
    Round::from_latencies(latencies_us, lasted)
}
