use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Tells the client how far a call is. Says nothing if the client did not ask, has gone, or does
/// not keep up: progress is never waited for.
#[derive(Clone, Default)]
pub struct Progress {
    to: Option<(Value, mpsc::Sender<Bytes>)>,
}

impl Progress {
    pub(crate) fn new(token: Value, to: mpsc::Sender<Bytes>) -> Self {
        Self {
            to: Some((token, to)),
        }
    }

    /// `done` of `total` is done. `done` must rise from one time to the next.
    pub fn tell(&self, done: f64, total: Option<f64>, message: Option<&str>) {
        let Some((token, to)) = &self.to else {
            return;
        };
        let mut params = json!({"progressToken": token, "progress": done});
        if let Some(total) = total {
            params["total"] = json!(total);
        }
        if let Some(message) = message {
            params["message"] = json!(message);
        }
        let notification =
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        let _ = to.try_send(Bytes::from(notification.to_string()));
    }
}
