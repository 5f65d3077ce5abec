use counterfoil_server::rfc3339;
use serde_json::json;

use crate::{
    args::Receipts,
    config::Config,
    exit::Failure,
    open::{Mode, with_engine},
    output::{print, print_json},
};

const WHY_NOTHING: &str = "nothing may be purged yet: a purge needs a receipt past its time in two \
                           sweeps at least an hour apart; sweep again in an hour, or leave it to \
                           the running server";

pub(crate) fn run(receipts: &Receipts) -> Result<(), Failure> {
    let config = Config::load(&receipts.flags())?;
    let report = with_engine(&config, Mode::Changing, async |engine| {
        Ok(engine.sweep().await?)
    })?;
    if receipts.json() {
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
