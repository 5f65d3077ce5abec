//! One `tools/call`, and what goes wrong with it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::message::Message;
use crate::server::{Server, changed, headers, knows_tasks, lock};
use crate::tasks;
use crate::tools;

/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(3600);
/// Notifications of a flood.
const FLOOD: usize = 5000;
/// Bytes that are no message.
const GARBAGE: &[u8] = b"\xff\xfe this {is no} message";

struct Call<'a> {
    server: &'a Arc<Server>,
    message: &'a Message,
    modern: bool,
    tool: &'a str,
    id: &'a str,
    arguments: &'a Value,
}

/// What a tool says.
enum Said {
    /// The members of a result, as JSON text without the braces.
    Members(String),
    /// A whole result.
    Result(String),
    Error(i64, &'static str),
    /// Nothing: the client is gone.
    Nothing,
}

pub(crate) fn run(
    server: &Arc<Server>,
    exchange: &mut dyn Exchange,
    message: &Message,
    modern: bool,
) {
    let arguments = &message.params["arguments"];
    let call = Call {
        server,
        message,
        modern,
        tool: message.params["name"].as_str().unwrap_or_default(),
        id: arguments["id"].as_str().unwrap_or_default(),
        arguments,
    };
    let fault = match call.begin() {
        Ok(fault) => fault,
        Err(why) => {
            exchange.answer(message.error(-32602, &why).as_bytes());
            return;
        }
    };
    let hold = || {
        let time = arguments["hold"].as_u64().unwrap_or(0);
        std::thread::sleep(Duration::from_millis(time));
    };
    match fault {
        Some(fault) if !fault.after() => {
            hold();
            call.fail(exchange, &fault, &Said::Members(String::new()));
        }
        fault => {
            let said = call.work(exchange, fault.as_ref());
            hold();
            match fault {
                Some(fault) => call.fail(exchange, &fault, &said),
                None => call.say(exchange, &said),
            }
        }
    }
    let id = message.id.clone().unwrap_or_default();
    *lock(&server.last) = id;
}

impl Server {
    /// Does what a tool is for: writes it down. How many effects there are then.
    pub(crate) fn effect(&self, tool: &str, id: &str, key: Option<&str>) -> usize {
        let _one = lock(&self.writing);
        let mut line = json!({"kind": "effect", "tool": tool, "id": id});
        if let Some(key) = key {
            line["key"] = json!(key);
        }
        self.ledger.add(&line);
        self.ledger.all_effects()
    }
}

impl Call<'_> {
    /// Writes the call down; what shall go wrong with it.
    fn begin(&self) -> Result<Option<Fault>, String> {
        if !tools::is_known(self.tool) {
            return Err(format!("no such tool: {}", self.tool));
        }
        let (name, once) = self.plan();
        let _one = lock(&self.server.writing);
        let ledger = &self.server.ledger;
        let mut earlier = ledger.about("call", self.tool, self.id).into_iter();
        let spent = once && earlier.any(|call| call.field("fault") == name.as_str());
        let name = if spent { String::new() } else { name };
        let mut line = json!({
            "kind": "call", "tool": self.tool, "id": self.id,
            "fault": name, "modern": self.modern, "text": self.message.text,
        });
        if !self.message.headers.is_empty() {
            line["headers"] = headers(self.message);
        }
        ledger.add(&line);
        if let Some(name) = tools::unexpected(self.tool, self.arguments) {
            return Err(format!("{} has no argument {name}", self.tool));
        }
        if name.is_empty() {
            return Ok(None);
        }
        match Fault::read(&name) {
            Some(fault) => Ok(Some(fault)),
            None => Err(format!("no such fault: {name}")),
        }
    }

    /// The fault of the arguments, else of the control file, and whether it is only for once.
    fn plan(&self) -> (String, bool) {
        let of = |plan: &Value| {
            let name = plan["fault"].as_str()?.to_owned();
            Some((name, plan["once"] == true))
        };
        let control = || {
            let text = std::fs::read_to_string(self.server.options.control.as_ref()?).ok()?;
            let control: Value = serde_json::from_str(&text).ok()?;
            of(&control[self.tool]).or_else(|| of(&control["*"]))
        };
        of(self.arguments).or_else(control).unwrap_or_default()
    }

