//! `counterfoil store check`: whether the store can be relied on, and whether every receipt in it
//! hangs together.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use counterfoil_core::{State, Timestamp};
use counterfoil_engine::{Clock as _, SystemClock};
use counterfoil_server::{Application, rfc3339};
use counterfoil_store::{Census, Inspection, Store, Whole};
use serde_json::{Value, json};

use crate::{
    args::Receipts,
    config::Config,
    exit::{Exit, Failure},
    open::{self, Mode, Opened, open_receipts, runtime},
    output::{print, print_json, shown},
    store_copy::is_unfinished,
    store_copy::show_damaged,
};

/// Receipts read at a time.
const PAGE: u32 = 500;
/// Findings of one kind that are named; the others are counted.
const NAMED_MAX: usize = 20;
/// How far this machine's clock may be from the database's without a word.
const CLOCK_APART: Duration = Duration::from_secs(2);
/// How long a lapsed lease may wait for a server to record it.
const LAPSED_FOR: Duration = Duration::from_secs(60);
const RESTORE: &str = "no step of Counterfoil leaves this behind: look at who else writes to this \
                       database; restore a copy from before, or settle the operation by hand";

pub(crate) fn run(receipts: &Receipts) -> Result<(), Failure> {
    let config = Config::load(&receipts.flags())?;
    let folder = open::folder(&config, Mode::Reading)?;
    let report = runtime()?.block_on(async {
        let store = open_receipts(&config, &folder, Mode::Reading).await?;
        let report = check(&config, &store).await;
        store.close().await;
        report
    })?;
    if receipts.json() {
        print_json(&report.json())?;
    } else {
        print(&report.text())?;
    }
    match report.findings.count {
        0 => Ok(()),
        1 => Err(Failure::new(Exit::Failure, "1 finding")),
        count => Err(Failure::new(Exit::Failure, format!("{count} findings"))),
    }
}

/// What was found, the first of each kind by name.
#[derive(Default)]
struct Findings {
    count: u64,
    kinds: BTreeMap<String, u64>,
    /// What, of which operation or what else, and what to do.
    named: Vec<[String; 3]>,
}

impl Findings {
    fn add(&mut self, what: &str, whose: &str, hint: &str) {
        self.count += 1;
        let of_kind = self.kinds.entry(what.to_owned()).or_default();
        *of_kind += 1;
        if usize::try_from(*of_kind).is_ok_and(|count| count <= NAMED_MAX) {
            let named = [what, whose, hint].map(ToOwned::to_owned);
            self.named.push(named);
        }
    }

    /// How many of a kind are not named.
    fn others(&self) -> impl Iterator<Item = (&str, u64)> {
        let named = u64::try_from(NAMED_MAX).unwrap_or(u64::MAX);
        self.kinds
            .iter()
            .filter(move |(_, count)| **count > named)
            .map(move |(what, count)| (what.as_str(), count - named))
    }
}

struct Report {
    store: String,
    inspection: Inspection,
    application: i64,
    /// This machine's clock beside the store's, in milliseconds; `None` for a store without one.
    clock_ahead: Option<i64>,
    now: Timestamp,
    census: Census,
    read: u64,
    lapsed: u64,
    doubt: Doubt,
    findings: Findings,
}

/// Receipts that somebody must settle, by how long they have been so.
#[derive(Default)]
struct Doubt {
    hour: u64,
    day: u64,
    week: u64,
    older: u64,
    oldest: Option<Timestamp>,
}

impl Doubt {
    fn add(&mut self, since: Timestamp, now: Timestamp) {
        const HOUR: u64 = 3600;
        let count = match now.since(since).as_secs() {
            seconds if seconds < HOUR => &mut self.hour,
            seconds if seconds < 24 * HOUR => &mut self.day,
            seconds if seconds < 7 * 24 * HOUR => &mut self.week,
            _ => &mut self.older,
        };
        *count += 1;
        self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
    }

    fn total(&self) -> u64 {
        self.hour + self.day + self.week + self.older
    }
}

async fn check(config: &Config, opened: &Opened) -> Result<Report, Failure> {
    let shared = opened.shared();
    let store = shared.as_ref();
    let here = SystemClock::default().now();
    let there = store.now();
    let mut report = Report {
        store: config.store.to_string(),
        inspection: store.inspect().await?,
        application: opened.component_version(Application::COMPONENT).await?,
        clock_ahead: there.map(|there| here.as_millis() - there.as_millis()),
        now: there.unwrap_or(here),
        census: store.census().await?,
        read: 0,
        lapsed: 0,
        doubt: Doubt::default(),
        findings: Findings::default(),
    };
    if is_unfinished(store).await? {
        report.findings.add(
            "a copy into this store was not brought to its end",
            &report.store,
            "run the same `counterfoil store copy` again",
        );
    }
    report.judge_store();
    report.read_all(store).await?;
    // A server may have added receipts meanwhile, or swept some.
    let after = store.census().await?.total();
    report.judge_counts(after);
    Ok(report)
}

impl Report {
    fn judge_store(&mut self) {
        for problem in &self.inspection.problems {
            let (what, hint) = problem.split_once("; ").unwrap_or((problem, ""));
            self.findings.add(what, &self.store, hint);
        }
        if let Some(ahead) = self.clock_ahead
            && Duration::from_millis(ahead.unsigned_abs()) > CLOCK_APART
        {
            let side = if ahead > 0 { "ahead of" } else { "behind" };
            self.inspection.warnings.push(format!(
                "this machine's clock is {} ms {side} the database's, which counts; set it right, or its logs tell another time",
                ahead.unsigned_abs()
            ));
        }
    }

