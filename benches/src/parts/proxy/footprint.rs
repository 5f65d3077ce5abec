use std::time::Duration;

use crate::{
    Error,
    parts::{Bench, megabytes, proxy},
    piped::Call,
    report::{Report, median},
};

/// How long a proxy is left alone before its memory is read.
const SETTLE: Duration = Duration::from_millis(700);
/// How long the calls in flight take: longer than it takes to read the memory.
const SLOW_MILLIS: u64 = 2500;

/// Memory, idle and with calls in flight; starts.
pub(super) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    let (mut peer, _) = proxy::proxied(bench, "proxy memory")?;
    std::thread::sleep(SETTLE);
    let idle = peer.resident()?.now;
    report.quantity("proxy, resident, idle", megabytes(idle), "MB");
    for count in [1, 100_u32] {
        let resident = peer.watched(Duration::from_secs(10), |peer| {
            peer.send(Call::Slow(SLOW_MILLIS), count.into())?;
            std::thread::sleep(SETTLE);
            let resident = peer.resident()?.now;
            peer.await_answers(usize::try_from(count).unwrap_or(0))?;
            Ok(resident)
        })?;
        let name = format!("proxy, resident, {count} guarded calls in flight");
        report.quantity(name, megabytes(resident), "MB");
    }
    drop(peer);

    let (mut direct, mut first, mut later) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..bench.scale.starts {
        direct.push(proxy::direct(bench)?.1);
        let state = format!("proxy start {number}");
        first.push(proxy::proxied(bench, &state)?.1);
        later.push(proxy::proxied(bench, &state)?.1);
    }
    for (name, starts) in [
        ("until the first answer, direct", direct),
        ("until the first answer, proxy, new state folder", first),
        ("until the first answer, proxy", later),
    ] {
        let millis = starts.iter().map(|start| start.as_secs_f64() * 1000.0);
        let middle = median(millis).ok_or(Error::Form("the number of starts"))?;
        report.quantity(name, middle, "ms");
    }
    Ok(())
}