    fn work(&self, exchange: &mut dyn Exchange, fault: Option<&Fault>) -> Said {
        let text = |text: &str| Said::Members(format!(r#""content":[{}]"#, block(text)));
        let number = |name: &str| self.arguments[name].as_u64().unwrap_or(0);
        match self.tool {
            "append" | "deploy" => self.effect(fault),
            "pay" => self.pay(),
            "slow" => {
                if !exchange.wait(Duration::from_millis(number("ms"))) {
                    return self.cancelled();
                }
                self.effect(fault)
            }
            "progress" => {
                let token = &self.message.params["_meta"]["progressToken"];
                for step in 1..=number("steps") {
                    if !token.is_null() {
                        let told = json!({
                            "jsonrpc": "2.0", "method": "notifications/progress",
                            "params": {"progressToken": token, "progress": step},
                        });
                        exchange.tell(told.to_string().as_bytes());
                    }
                    if !exchange.wait(Duration::from_millis(number("ms"))) {
                        return self.cancelled();
                    }
                }
                self.effect(fault)
            }
            "ask" => self.ask(exchange, fault),
            "task" => self.task(fault),
            "query" => text(&self.server.ledger.all_effects().to_string()),
            "read" => {
                let entries = self.server.ledger.entries();
                let effects = entries.iter().filter(|entry| entry.kind() == "effect");
                let shown = |entry: &crate::Entry| json!({"tool": entry.field("tool"), "id": entry.field("id")});
                let effects: Vec<Value> = effects.map(shown).collect();
                text(&json!(effects).to_string())
            }
            "count" => {
                let entries = self.server.ledger.entries();
                let happened = entries
                    .iter()
                    .any(|entry| entry.kind() == "effect" && entry.field("id") == self.id);
                text(&match happened {
                    true => format!("{} happened", self.id),
                    false => "nothing of that kind".to_owned(),
                })
            }
            "echo" => text(&self.message.text),
            "notify" => {
                let told = match self.message.headers.is_empty() && !self.modern {
                    true => {
                        exchange.tell(changed(None).as_bytes());
                        1
                    }
                    false => self.server.announce(),
                };
                text(&format!("told {told}"))
            }
            _ => Said::Error(-32602, "no such tool"),
        }
    }

    /// The effect of a plain tool. The result has an unknown member and a number that is spelled
    /// as nobody would write it, so that it shows who passes it on as it is.
    fn effect(&self, fault: Option<&Fault>) -> Said {
        let number = self.server.effect(self.tool, self.id, None);
        let mut text = format!("{} {}: effect {number}", self.tool, self.id);
        if let Some(Fault::Big(bytes)) = fault {
            text.extend(std::iter::repeat_n('x', *bytes));
        }
        Said::Members(format!(
            r#""content":[{}],"structuredContent":{{"id":{},"number":{number}}},"xUnknown":1.50e+0"#,
            block(&text),
            json!(self.id),
        ))
    }

    /// A provider that honours keys: one payment each.
    fn pay(&self) -> Said {
        let key = self.arguments["idempotency_key"].as_str();
        let key = key.or_else(|| self.message.header("idempotency-key"));
        let known = key.is_some_and(|key| {
            let entries = self.server.ledger.entries();
            let mut paid = entries.iter().filter(|entry| entry.kind() == "effect");
            paid.any(|entry| entry.field("key") == key)
        });
        if !known {
            self.server.effect(self.tool, self.id, key);
        }
        Said::Members(format!(
            r#""content":[{}]"#,
            block(&format!("paid {}", self.id))
        ))
    }

    fn ask(&self, exchange: &mut dyn Exchange, fault: Option<&Fault>) -> Said {
        let question = json!({
            "message": format!("May {} be done?", self.id),
            "requestedSchema": {
                "type": "object",
                "properties": {"yes": {"type": "boolean"}},
                "required": ["yes"],
            },
        });
        if self.modern {
            let answers = &self.message.params["inputResponses"]["may"];
            if answers.is_null() {
                let mut params = question;
                params["mode"] = json!("form");
                let request = json!({"method": "elicitation/create", "params": params});
                let result = json!({
                    "resultType": "input_required",
                    "inputRequests": {"may": request},
                    "requestState": format!("state of {}", self.id),
                });
                return Said::Result(result.to_string());
            }
            if self.message.params["requestState"] != format!("state of {}", self.id) {
                return Said::Error(-32602, "the request state is another one's");
            }
            if answers["action"] != "accept" {
                return Said::Members(refused("not allowed"));
            }
            return self.effect(fault);
        }
        match self.server.ask(exchange, "elicitation/create", &question) {
            None => self.cancelled(),
            Some(answer) if answer["result"]["action"] == "accept" => self.effect(fault),
            Some(_) => Said::Members(refused("not allowed")),
        }
    }

    fn task(&self, fault: Option<&Fault>) -> Said {
        let takes = Duration::from_millis(self.arguments["ms"].as_u64().unwrap_or(0));
        let asked = match self.modern {
            true => knows_tasks(self.message),
            false => self.message.params["task"].is_object(),
        };
        if !asked {
            return self.effect(fault);
        }
        let name = tasks::begin(self.server, self.tool, self.id, takes);
        let Some(mut shown) = tasks::shown(self.server, &name, self.modern) else {
            return Said::Error(-32603, "the task is gone");
        };
        if self.modern {
            shown["resultType"] = json!("task");
            return Said::Result(shown.to_string());
        }
        Said::Result(json!({"task": shown}).to_string())
    }

    fn cancelled(&self) -> Said {
        let line = json!({"kind": "cancelled", "tool": self.tool, "id": self.id});
        self.server.ledger.add(&line);
        Said::Nothing
    }

    /// The answer's text.
    fn answer(&self, said: &Said) -> Option<String> {
        Some(match said {
            Said::Members(members) if self.modern => {
                let result = format!(r#"{{"resultType":"complete",{members}}}"#);
                self.message.result(&result)
            }
            Said::Members(members) => self.message.result(&format!("{{{members}}}")),
            Said::Result(result) => self.message.result(result),
            Said::Error(code, why) => self.message.error(*code, why),
            Said::Nothing => return None,
        })
    }

    fn say(&self, exchange: &mut dyn Exchange, said: &Said) {
        if let Some(answer) = self.answer(said) {
            exchange.answer(answer.as_bytes());
        }
    }

    fn fail(&self, exchange: &mut dyn Exchange, fault: &Fault, said: &Said) {
        let Some(answer) = self.answer(said) else {
            return;
        };
        let answer = answer.as_bytes();
        let error = |code, why: &str| self.message.error(code, why);
        match fault {
            // As a crash would: nothing is flushed, nothing is said.
            Fault::Die { .. } => std::process::abort(),
            Fault::Never { .. } => {
                exchange.wait(FOR_EVER);
            }
            Fault::Late(time) => {
                if exchange.wait(*time) {
                    exchange.answer(answer);
                }
            }
            Fault::Twice => {
                exchange.stream();
                exchange.answer(answer);
                exchange.answer(answer);
            }
            Fault::Half => exchange.cut(&answer[..answer.len() / 2]),
            Fault::Torn => exchange.torn(answer),
            Fault::Cut { .. } => exchange.cut(&[]),
            Fault::Status { code, .. } => {
                if !exchange.status(*code, &[], "something else answers here") {
                    let why = format!("the service answered {code}");
                    exchange.answer(error(-32000, &why).as_bytes());
                }
            }
            Fault::Unauthorized => {
                let how = [("WWW-Authenticate", "Bearer")];
                if !exchange.status(401, &how, "who are you") {
                    exchange.answer(error(-32000, "not authorized").as_bytes());
                }
            }
            Fault::Redirect => {
                if !exchange.status(307, &[("Location", "/mcp?again=1")], "") {
                    exchange.answer(error(-32000, "moved").as_bytes());
                }
            }
            Fault::Error { code, .. } => exchange.answer(error(*code, "told to fail").as_bytes()),
            Fault::IsError { .. } => {
                self.say(exchange, &Said::Members(refused("told to fail")));
            }
            Fault::Flood => {
                for number in 0..FLOOD {
                    let filler = "f".repeat(200);
                    let told = json!({
                        "jsonrpc": "2.0", "method": "notifications/message",
                        "params": {"level": "info", "data": {"number": number, "filler": filler}},
                    });
                    exchange.tell(told.to_string().as_bytes());
                }
                exchange.answer(answer);
            }
            Fault::ReuseId => {
                let id = self.message.id.as_deref().unwrap_or("null");
                let asked = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
                exchange.tell(asked.as_bytes());
                exchange.answer(answer);
            }
            Fault::StaleId => {
                let last = lock(&self.server.last).clone();
                let wrong = r#"{"content":[{"type":"text","text":"stale"}]}"#;
                let stale = format!(r#"{{"jsonrpc":"2.0","id":{last},"result":{wrong}}}"#);
                exchange.tell(stale.as_bytes());
                exchange.answer(answer);
            }
            Fault::WrongId => {
                let wrong = r#"{"content":[{"type":"text","text":"under a wrong id"}]}"#;
                let text = format!(r#"{{"jsonrpc":"2.0","id":"nobody","result":{wrong}}}"#);
                exchange.answer(text.as_bytes());
            }
            Fault::Garbage => exchange.answer(GARBAGE),
            Fault::Noise => {
                let nonsense: [&[u8]; 4] =
                    [GARBAGE, br#"{"jsonrpc":"2.0"}"#, b"[]", br#"{"id":5}"#];
                for bytes in nonsense {
                    exchange.tell(bytes);
                }
                exchange.answer(answer);
            }
            Fault::Big(_) => exchange.answer(answer),
        }
    }
}

fn block(text: &str) -> String {
    json!({"type": "text", "text": text}).to_string()
}

fn refused(why: &str) -> String {
    format!(r#""content":[{}],"isError":true"#, block(why))
}
