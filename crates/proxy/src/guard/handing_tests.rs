//! A client may have read an answer before the proxy notes that it was written.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use counterfoil_core::PrincipalId;
use counterfoil_store::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::{
    front::Conversation as _,
    keyless::Channel,
    scene::{self, Wire},
    session::{Incoming, Session},
    wire::{Client, Handed, Sink as _, Ticket, Transport},
};

/// Longer than a call takes to be judged.
const JUDGED: Duration = Duration::from_millis(150);

/// Hears an answer at once; that it was written is said later.
struct Slow {
    heard: mpsc::UnboundedSender<Value>,
    written: Notify,
}

impl Client for Slow {
    fn tell(&self, _about: Option<Ticket>, _text: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn answer(&self, _ticket: Ticket, text: Bytes) -> BoxFuture<'_, Handed> {
        let _ = self.heard.send(serde_json::from_slice(&text).unwrap());
        Box::pin(async {
            self.written.notified().await;
            Handed::Over
        })
    }

    fn silence(&self, _ticket: Ticket) {}
}

async fn says(session: &Arc<Session>, ticket: u64, message: Value) {
    let incoming = Incoming {
        text: Bytes::from(message.to_string()),
        ticket: Ticket(ticket),
        channel: Channel([1; 16]),
        http: None,
    };
    session.receive(incoming).await;
}

/// The id of the next thing that the server is sent.
async fn sent(wire: &Wire) -> Value {
    for _ in 0..5_000 {
        if let Some(text) = wire.sent().pop() {
            let sent: Value = serde_json::from_slice(&text).unwrap();
            return sent["id"].clone();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("nothing was sent");
}

#[tokio::test]
async fn i5_field_11_a_repeat_right_after_an_attached_answer_is_on_purpose() {
    let (proxy, _folder) = scene::proxy().await;
    let (tell, mut heard) = mpsc::unbounded_channel();
    let client = Arc::new(Slow {
        heard: tell,
        written: Notify::new(),
    });
    let principal = PrincipalId::new("local").unwrap();
    let session = Session::open(
        proxy.shared(),
        principal,
        Arc::clone(&client) as Arc<dyn Client>,
    );
    let wire = Arc::new(Wire::default());
    session
        .link
        .stands_on(Arc::clone(&wire) as Arc<dyn Transport>);
    let call = |id: u64| {
        json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "write", "arguments": {}},
        })
    };
    let answers = |id: &Value, result: Value| {
        Bytes::from(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    };

    let list = json!({"jsonrpc": "2.0", "id": 0, "method": "tools/list"});
    says(&session, 1, list).await;
    let id = sent(&wire).await;
    let tool = json!({
        "name": "write", "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": false},
    });
    let tools = answers(&id, json!({"tools": [tool]}));
    let (listed, ()) = tokio::join!(heard.recv(), async {
        client.written.notify_one();
        session.link.message(tools, None).await;
    });
    assert!(listed.unwrap()["result"].is_object());

    // The first answer is lost, and attached to the second call.
    says(&session, 2, call(1)).await;
    let id = sent(&wire).await;
    let cancelled = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1},
    });
    says(&session, 3, cancelled).await;
    let done = answers(&id, json!({"content": []}));
    session.link.message(done, None).await;
    says(&session, 4, call(2)).await;
    let attached = heard.recv().await.unwrap();
    let attached = &attached["result"]["_meta"]["dev.counterfoil/attached"];
    assert_eq!(attached, &json!(true));

    // It is read, and the client says it once more before it is noted that it was written.
    says(&session, 5, call(3)).await;
    tokio::time::sleep(JUDGED).await;
    assert!(wire.sent().is_empty() && heard.try_recv().is_err());
    client.written.notify_one();
    assert_eq!(sent(&wire).await, json!(3), "it runs");
}
