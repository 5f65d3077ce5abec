use counterfoil_server::rfc3339;
use serde_json::json;

use crate::{
    args::Reading,
    config::Config,
    exit::Failure,
    open::with_application,
    output::{print, print_json},
};

const WHY_NOTHING: &str = "nothing may be purged yet: a purge needs a receipt past its time in two \
                           sweeps at least an hour apart; sweep again in an hour, or leave it to \
                           the running server";

pub(crate) fn run(reading: &Reading) -> Result<(), Failure> {
    let config = Config::load(&reading.place.flags())?;
    let report = with_application(&config, async |application| {
        Ok(application.engine().sweep().await?)
    })?;
    if reading.json {
        return print_json(&json!({
            "lapsed": report.lapsed,
            "results_deleted": report.results,
            "receipts_deleted": report.receipts,
            "judged_at": report.horizon.map(rfc3339),
            "note": report.horizon.is_none().then_some(WHY_NOTHING),
        }));
    }
    let mut text = format!(
        "lapsed leases recorded  {}\nstored results deleted  {}\nreceipts deleted        {}\n",
        report.lapsed, report.results, report.receipts
    );
    match report.horizon {
        Some(at) => text.push_str(&format!("windows judged at       {}\n", rfc3339(at))),
        None => text.push_str(&format!("{WHY_NOTHING}\n")),
    }
    print(&text)
}
