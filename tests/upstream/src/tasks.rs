//! Tasks, in both forms: 2025-11-25's own, and the extension of 2026-07-28.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::exchange::Exchange;
use crate::server::{Server, lock};

/// A job that outlives the request that made it, and not the process.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    status: &'static str,
    result: Option<Value>,
}

/// Begins one; its id.
pub(crate) fn begin(server: &Arc<Server>, tool: &str, id: &str, takes: Duration) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("task-{}-{number}", std::process::id());
    let task = Task {
        status: "working",
        result: None,
    };
    lock(&server.tasks).insert(name.clone(), task);
    let (server, tool, id, task) = (
        Arc::clone(server),
        tool.to_owned(),
        id.to_owned(),
        name.clone(),
    );
    thread::spawn(move || {
        thread::sleep(takes);
        let mut tasks = lock(&server.tasks);
        let Some(task) = tasks.get_mut(&task) else {
            return;
        };
        if task.status != "working" {
            return;
        }
        let number = server.effect(&tool, &id, None);
        let text = format!("{tool} {id}: effect {number}");
        task.status = "completed";
        task.result = Some(json!({"content": [{"type": "text", "text": text}]}));
    });
    name
}

/// What is said of a task, its name included.
pub(crate) fn shown(server: &Server, name: &str, modern: bool) -> Option<Value> {
    let tasks = lock(&server.tasks);
    let task = tasks.get(name)?;
    let mut shown = Map::new();
    let when = "2026-01-01T00:00:00Z";
    shown.insert("taskId".to_owned(), json!(name));
    shown.insert("status".to_owned(), json!(task.status));
    shown.insert("createdAt".to_owned(), json!(when));
    shown.insert("lastUpdatedAt".to_owned(), json!(when));
    let (ttl, poll) = match modern {
        true => ("ttlMs", "pollIntervalMs"),
        false => ("ttl", "pollInterval"),
    };
    shown.insert(ttl.to_owned(), json!(60_000));
    shown.insert(poll.to_owned(), json!(20));
    Some(Value::Object(shown))
}

/// Answers `tasks/…`; `None` if there is no answer.
pub(crate) fn answer(
    server: &Server,
    exchange: &mut dyn Exchange,
    method: &str,
    params: &Value,
    modern: bool,
) -> Result<Option<Value>, &'static str> {
    let name = params["taskId"].as_str().unwrap_or_default();
    let mut task = shown(server, name, modern);
    let unknown = "no such task";
    match (method, modern) {
        ("tasks/list", false) => {
            let names: Vec<String> = lock(&server.tasks).keys().cloned().collect();
            let tasks = names.iter().filter_map(|name| shown(server, name, false));
            Ok(Some(json!({"tasks": tasks.collect::<Vec<_>>()})))
        }
        ("tasks/get", false) => task.take().map(Some).ok_or(unknown),
        ("tasks/get", true) => {
            let mut task = task.take().ok_or(unknown)?;
            task["resultType"] = json!("complete");
            if let Some(mut result) = result(server, name) {
                result["resultType"] = json!("complete");
                task["result"] = result;
            }
            Ok(Some(task))
        }
        ("tasks/result", false) => {
            task.take().ok_or(unknown)?;
            loop {
                if let Some(mut result) = result(server, name) {
                    let related = "io.modelcontextprotocol/related-task";
                    result["_meta"] = json!({related: {"taskId": name}});
                    return Ok(Some(result));
                }
                if !exchange.wait(Duration::from_millis(10)) {
                    return Ok(None);
                }
            }
        }
        ("tasks/cancel", modern) => {
            task.take().ok_or(unknown)?;
            if let Some(task) = lock(&server.tasks).get_mut(name)
                && task.status == "working"
            {
                task.status = "cancelled";
                let text = "cancelled before it did anything";
                let content = json!([{"type": "text", "text": text}]);
                task.result = Some(json!({"content": content, "isError": true}));
            }
            if modern {
                return Ok(Some(json!({"resultType": "complete"})));
            }
            Ok(shown(server, name, false))
        }
        ("tasks/update", true) => {
            task.take().ok_or(unknown)?;
            Ok(Some(json!({"resultType": "complete"})))
        }
        _ => Err("no such method of tasks"),
    }
}

fn result(server: &Server, name: &str) -> Option<Value> {
    lock(&server.tasks).get(name)?.result.clone()
}