    async fn read_all(&mut self, store: &dyn Store) -> Result<(), Failure> {
        let mut next = Some(0);
        while let Some(after) = next {
            let part = store.export(after, PAGE).await?;
            next = part.next;
            for damaged in &part.damaged {
                self.read += 1;
                self.findings
                    .add("a row that cannot be read", &show_damaged(damaged), RESTORE);
            }
            for whole in &part.rows {
                self.read += 1;
                self.judge(whole);
            }
        }
        Ok(())
    }

    fn judge(&mut self, whole: &Whole) {
        let receipt = &whole.receipt;
        let id = receipt.operation_id.to_string();
        for finding in whole.findings() {
            self.findings.add(&finding.to_string(), &id, RESTORE);
        }
        let late = receipt.lease_until.plus(LAPSED_FOR) <= self.now;
        self.lapsed += u64::from(late && whole.is_overdue(self.now));
        let in_doubt = matches!(
            receipt.status.state,
            State::OutcomeUnknown | State::InputRequired
        );
        if in_doubt {
            let last = whole.events.last();
            let since = last.map_or(receipt.created_at, |event| event.at);
            self.doubt.add(since, self.now);
        }
    }

    fn judge_counts(&mut self, after: u64) {
        let there = self.census.total().min(after);
        if self.read < there {
            let missing = format!("{} of {there}", there - self.read);
            self.findings.add(
                "receipts whose scope or workspace is gone",
                &missing,
                RESTORE,
            );
        }
        let census = &self.census;
        for (what, count) in [
            ("receipts in a state that there is not", census.impossible),
            ("results of no receipt", census.stray_results),
            ("questions of no receipt", census.stray_questions),
            ("log rows of no receipt", census.stray_events),
        ] {
            if count > 0 {
                self.findings.add(what, &count.to_string(), RESTORE);
            }
        }
        if self.lapsed > 0 {
            self.inspection.warnings.push(format!(
                "{} leases or questions have lapsed and nobody has recorded it; start a server, or run `counterfoil sweep`",
                self.lapsed
            ));
        }
        let old = self.doubt.week + self.doubt.older;
        if old > 0 {
            self.inspection.warnings.push(format!(
                "{old} receipts have been in doubt for more than a day; `counterfoil operations list` shows them, `counterfoil operations resolve` settles them"
            ));
        }
    }

    fn states(&self) -> String {
        let states: Vec<String> = self
            .census
            .receipts
            .iter()
            .map(|(state, count)| format!("{} {count}", state.as_str()))
            .collect();
        states.join(", ")
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:<18}  {}", shown(value));
        };
        line("store", &self.store);
        for (name, value) in &self.inspection.facts {
            line(name, value);
        }
        let application = match self.application {
            0 => "none (a proxy's store)".to_owned(),
            version => format!("schema {version}"),
        };
        line("application", &application);
        if let Some(ahead) = self.clock_ahead {
            line("clock", &format!("{ahead} ms ahead of the database's"));
        }
        line("receipts", &format!("{} ({})", self.read, self.states()));
        let doubt = &self.doubt;
        line(
            "in doubt",
            &match doubt.oldest {
                None => "none".to_owned(),
                Some(oldest) => format!(
                    "{} (within an hour {}, a day {}, a week {}, older {}; the oldest since {})",
                    doubt.total(),
                    doubt.hour,
                    doubt.day,
                    doubt.week,
                    doubt.older,
                    rfc3339(oldest)
                ),
            },
        );
        line("lapsed unrecorded", &self.lapsed.to_string());
        for warning in &self.inspection.warnings {
            line("warning", warning);
        }
        for [what, whose, hint] in &self.findings.named {
            line("FINDING", &format!("{what}: {whose}"));
            if !hint.is_empty() {
                line("", &format!("hint: {hint}"));
            }
        }
        for (what, others) in self.findings.others() {
            line("FINDING", &format!("{what}: {others} more"));
        }
        if self.findings.count == 0 {
            text.push_str("Everything hangs together.\n");
        }
        text
    }

    fn json(&self) -> Value {
        let facts: serde_json::Map<String, Value> = self
            .inspection
            .facts
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        let states: serde_json::Map<String, Value> = self
            .census
            .receipts
            .iter()
            .map(|(state, count)| (state.as_str().to_owned(), json!(count)))
            .collect();
        let findings: Vec<Value> = self
            .findings
            .named
            .iter()
            .map(|[what, whose, hint]| json!({ "what": what, "where": whose, "hint": hint }))
            .collect();
        json!({
            "ok": self.findings.count == 0,
            "store": self.store,
            "facts": facts,
            "application_schema": self.application,
            "clock_ahead_ms": self.clock_ahead,
            "receipts": self.read,
            "states": states,
            "lapsed_unrecorded": self.lapsed,
            "in_doubt": {
                "total": self.doubt.total(),
                "within_an_hour": self.doubt.hour,
                "within_a_day": self.doubt.day,
                "within_a_week": self.doubt.week,
                "older": self.doubt.older,
                "oldest": self.doubt.oldest.map(rfc3339),
            },
            "warnings": self.inspection.warnings,
            "findings": self.findings.count,
            "findings_by_kind": self.findings.kinds,
            "named": findings,
        })
    }
}
