//! Calls that become tasks, for clients that know of tasks. Where one stands is read off the clock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, CreateTaskResult, DetailedTask,
    ErrorData, GetTaskResult, InputResponses, JsonObject, Task, TaskPayload,
};
use serde_json::{Map, Value, json};

use crate::calls::said;
use crate::json::{text, typed};
use crate::rounds;

const NAMING: &str = "naming:60fe2d19";

/// What a task does.
enum Kind {
    /// It takes so long and says this.
    Says(Duration, String),
    /// The tool fails after that.
    Fails(Duration),
    /// The call breaks after that.
    Breaks(Duration),
    /// It wants these first, by key.
    Wants(Map<String, Value>),
}

struct Job {
    kind: Kind,
    begun: Instant,
    made: String,
    cancelled: bool,
}

/// The tasks of this process.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<HashMap<String, Job>>);

impl Tasks {
    /// The answer of a tool of this kind; `None` if there is no such tool here.
    pub(crate) async fn call(
        &self,
        request: &CallToolRequestParams,
        capabilities: Option<&ClientCapabilities>,
    ) -> Option<Result<CallToolResponse, ErrorData>> {
        let argument = |name: &str| {
            let found = request.arguments.as_ref().and_then(|all| all.get(name));
            found.cloned().unwrap_or_default()
        };
        let second = Duration::from_secs(1);
        let kind = match request.name.as_ref() {
            "slow_compute" => {
                let seconds = argument("seconds").as_f64().unwrap_or(1.0);
                let long = Duration::try_from_secs_f64(seconds).unwrap_or(second);
                Kind::Says(long, format!("computed for {seconds} s"))
            }
            "failing_job" => Kind::Fails(second),
            "protocol_error_job" => Kind::Breaks(second / 5),
            "confirm_delete" => {
                let question = format!("Delete {}?", argument("filename"));
                Kind::Wants(wants(&[("confirmation", &question)]))
            }
            "multi_input" => Kind::Wants(wants(&[("one", "The first?"), ("two", "The second?")])),
            "test_tool_with_task" => Kind::Says(second / 5, String::new()),
            _ => return None,
        };
        if !capabilities.is_some_and(ClientCapabilities::supports_tasks) {
            if let Kind::Says(long, what) = &kind
                && !what.is_empty()
            {
                tokio::time::sleep(*long).await;
                return Some(Ok(said(what)));
            }
            let needed = ClientCapabilities::builder().enable_tasks().build();
            return Some(Err(ErrorData::missing_required_client_capability(needed)));
        }
        if request.name != "test_tool_with_task" {
            return Some(Ok(self.begin(kind)));
        }
        let name = rounds::answer(request.input_responses.as_ref(), "user_name", "name");
        Some(Ok(match (name, request.request_state.as_deref()) {
            (Some(name), Some(NAMING)) => {
                self.begin(Kind::Says(second / 5, format!("Hello, {name}!")))
            }
            (Some(_) | None, _) => {
                CallToolResponse::InputRequired(rounds::name_wanted(Some(NAMING)))
            }
        }))
    }

    pub(crate) fn get(&self, id: &str) -> Result<GetTaskResult, ErrorData> {
        let jobs = self.jobs();
        let job = jobs.get(id).ok_or_else(unknown)?;
        let task = DetailedTask::new(job.task(id), job.payload());
        Ok(GetTaskResult::new(task))
    }

    pub(crate) fn update(&self, id: &str, responses: &InputResponses) -> Result<(), ErrorData> {
        let mut jobs = self.jobs();
        let job = jobs.get_mut(id).ok_or_else(unknown)?;
        if let Kind::Wants(wanted) = &mut job.kind {
            wanted.retain(|key, _| !responses.contains_key(key));
        }
        Ok(())
    }

    pub(crate) fn cancel(&self, id: &str) -> Result<(), ErrorData> {
        let mut jobs = self.jobs();
        let job = jobs.get_mut(id).ok_or_else(unknown)?;
        if !job.payload().status().is_terminal() {
            job.cancelled = true;
        }
        Ok(())
    }

    fn begin(&self, kind: Kind) -> CallToolResponse {
        let mut jobs = self.jobs();
        // The process is in it: two of them have no task in common.
        let id = format!("task-{}-{}", std::process::id(), jobs.len() + 1);
        let job = Job {
            kind,
            begun: Instant::now(),
            made: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            cancelled: false,
        };
        let mut task = job.task(&id);
        task.status = job.payload().status();
        jobs.insert(id, job);
        CallToolResponse::Task(CreateTaskResult::new(task))
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn task(&self, id: &str) -> Task {
        let status = self.payload().status();
        Task::new(id, status, &self.made, &self.made)
            .with_ttl_ms(600_000)
            .with_poll_interval_ms(100)
    }

    fn payload(&self) -> TaskPayload {
        let object = |value: Value| -> JsonObject { typed(value) };
        if self.cancelled {
            return TaskPayload::Cancelled;
        }
        let is_over = |after: &Duration| self.begun.elapsed() >= *after;
        match &self.kind {
            Kind::Says(after, _) | Kind::Fails(after) | Kind::Breaks(after) if !is_over(after) => {
                TaskPayload::Working
            }
            Kind::Says(_, what) => TaskPayload::Completed {
                result: object(json!({"content": [text(what)], "isError": false})),
            },
            Kind::Fails(_) => TaskPayload::Completed {
                result: object(json!({"content": [text("the job failed")], "isError": true})),
            },
            Kind::Breaks(_) => TaskPayload::Failed {
                error: object(json!({"code": -32603, "message": "the job broke"})),
            },
            Kind::Wants(wanted) if wanted.is_empty() => TaskPayload::Completed {
                result: object(json!({"content": [text("confirmed")], "isError": false})),
            },
            Kind::Wants(wanted) => TaskPayload::InputRequired {
                input_requests: typed(Value::Object(wanted.clone())),
            },
        }
    }
}

fn wants(questions: &[(&str, &str)]) -> Map<String, Value> {
    let question = |(key, message): &(&str, &str)| {
        let question = rounds::question(message, "confirm", "boolean");
        ((*key).to_owned(), question)
    };
    questions.iter().map(question).collect()
}

fn unknown() -> ErrorData {
    ErrorData::invalid_params("there is no such task", None)
}
