//! Each fault of an upstream, on each way, in both eras, with a key and without: the answer is
//! lost, the call comes again. Prints what came of each; at most one effect, ever.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use counterfoil_e2e::until;
use serde_json::{Value, json};

use crate::client::Era;
use crate::said::Said;
use crate::setup::{By, Setup, Wrapped};

const SOON: Duration = Duration::from_secs(20);
/// How long the upstream waits before it says anything, in ms: in this time the client gives up.
const HOLD_MS: u64 = 400;
/// Cells at once. They wait more than they work.
const WORKERS: usize = 4;

/// What a caller is told in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The tool's result.
    Done,
    /// The tool's own failure, whole.
    Failed,
    /// That nobody knows.
    Unknown,
    /// That it ran, and that its result was not kept.
    Unavailable,
}

/// One fault: what it ends in, and how many effects there are.
struct Row {
    fault: &'static str,
    by_pipe: (End, usize),
    by_web: (End, usize),
    /// The upstream says nothing: the proxy's own deadline ends it.
    silent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyIn {
    Meta,
    Argument,
    Nowhere,
}

#[derive(Clone, Copy)]
struct Cell {
    row: &'static Row,
    era: Era,
    front: By,
    back: By,
    key: KeyIn,
}

/// What came of a cell.
struct Outcome {
    end: String,
    effects: usize,
    calls: usize,
    states: String,
    manner: &'static str,
    complaints: Vec<String>,
}

const fn row(fault: &'static str, by_pipe: (End, usize), by_web: (End, usize)) -> Row {
    Row {
        fault,
        by_pipe,
        by_web,
        silent: false,
    }
}

const fn silent(fault: &'static str, effects: usize) -> Row {
    Row {
        fault,
        by_pipe: (End::Unknown, effects),
        by_web: (End::Unknown, effects),
        silent: true,
    }
}

const fn same(fault: &'static str, end: (End, usize)) -> Row {
    row(fault, end, end)
}

const DONE: (End, usize) = (End::Done, 1);
const UNKNOWN: (End, usize) = (End::Unknown, 1);
const NOTHING: (End, usize) = (End::Unknown, 0);
const FAILED: (End, usize) = (End::Failed, 1);
const REFUSED: (End, usize) = (End::Failed, 0);

/// HTTP's own faults are JSON-RPC errors on a pipe: the server's definite answer.
static ROWS: &[Row] = &[
    same("late:100", DONE),
    same("twice", DONE),
    same("flood", DONE),
    same("reuse_id", DONE),
    same("stale_id", DONE),
    same("noise", DONE),
    same("big:300000", (End::Unavailable, 1)),
    same("die_before", NOTHING),
    same("die_after", UNKNOWN),
    same("half", UNKNOWN),
    same("cut", UNKNOWN),
    same("cut_before", NOTHING),
    silent("never", 1),
    silent("never_before", 0),
    silent("torn", 1),
    silent("wrong_id", 1),
    silent("garbage", 1),
    row("404_after", FAILED, UNKNOWN),
    row("500_after", FAILED, UNKNOWN),
    row("500_before", REFUSED, NOTHING),
    row("503_after", FAILED, UNKNOWN),
    row("redirect", FAILED, UNKNOWN),
    // Refused before it was looked at: the retry runs.
    row("401", REFUSED, DONE),
    same("error_32603", UNKNOWN),
    same("error_32602", FAILED),
    same("is_error", FAILED),
    same("is_error_before", REFUSED),
];

/// Field row 17 too: nothing here is ever sent to the upstream a second time.
#[test]
fn i1_i2_i3_i5_field_12_field_17_every_fault_has_at_most_one_effect_and_the_right_state() {
    let mut cells = VecDeque::new();
    for row in ROWS {
        for era in Era::BOTH {
            for key in [KeyIn::Meta, KeyIn::Argument, KeyIn::Nowhere] {
                for (front, back) in [
                    (By::Pipe, By::Pipe),
                    (By::Pipe, By::Web),
                    (By::Web, By::Pipe),
                    (By::Web, By::Web),
                ] {
                    let ways = match key {
                        KeyIn::Nowhere => true,
                        KeyIn::Meta => (front, back) != (By::Web, By::Web),
                        // It differs from the other place in words only.
                        KeyIn::Argument => (front, back) == (By::Pipe, By::Pipe),
                    };
                    if ways {
                        cells.push_back(Cell {
                            row,
                            era,
                            front,
                            back,
                            key,
                        });
                    }
                }
            }
        }
    }
    if let Ok(only) = std::env::var("E2E_FAULT") {
        cells.retain(|cell| cell.row.fault == only);
    }
    let cells = Mutex::new(cells);
    let wrong = Mutex::new(Vec::new());
    let head = "cell                                                | told        | how      | effects | calls | states";
    println!("{head}");
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(cell) = { cells.lock().unwrap().pop_front() } {
                    // A cell that cannot be carried through is a wrong one too.
                    match std::panic::catch_unwind(|| cell.play()) {
                        Ok(outcome) => {
                            println!("{cell:<52}| {outcome}");
                            let complaints = outcome.complaints.iter();
                            let named = complaints.map(|why| format!("{cell}: {why}"));
                            wrong.lock().unwrap().extend(named);
                        }
                        Err(_) => wrong.lock().unwrap().push(format!("{cell}: panicked")),
                    }
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().unwrap();
    wrong.sort();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

impl Cell {
    fn play(self) -> Outcome {
        let timeout = if self.row.silent { "2s" } else { "30s" };
        let setup = Setup::new().with(&["--timeout", timeout]);
        let mut wrapped = setup.start(self.era, self.front, self.back);
        let lost = self.begin(&wrapped);
        setup.until_called("append", "a", 1);
        let (end, effects) = self.expected();
        if self.effects_at_first() == 1 {
            setup.until_done("append", "a", 1);
        }
        wrapped.client.give_up(lost);
        if self.kills_listener() {
            let upstream = wrapped.upstream.as_mut().unwrap();
            until("the upstream dies", SOON, || {
                upstream.has_ended().then_some(())
            });
            upstream.restart();
        }
        let first = self.settle(&wrapped);
        let mut complaints = Vec::new();
        let mut check = |holds: bool, what: String| {
            if !holds {
                complaints.push(what);
            }
        };
        self.check(&first, end, &mut check);
        if self.key != KeyIn::Nowhere {
            let again = self.settle(&wrapped);
            self.check(&again, end, &mut check);
            if matches!(end, End::Done) {
                let same = again.result()["content"] == first.result()["content"];
                check(
                    same && again.is_replayed(),
                    format!("no replay: {}", again.text),
                );
            }
        }
        let seen = setup.ledger.effects("append", "a");
        check(seen == effects, format!("{seen} effects, not {effects}"));
        let calls = setup.ledger.calls("append", "a");
        // What was refused before it was looked at may be sent again, and nothing else.
        let allowed = 1 + usize::from(self.row.fault == "401" && self.back == By::Web);
        check(calls == allowed, format!("sent {calls} times"));
        let late = wrapped.client.answers(lost);
        let told = self.front == By::Pipe && !late.is_empty();
        check(!told, format!("an answer after the cancel: {late:?}"));
        let states = setup.states();
        let expected = match end {
            End::Done | End::Unavailable => "succeeded",
            End::Failed => "failed",
            End::Unknown => "outcome_unknown",
        };
        check(
            states == [expected],
            format!("states {states:?}, not {expected}"),
        );
        Outcome {
            end: end_of(&first).map_or_else(|| first.text.clone(), |end| format!("{end:?}")),
            effects: seen,
            calls,
            states: states.join(" "),
            manner: match (first.is_replayed(), first.is_attached()) {
                (_, true) => "attached",
                (true, false) => "replayed",
                (false, false) => "",
            },
            complaints,
        }
    }

    fn expected(self) -> (End, usize) {
        match self.back {
            By::Pipe => self.row.by_pipe,
            By::Web => self.row.by_web,
        }
    }

    /// Before the retry.
    fn effects_at_first(self) -> usize {
        match self.row.fault {
            "401" => 0,
            _ => self.expected().1,
        }
    }

    fn kills_listener(self) -> bool {
        self.back == By::Web && self.row.fault.starts_with("die")
    }

    fn begin(self, wrapped: &Wrapped) -> u64 {
        let fault = self.row.fault;
        let mut arguments =
            json!({"id": "a", "text": "t", "fault": fault, "once": true, "hold": HOLD_MS});
        let mut meta = json!({});
        match self.key {
            KeyIn::Meta => meta["dev.counterfoil/idempotency-key"] = json!("key-1"),
            KeyIn::Argument => arguments["idempotency_key"] = json!("key-1"),
            KeyIn::Nowhere => {}
        }
        wrapped.client.begin("append", arguments, meta)
    }

    /// Calls again until it is told something else than to wait.
    fn settle(self, wrapped: &Wrapped) -> Said {
        let in_progress = match self.key {
            KeyIn::Meta => "IDEMPOTENCY_IN_PROGRESS",
            KeyIn::Argument | KeyIn::Nowhere => "idempotency_in_progress",
        };
        until("it is settled", SOON, || {
            let id = self.begin(wrapped);
            let said = wrapped.client.must(id);
            (said.code() != in_progress).then_some(said)
        })
    }

    fn check(self, said: &Said, end: End, check: &mut impl FnMut(bool, String)) {
        let found = end_of(said);
        check(
            found == Some(end),
            format!("told {found:?}, not {end:?}: {}", said.text),
        );
        let code = match (end, self.key) {
            (End::Done | End::Failed, _) => "",
            (End::Unknown, KeyIn::Meta) => "IDEMPOTENCY_ATTEMPT_STALLED",
            (End::Unknown, KeyIn::Argument | KeyIn::Nowhere) => "outcome_unknown",
            (End::Unavailable, KeyIn::Meta) => "IDEMPOTENCY_RESULT_UNAVAILABLE",
            (End::Unavailable, KeyIn::Argument | KeyIn::Nowhere) => {
                "idempotency_result_unavailable"
            }
        };
        check(
            said.code() == code,
            format!("code {:?}, not {code:?}", said.code()),
        );
        if said.value["result"].is_object() {
            let handle = said.operation().is_some_and(|id| id.starts_with("op_"));
            check(handle, format!("no operation id: {}", said.text));
        }
        let is_refusal = !code.is_empty();
        check(
            !is_refusal || said.is_error(),
            format!("no isError: {}", said.text),
        );
        let structured = is_refusal && said.value["result"].get("structuredContent").is_some();
        check(
            !structured,
            format!("a refusal with structured content: {}", said.text),
        );
        let complete = said.value["result"]["resultType"] == "complete";
        let must = self.era == Era::Modern && said.value["result"].is_object();
        check(complete == must, format!("resultType: {}", said.text));
        if end == End::Done {
            let words = said.words();
            let own = words.starts_with("append a: effect 1");
            check(own, format!("another's words: {words}"));
            check(
                said.text.contains("1.50e+0"),
                format!("spelled anew: {}", said.text),
            );
        }
        // A call that had to run may run as itself.
        let ran = self.row.fault == "401" && self.back == By::Web;
        if self.key == KeyIn::Nowhere && !ran && said.value["result"].is_object() {
            check(
                said.is_attached(),
                format!("not marked as attached: {}", said.text),
            );
        }
    }
}

fn end_of(said: &Said) -> Option<End> {
    match said.code() {
        "outcome_unknown" | "IDEMPOTENCY_ATTEMPT_STALLED" => Some(End::Unknown),
        "idempotency_result_unavailable" | "IDEMPOTENCY_RESULT_UNAVAILABLE" => {
            Some(End::Unavailable)
        }
        "" if said.value["result"].is_object() && !said.is_error() => Some(End::Done),
        "" if said.is_error() || said.value["error"]["code"] != Value::Null => Some(End::Failed),
        _ => None,
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = format!("{:?}>{:?}", self.front, self.back);
        let text = format!(
            "{:<16} {:<7?} {way:<10} {:?}",
            self.row.fault, self.era, self.key
        );
        out.pad(&text)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.complaints.is_empty() {
            ""
        } else {
            " WRONG"
        };
        write!(
            out,
            "{:<12}| {:<9}| {:<8}| {:<6}| {}{mark}",
            self.end, self.manner, self.effects, self.calls, self.states
        )
    }
}
