//! What a copy says of itself at its end.

use counterfoil_server::{CopiedRows, RowsDigest};
use counterfoil_store::{Census, Imported};
use serde_json::{Value, json};

use super::rows::Tally;
use crate::config::Config;

pub(super) struct Report {
    pub(super) census: Census,
    pub(super) rows: CopiedRows,
    pub(super) imported: Imported,
    pub(super) verified: Tally,
    pub(super) application: RowsDigest,
    pub(super) is_dry: bool,
}

impl Report {
    fn strays(&self) -> u64 {
        let census = &self.census;
        census.stray_results + census.stray_questions + census.stray_events
    }

    fn digests(&self) -> [String; 2] {
        let hex = |digest: [u8; 32]| -> String {
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        [hex(self.verified.digest), hex(self.application.digest)]
    }

    pub(super) fn text(&self, from: &Config, to: &Config) -> String {
        let Tally {
            receipts,
            events,
            results,
            questions,
            ..
        } = self.verified;
        let rows = self.application.rows;
        let all = format!(
            "{receipts} receipts with {events} rows of their logs, {results} results and {questions} questions, and {rows} rows of the application"
        );
        if self.is_dry {
            return format!("would copy {all}\nfrom {}\nto   {}\n", from.store, to.store);
        }
        let [receipts, rows] = self.digests();
        let mut text = format!(
            "copied    {} receipts and {} rows of the application; {} and {} were there\nverified  {all} are the same on both sides\ndigests   {receipts} {rows}\n",
            self.imported.new, self.rows.new, self.imported.same, self.rows.same
        );
        if self.strays() > 0 {
            text.push_str(&format!(
                "left      {} rows that hang on no receipt\n",
                self.strays()
            ));
        }
        text.push_str(&format!(
            "Start servers with --store {} from now on, and with the same data folder: its agent key is valid there.\nStart none on {} again: it would run keys that were used since.\n",
            to.store, from.store
        ));
        text
    }

    pub(super) fn json(&self, from: &Config, to: &Config) -> Value {
        let [receipts, rows] = self.digests();
        json!({
            "from": from.store.to_string(),
            "to": to.store.to_string(),
            "dry_run": self.is_dry,
            "verified": !self.is_dry,
            "receipts": self.verified.receipts,
            "receipts_written": self.imported.new,
            "events": self.verified.events,
            "results": self.verified.results,
            "questions": self.verified.questions,
            "running": super::running(&self.census),
            "rows_on_no_receipt": self.strays(),
            "application_rows": self.application.rows,
            "application_rows_written": self.rows.new,
            "digest": receipts,
            "application_digest": rows,
        })
    }
}
