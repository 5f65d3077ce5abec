//! The proxy's own tools: what became of calls, for the principal that made them through this
//! upstream. Everything else is not found.

mod asker;
mod definitions;
mod given;
mod shown;
mod view;

use counterfoil_core::{Code, Event, OperationId, State};
use counterfoil_store::{BoxFuture, Error, Found};
use serde_json::{Map, Value, json};

use crate::settings::Settings;
pub(crate) use asker::Asker;
use given::Given;
use shown::{Fault, Shown, Stored};
use view::View;

/// Operations in a list, unless the caller says otherwise.
const LIST_DEFAULT: u32 = 20;
/// Most operations in a list.
const LIST_MAX: u32 = 50;
/// Longest reason for a verdict, in characters.
const REASON_CHARS_MAX: usize = 300;

/// One of the proxy's own tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnTool {
    /// What became of one call.
    Get,
    /// The calls, those in doubt first.
    List,
    /// Asks a call that is under way to stop.
    Cancel,
    /// Settles a call that is in doubt.
    Resolve,
}

impl OwnTool {
    const ALL: [Self; 4] = [Self::Get, Self::List, Self::Cancel, Self::Resolve];

    const fn name(self) -> &'static str {
        match self {
            Self::Get => "get_operation",
            Self::List => "list_operations",
            Self::Cancel => "cancel_operation",
            Self::Resolve => "resolve_operation",
        }
    }
}

/// The definitions of those that the settings ask for, for `tools/list`: each the text of a JSON
/// object.
pub(crate) fn listed(settings: &Settings) -> Vec<String> {
    OwnTools::of(settings).map_or_else(Vec::new, |own| own.definitions())
}

/// What came of asking a call to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// Its attempt is none of this process: nothing was forwarded.
    NotRunningHere,
    /// The upstream was asked to stop it, and its end was waited for within a bound.
    Requested,
}

/// Reaches the calls that are under way.
pub(crate) trait Canceller: Send + Sync {
    /// Forwards a cancel of the operation's attempt to the upstream, then waits within a bound until
    /// what came of it is recorded. The request itself is recorded already
    /// ([`Event::CancelRequested`]), so that a proof that nothing was done counts as cancelled.
    fn cancel(&self, operation_id: OperationId) -> BoxFuture<'_, Cancelled>;
}

/// The proxy's own tools.
#[derive(Clone, Debug)]
pub(crate) struct OwnTools {
    prefix: String,
    resolves: bool,
}

