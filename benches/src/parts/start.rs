use std::time::Duration;

use crate::{
    Error,
    parts::{Bench, megabytes},
    report::{Report, median},
};

/// How long an idle server is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(1);

/// Starts of the release binary until it is ready, and what it holds while idle.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    println!("\nStart");
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut idle = 0;
    for number in 0..bench.scale.starts {
        let data = bench.new_folder(&format!("start-{number}"))?;
        first.push(bench.product(&data)?.ready_after);
        let product = bench.product(&data)?;
        second.push(product.ready_after);
        if number + 1 == bench.scale.starts {
            std::thread::sleep(SETTLE);
            idle = product.server.resident()?.now;
        }
    }
    for (name, starts) in [
        ("first start, until /readyz", first),
        ("a later start, until /readyz", second),
    ] {
        let millis = starts.iter().map(|start| start.as_secs_f64() * 1000.0);
        let middle = median(millis).ok_or(Error::Form("the number of starts"))?;
        report.quantity(name, middle, "ms");
    }
    report.quantity("resident, idle", megabytes(idle), "MB");
    report.at_most("resident memory, idle (MB)", 40.0, megabytes(idle), true);
    Ok(())
}
