use counterfoil_core::{Event, OperationId, State, Verdict, WorkspaceId};
use counterfoil_engine::Engine;
use counterfoil_server::{
    OperationFilter, OperationPage, OperationView, list_operations, rfc3339, show_operation,
};
use serde_json::{Value, json};

use crate::{
    args::{Operations, Receipts, VerdictName},
    config::Config,
    exit::{Exit, Failure},
    open::{Mode, with_engine},
    output::{print, print_json, shown, table},
    proxy::{Labels, tool},
};

/// Longest reason of a resolution, in characters.
const REASON_CHARS_MAX: usize = 500;

pub(crate) fn run(command: Operations) -> Result<(), Failure> {
    match command {
        Operations::List {
            receipts,
            workspace,
            within,
            limit,
            cursor,
        } => {
            let workspace = WorkspaceId::new(workspace)
                .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
            let filter = OperationFilter {
                state: within.as_deref(),
                limit,
                cursor: cursor.as_deref(),
            };
            let config = Config::load(&receipts.flags())?;
            let (page, labels) = with_engine(&config, Mode::Reading, async |engine| {
                let page = list_operations(&engine, &workspace, &filter).await?;
                let shown = page.operations.iter().map(OperationView::receipt);
                let labels = Labels::read(engine.store().as_ref(), shown).await?;
                Ok((page, labels))
            })?;
            print_page(&receipts, &page, &labels)
        }
        Operations::Show { receipts, id } => {
            let config = Config::load(&receipts.flags())?;
            let (view, labels) = with_engine(&config, Mode::Reading, async |engine| {
                whole(&engine, &id).await
            })?;
            print_view(&receipts, &view, &labels)
        }
        Operations::Resolve {
            receipts,
            id,
            verdict,
            reason,
        } => {
            let (view, labels) = resolve(&receipts, &id, verdict, &reason)?;
            print_view(&receipts, &view, &labels)
        }
    }
}

async fn whole(engine: &Engine, id: &str) -> Result<(OperationView, Labels), Failure> {
    let view = show_operation(engine, id).await?;
    let labels = Labels::read(engine.store().as_ref(), [view.receipt()].into_iter()).await?;
    Ok((view, labels))
}

fn resolve(
    receipts: &Receipts,
    id: &str,
    verdict: VerdictName,
    reason: &str,
) -> Result<(OperationView, Labels), Failure> {
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
    let config = Config::load(&receipts.flags())?;
    with_engine(&config, Mode::Changing, async |engine| {
        let before = show_operation(&engine, id).await?;
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
        whole(&engine, id).await
    })
}

/// An operation of a proxy as JSON also says which tool of which upstream was called.
fn with_upstream(mut json: Value, view: &OperationView, labels: &Labels) -> Value {
    let receipt = view.receipt();
    if let Some(label) = labels.of(receipt) {
        json["tool"] = json!(tool(receipt));
        json["upstream"] = json!(label);
    }
    json
}

fn print_page(receipts: &Receipts, page: &OperationPage, labels: &Labels) -> Result<(), Failure> {
    if receipts.json() {
        let mut whole = page.to_json();
        let views = page.operations.iter();
        let operations = views.map(|view| with_upstream(view.summary(), view, labels));
        whole["operations"] = operations.collect();
        return print_json(&whole);
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
                labels.target(receipt),
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

fn print_view(receipts: &Receipts, view: &OperationView, labels: &Labels) -> Result<(), Failure> {
    if receipts.json() {
        return print_json(&with_upstream(view.to_json(), view, labels));
    }
    let mut summary = view.summary();
    summary["target"] = json!(labels.target(view.receipt()));
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
