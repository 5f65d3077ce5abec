use counterfoil_core::{Event, OperationId, State, Verdict, WorkspaceId};
use counterfoil_server::{
    OperationFilter, OperationPage, OperationView, list_operations, rfc3339, show_operation,
};
use serde_json::Value;

use crate::{
    args::{Operations, Reading, VerdictName},
    config::Config,
    exit::{Exit, Failure},
    open::{with_application, with_reading},
    output::{print, print_json, shown, table},
};

/// Longest reason of a resolution, in characters.
const REASON_CHARS_MAX: usize = 500;

pub(crate) fn run(command: Operations) -> Result<(), Failure> {
    match command {
        Operations::List {
            reading,
            workspace,
            state,
            limit,
            cursor,
        } => {
            let workspace = WorkspaceId::new(workspace)
                .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
            let filter = OperationFilter {
                state: state.as_deref(),
                limit,
                cursor: cursor.as_deref(),
            };
            let config = Config::load(&reading.place.flags())?;
            let page = with_reading(&config, async |application| {
                Ok(list_operations(application.engine(), &workspace, &filter).await?)
            })?;
            print_page(&reading, &page)
        }
        Operations::Show { reading, id } => {
            let config = Config::load(&reading.place.flags())?;
            let view = with_reading(&config, async |application| {
                Ok(show_operation(application.engine(), &id).await?)
            })?;
            print_view(&reading, &view)
        }
        Operations::Resolve {
            reading,
            id,
            verdict,
            reason,
        } => {
            let view = resolve(&reading, &id, verdict, &reason)?;
            print_view(&reading, &view)
        }
    }
}

fn resolve(
    reading: &Reading,
    id: &str,
    verdict: VerdictName,
    reason: &str,
) -> Result<OperationView, Failure> {
    let fits = (1..=REASON_CHARS_MAX).contains(&reason.trim().chars().count());
    if !fits || reason.chars().any(char::is_control) {
        return Err(Failure::new(
            Exit::Usage,
            format!("a reason has 1 to {REASON_CHARS_MAX} characters and no control characters"),
        ));
    }
    let operation_id: OperationId = id
        .parse()
        .map_err(|_| Failure::from(counterfoil_server::Error::NotFound("operation")))?;
    let event = Event::Resolved {
        verdict: match verdict {
            VerdictName::Happened => Verdict::Happened,
            VerdictName::NotHappened => Verdict::NotHappened,
        },
    };
    let config = Config::load(&reading.place.flags())?;
    with_application(&config, async |application| {
        let engine = application.engine();
        let before = show_operation(engine, id).await?;
        if before.receipt().status.state != State::OutcomeUnknown {
            return Err(Failure::new(
                Exit::Failure,
                format!("{id} is not in doubt: it is {}", before.state()),
            )
            .hint("`counterfoil operations show` tells what happened to it"));
        }
        let reason = format!("resolved by the operator: {}", reason.trim());
        let store = engine.store();
        store
            .record(operation_id, event, engine.now(), reason, None)
            .await?;
        Ok(show_operation(engine, id).await?)
    })
}

fn print_page(reading: &Reading, page: &OperationPage) -> Result<(), Failure> {
    if reading.json {
        return print_json(&page.to_json());
    }
    let rows: Vec<Vec<String>> = page
        .operations
        .iter()
        .map(|view| {
            let receipt = view.receipt();
            vec![
                receipt.operation_id.to_string(),
                view.state().to_owned(),
                receipt.effect().as_str().to_owned(),
                receipt.status.attempts.latest().to_string(),
                receipt.identity.target.to_string(),
                receipt.identity.principal.to_string(),
                rfc3339(receipt.created_at),
            ]
        })
        .collect();
    let head = [
        "ID",
        "STATE",
        "EFFECT",
        "ATTEMPTS",
        "TARGET",
        "PRINCIPAL",
        "CREATED",
    ];
    let mut text = table(&head, &rows);
    if let Some(cursor) = &page.next_cursor {
        text.push_str(&format!("more: --cursor {cursor}\n"));
    }
    print(&text)
}

fn print_view(reading: &Reading, view: &OperationView) -> Result<(), Failure> {
    if reading.json {
        return print_json(&view.to_json());
    }
    let summary = view.summary();
    let field = |name: &str| match summary.get(name) {
        Some(Value::String(text)) => shown(text),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    };
    let mut text = format!("{}\n", field("operation_id"));
    for (title, name) in [
        ("state", "state"),
        ("effect", "effect"),
        ("target", "target"),
        ("version", "version"),
        ("mode", "mode"),
        ("principal", "principal"),
        ("attempts", "attempts"),
        ("created", "created_at"),
        ("finished", "finished_at"),
        ("replays until", "replay_until"),
        ("refused until", "tombstone_until"),
    ] {
        text.push_str(&format!("  {title:<14} {}\n", field(name)));
    }
    text.push_str(&format!("  {}\n\n", view.meaning()));
    let rows: Vec<Vec<String>> = view
        .events()
        .iter()
        .map(|event| {
            let from = event.from.map_or("-", State::as_str);
            vec![
                rfc3339(event.at),
                event.attempt.to_string(),
                format!("{from} -> {}", event.to.as_str()),
                event.reason.clone(),
                event.evidence.clone().unwrap_or_default(),
            ]
        })
        .collect();
    text.push_str(&table(
        &["TIME", "ATTEMPT", "CHANGE", "WHY", "EVIDENCE"],
        &rows,
    ));
    print(&text)
}