impl OwnTools {
    /// Those that the settings ask for; `None` if there are none.
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        Some(Self {
            prefix: settings.own_tools.clone()?,
            resolves: settings.resolve_by_model,
        })
    }

    fn listed(&self) -> impl Iterator<Item = OwnTool> {
        let resolves = self.resolves;
        OwnTool::ALL
            .into_iter()
            .filter(move |tool| resolves || *tool != OwnTool::Resolve)
    }

    /// Whose name this is.
    pub(crate) fn find(&self, name: &str) -> Option<OwnTool> {
        let rest = name.strip_prefix(&self.prefix)?;
        self.listed().find(|tool| tool.name() == rest)
    }

    fn definitions(&self) -> Vec<String> {
        self.listed()
            .map(|tool| definitions::of(tool, &self.prefix).to_string())
            .collect()
    }

    /// Runs one of them. `arguments` is the text of a JSON object. What comes back is the text of
    /// the `result`.
    pub(crate) async fn call(
        &self,
        tool: OwnTool,
        arguments: Option<&str>,
        asker: Asker<'_>,
        canceller: &dyn Canceller,
    ) -> String {
        let arguments = arguments.unwrap_or("{}");
        let shown = match tool {
            OwnTool::Get => self.get(arguments, asker).await,
            OwnTool::List => self.list(arguments, asker).await,
            OwnTool::Cancel => self.cancel(arguments, asker, canceller).await,
            OwnTool::Resolve => self.resolve(arguments, asker).await,
        };
        let (shown, is_error) = match shown {
            Ok(shown) => (shown, false),
            Err(fault) => (fault.shown(), true),
        };
        shown.result(asker.is_modern, is_error)
    }

    async fn get(&self, arguments: &str, asker: Asker<'_>) -> Result<Shown, Fault> {
        let operation_id = Given::read(arguments)?.text("operation_id")?;
        let found = asker.find(&self.prefix, &operation_id).await?;
        Ok(self.shown(asker, &found, String::new()))
    }

    /// One operation, with its stored result.
    fn shown(&self, asker: Asker<'_>, found: &Found, before: String) -> Shown {
        let now = asker.engine.now();
        let stored = asker.engine.result(found).and_then(Stored::of);
        let view = View::new(&found.receipt, now, &self.prefix);
        let mut facts = view.facts();
        facts.insert("next_action".to_owned(), json!(view.next_action()));
        let follows = match &stored {
            Some(stored) if stored.name == "result" => " Its stored result follows.",
            Some(_) => " The server's error follows.",
            None => "",
        };
        Shown {
            text: format!("{before}{}{follows}", view.sentence()),
            facts,
            stored,
        }
    }

    async fn list(&self, arguments: &str, asker: Asker<'_>) -> Result<Shown, Fault> {
        let given = Given::read(arguments)?;
        let limit = given.number("limit", 1..=LIST_MAX)?;
        let limit = limit.unwrap_or(LIST_DEFAULT);
        let in_doubt_only = given.switch("in_doubt_only")?.unwrap_or(false);
        let (receipts, more) = asker.list(limit, in_doubt_only).await?;
        let now = asker.engine.now();
        let views: Vec<View<'_>> = receipts
            .iter()
            .map(|receipt| View::new(receipt, now, &self.prefix))
            .collect();
        let mut text = match (views.is_empty(), in_doubt_only) {
            (true, true) => "No call is in doubt.".to_owned(),
            (true, false) => "No calls are recorded.".to_owned(),
            (false, true) => "Calls in doubt, the newest first:".to_owned(),
            (false, false) => "Calls, those in doubt first, then the newest first:".to_owned(),
        };
        for view in &views {
            text.push('\n');
            text.push_str(&view.line());
        }
        if more {
            text.push_str("\nThere are more.");
        }
        let operations: Vec<Value> = views
            .iter()
            .map(|view| Value::Object(view.facts()))
            .collect();
        let mut facts = Map::new();
        facts.insert("operations".to_owned(), json!(operations));
        facts.insert("more".to_owned(), json!(more));
        let next = format!(
            "{}get_operation shows one of them with its result",
            self.prefix
        );
        facts.insert("next_action".to_owned(), json!(next));
        Ok(Shown {
            text,
            facts,
            stored: None,
        })
    }

    async fn cancel(
        &self,
        arguments: &str,
        asker: Asker<'_>,
        canceller: &dyn Canceller,
    ) -> Result<Shown, Fault> {
        let operation_id = Given::read(arguments)?.text("operation_id")?;
        let found = asker.find(&self.prefix, &operation_id).await?;
        let receipt = &found.receipt;
        let id = receipt.operation_id;
        let nothing_to_stop = match receipt.status.state {
            State::Running | State::CancelRequested | State::Accepted | State::InputRequired => {
                None
            }
            State::Succeeded | State::Failed | State::Cancelled => {
                Some("There is nothing to stop: it has ended. ")
            }
            State::OutcomeUnknown => {
                Some("There is nothing to stop: nobody waits for its answer any more. ")
            }
            State::Free => Some("There is nothing to stop: it does not run. "),
        };
        if let Some(before) = nothing_to_stop {
            return Ok(self.shown(asker, &found, before.to_owned()));
        }
        let reason = "cancel_operation was called".to_owned();
        let store = asker.engine.store();
        let now = asker.engine.now();
        let recorded = store
            .record(id, Event::CancelRequested, now, reason, None)
            .await;
        let after = match recorded {
            Ok(receipt) => receipt.status.state,
            // It was released a moment ago: it does not run.
            Err(Error::Fenced(_)) => State::Free,
            Err(error) => return Err(error.into()),
        };
        let came = match after {
            State::Running | State::CancelRequested => Some(canceller.cancel(id).await),
            State::Free
            | State::Accepted
            | State::InputRequired
            | State::Succeeded
            | State::Failed
            | State::Cancelled
            | State::OutcomeUnknown => None,
        };
        let found = asker.find(&self.prefix, &operation_id).await?;
        let ended = !matches!(
            found.receipt.status.state,
            State::Running | State::CancelRequested | State::Accepted
        );
        let before = match (came, ended) {
            (None, _) => "",
            (Some(_), true) => "It was asked to stop, and this is what came of it. ",
            (Some(Cancelled::Requested), false) => {
                "It was asked to stop and has not ended yet; it may still happen. "
            }
            (Some(Cancelled::NotRunningHere), false) => {
                "The request is noted, but it does not run in this process, so nothing was forwarded to the server; it may still happen. "
            }
        };
        Ok(self.shown(asker, &found, before.to_owned()))
    }

    async fn resolve(&self, arguments: &str, asker: Asker<'_>) -> Result<Shown, Fault> {
        let given = Given::read(arguments)?;
        let operation_id = given.text("operation_id")?;
        let verdict = given.verdict("verdict")?;
        let reason = given.text("reason")?;
        let reason = reason.trim();
        let fits = (1..=REASON_CHARS_MAX).contains(&reason.chars().count());
        if !fits || reason.chars().any(char::is_control) {
            return Err(Fault::new(
                Code::Invalid,
                format!(
                    "Invalid arguments: reason must have 1 to {REASON_CHARS_MAX} characters and no control characters"
                ),
                "Say in one line how you found out",
            ));
        }
        let found = asker.find(&self.prefix, &operation_id).await?;
        let receipt = &found.receipt;
        if receipt.status.state != State::OutcomeUnknown {
            return Ok(self.shown(
                asker,
                &found,
                "It is not in doubt, so nothing was changed. ".to_owned(),
            ));
        }
        let reason = format!("resolved by the model: {reason}");
        let store = asker.engine.store();
        let now = asker.engine.now();
        let id = receipt.operation_id;
        let recorded = store
            .record(id, Event::Resolved { verdict }, now, reason, None)
            .await;
        let before = match recorded {
            Ok(_) => "It is settled. ",
            // Its late answer was first.
            Err(Error::Fenced(_)) => "Its own answer came first and stands. ",
            Err(error) => return Err(error.into()),
        };
        let found = asker.find(&self.prefix, &operation_id).await?;
        Ok(self.shown(asker, &found, before.to_owned()))
    }
}

#[cfg(test)]
mod tests;
