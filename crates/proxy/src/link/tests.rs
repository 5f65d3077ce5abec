use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{incoming::SUBSCRIPTION, *};
use crate::{
    scene::{self, Told, Wire},
    wire::Sink as _,
};

struct Scene {
    link: Arc<Link>,
    wire: Arc<Wire>,
    told: Told,
    _folder: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let (proxy, folder) = scene::proxy().await;
        let (client, told) = scene::client();
        let link = Link::new(Arc::clone(proxy.shared()), client);
        let wire = Arc::new(Wire::default());
        link.stands_on(Arc::clone(&wire) as Arc<dyn Transport>);
        Self {
            link,
            wire,
            told,
            _folder: folder,
        }
    }

    async fn forward(&self, ticket: u64, text: &str) {
        let message: Value = serde_json::from_str(text).unwrap();
        let forwarded = Forwarded {
            text: Bytes::copy_from_slice(text.as_bytes()),
            id: Id::from_json(&message["id"].to_string()).unwrap(),
            method: message["method"].as_str().unwrap().to_owned(),
            ticket: Ticket(ticket),
            http: None,
            is_modern: false,
            watch: Watch::Nothing,
            headers: Vec::new(),
            is_reading: false,
        };
        self.link.forward(forwarded).await;
    }

    fn sent(&self) -> Vec<Bytes> {
        self.wire.sent()
    }

    async fn says(&self, message: Value) {
        let text = Bytes::from(message.to_string());
        self.link.message(text, None).await;
    }

    async fn heard(&mut self) -> (Option<Ticket>, Value) {
        self.told.next().await
    }

    fn hears_nothing(&mut self) {
        self.told.is_silent();
    }
}

#[tokio::test]
async fn what_is_not_in_use_passes_byte_for_byte() {
    let scene = Scene::new().await;
    let texts = [
        r#"{ "jsonrpc":"2.0", "id" : 1,"method":"future/thing","params":{"x":1.50e+0,"\u0061":"\u00e4"}}"#,
        r#"{"id":"ä","jsonrpc":"2.0","method":"ping","more":[1,2.0]}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"x","params":{"_meta":{"progressToken":"t","other/key":null}}}"#,
    ];
    for (ticket, text) in (1..).zip(texts) {
        scene.forward(ticket, text).await;
    }
    assert_eq!(
        scene.sent(),
        texts.map(|text| Bytes::from_static(text.as_bytes()))
    );
}

#[tokio::test]
async fn an_id_and_a_token_in_use_are_replaced_and_put_back() {
    let mut scene = Scene::new().await;
    let text =
        r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"_meta":{"progressToken":7},"a":1.0}}"#;
    scene.forward(1, text).await;
    scene.forward(2, text).await;
    let sent = scene.sent();
    assert_eq!(sent[0], text.as_bytes());
    let second: Value = serde_json::from_slice(&sent[1]).unwrap();
    let (id, token) = (&second["id"], &second["params"]["_meta"]["progressToken"]);
    assert!(id.is_string() && token.is_string() && id != token);
    assert!(
        std::str::from_utf8(&sent[1])
            .unwrap()
            .ends_with(r#""a":1.0}}"#)
    );

    let progress = |token: &Value| {
        json!({"jsonrpc": "2.0", "method": "notifications/progress",
               "params": {"progressToken": token, "progress": 1}})
    };
    scene.says(progress(token)).await;
    let (about, heard) = scene.heard().await;
    assert_eq!(
        (about, &heard["params"]["progressToken"]),
        (Some(Ticket(2)), &json!(7))
    );
    scene.says(progress(&json!(7))).await;
    assert_eq!(scene.heard().await.0, Some(Ticket(1)));

    scene
        .says(json!({"jsonrpc": "2.0", "id": id, "result": "second"}))
        .await;
    let (about, heard) = scene.heard().await;
    assert_eq!(
        (about, &heard["id"], &heard["result"]),
        (Some(Ticket(2)), &json!(7), &json!("second"))
    );
    scene
        .says(json!({"jsonrpc": "2.0", "id": 7, "result": "first"}))
        .await;
    assert_eq!(scene.heard().await.0, Some(Ticket(1)));

    // What is over is over: no progress behind the answer, and no second answer.
    scene.says(progress(&json!(7))).await;
    scene
        .says(json!({"jsonrpc": "2.0", "id": 7, "result": "again"}))
        .await;
    scene
        .says(json!({"jsonrpc": "2.0", "id": id, "result": "again"}))
        .await;
    scene.hears_nothing();
}

#[tokio::test]
async fn a_cancel_names_the_request_as_the_upstream_knows_it() {
    let mut scene = Scene::new().await;
    for ticket in 1..=2 {
        scene
            .forward(ticket, r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#)
            .await;
    }
    let replaced: Value = serde_json::from_slice(&scene.sent()[1]).unwrap();
    // The first one is answered; the client cancels the second, under the same id.
    scene
        .says(json!({"jsonrpc": "2.0", "id": 1, "result": 1}))
        .await;
    scene.heard().await;
    let cancel = Bytes::from_static(
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"r"}}"#,
    );
    let id = Id::from_json("1").unwrap();
    assert_eq!(scene.link.cancel(&id, &cancel).await, Some(Ticket(2)));
    let sent: Value = serde_json::from_slice(&scene.sent()[0]).unwrap();
    assert_eq!(
        sent["params"],
        json!({"requestId": replaced["id"], "reason": "r"})
    );
    // Nothing more is said about it.
    scene
        .says(json!({"jsonrpc": "2.0", "id": replaced["id"], "result": 2}))
        .await;
    scene.hears_nothing();
    assert_eq!(scene.link.cancel(&id, &cancel).await, None);
}

#[tokio::test]
async fn a_server_that_ends_leaves_no_request_without_an_answer() {
    let mut scene = Scene::new().await;
    scene
        .forward(1, r#"{"jsonrpc":"2.0","id":"a","method":"x"}"#)
        .await;
    let kind = Kind::Request {
        id: scene.link.fresh_id(),
        method: "y".to_owned(),
        name: None,
    };
    let outbound = scene.link.outbound(Bytes::from_static(b"{}"), kind);
    let link = Arc::clone(&scene.link);
    let asked = tokio::spawn(async move { link.ask(None, None, outbound, None).await });
    while scene.sent().is_empty() || locked(&scene.link.table).waiting.len() < 2 {
        tokio::task::yield_now().await;
    }
    scene.link.closed("it ended");
    let (about, heard) = scene.heard().await;
    assert_eq!((about, &heard["id"]), (Some(Ticket(1)), &json!("a")));
    assert_eq!(heard["error"]["code"], json!(-32003));
    let asked = asked.await.unwrap();
    assert_eq!(asked, Err(Failure::Lost("it ended".to_owned())));
    scene.link.idle().await;
}

#[tokio::test]
async fn field_13_a_server_that_asks_a_client_that_is_gone_gets_an_error() {
    let mut scene = Scene::new().await;
    let asks = json!({"jsonrpc": "2.0", "id": 3, "method": "elicitation/create", "params": {}});
    scene.says(asks.clone()).await;
    assert_eq!(scene.heard().await.1, asks);
    scene.link.alone();
    scene.says(asks).await;
    let sent: Value = serde_json::from_slice(&scene.sent()[0]).unwrap();
    assert_eq!(
        (&sent["id"], &sent["error"]["code"]),
        (&json!(3), &json!(-32003))
    );
    scene.hears_nothing();
}

#[tokio::test]
async fn a_late_answer_is_not_taken_for_the_one_to_the_next_request_of_that_id() {
    let mut scene = Scene::new().await;
    let request =
        r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":"t"}}}"#;
    scene.forward(1, request).await;
    scene.link.cancel_ticket(Ticket(1)).await;
    let id = Id::from_json("1").unwrap();
    let cancel = cancelled(&id);
    assert_eq!(scene.link.cancel(&id, &cancel).await, Some(Ticket(1)));
    scene.sent();
    // Another client of the session, or the same one started again.
    scene.forward(2, request).await;
    let sent: Value = serde_json::from_slice(&scene.sent()[0]).unwrap();
    assert_ne!(sent["id"], json!(1));
    let late = json!({"jsonrpc": "2.0", "id": 1, "result": "of the first"});
    scene.says(late).await;
    scene.hears_nothing();
    let late = json!({"jsonrpc": "2.0", "method": "notifications/progress",
                      "params": {"progressToken": "t", "progress": 1}});
    scene.says(late).await;
    scene.hears_nothing();
    scene
        .says(json!({"jsonrpc": "2.0", "id": sent["id"], "result": "of the second"}))
        .await;
    let (about, heard) = scene.heard().await;
    assert_eq!((about, &heard["id"]), (Some(Ticket(2)), &json!(1)));
    assert_eq!(heard["result"], json!("of the second"));
}

#[tokio::test]
async fn two_calls_under_one_id_at_once_are_told_apart_before_either_is_sent() {
    let scene = Scene::new().await;
    let id = Id::from_json("1").unwrap();
    let (first, first_token) = scene.link.name_for(&id, Some("1"));
    let (second, second_token) = scene.link.name_for(&id, Some("1"));
    assert_ne!(first, second);
    assert_ne!(
        first_token.unwrap().upstream,
        second_token.unwrap().upstream
    );
}

#[tokio::test]
async fn an_id_that_a_server_spells_in_another_way_is_put_back() {
    let mut scene = Scene::new().await;
    scene
        .forward(1, r#"{"jsonrpc":"2.0","id":"é/1","method":"x"}"#)
        .await;
    let text = r#"{"jsonrpc":"2.0","id":"\u00e9\/1","result":1.0}"#;
    scene.link.message(Bytes::from(text), None).await;
    assert_eq!(
        scene.heard().await,
        (
            Some(Ticket(1)),
            json!({"jsonrpc": "2.0", "id": "é/1", "result": 1.0})
        )
    );
    // One that the client spells so itself does not go on like that.
    let id = Id::from_json(r#""a\/b""#).unwrap();
    assert!(!scene.link.name_for(&id, None).0.as_str().contains('/'));
}

#[tokio::test]
async fn what_a_subscription_brings_reaches_who_subscribed() {
    let mut scene = Scene::new().await;
    // Two clients of a session, under the same id.
    for ticket in [1, 2] {
        let forwarded = Forwarded {
            text: Bytes::from_static(
                br#"{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}"#,
            ),
            id: Id::from_json("1").unwrap(),
            method: "subscriptions/listen".to_owned(),
            ticket: Ticket(ticket),
            http: None,
            is_modern: true,
            watch: Watch::Standing,
            headers: Vec::new(),
            is_reading: false,
        };
        scene.link.forward(forwarded).await;
    }
    let second: Value = serde_json::from_slice(&scene.sent()[1]).unwrap();
    let news = |subscription: &Value| {
        json!({
            "jsonrpc": "2.0",
            "method": "notifications/tools/list_changed",
            "params": {"_meta": {SUBSCRIPTION: subscription}},
        })
    };
    scene.says(news(&second["id"])).await;
    assert_eq!(scene.heard().await, (Some(Ticket(2)), news(&json!(1))));
    scene.says(news(&json!(1))).await;
    assert_eq!(scene.heard().await, (Some(Ticket(1)), news(&json!(1))));
    let over = |id: &Value| {
        let meta = json!({SUBSCRIPTION: id});
        json!({"jsonrpc": "2.0", "id": id, "result": {"_meta": meta}})
    };
    for (id, ticket) in [(&second["id"], 2), (&json!(1), 1)] {
        scene.says(over(id)).await;
        let heard = scene.heard().await;
        assert_eq!(heard, (Some(Ticket(ticket)), over(&json!(1))));
        // Nobody else asked for what comes after the end.
        scene.says(news(id)).await;
        scene.hears_nothing();
    }
}

#[tokio::test]
async fn a_subscription_does_not_hold_up_the_end() {
    let scene = Scene::new().await;
    let forwarded = Forwarded {
        text: Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}"#),
        id: Id::from_json("1").unwrap(),
        method: "subscriptions/listen".to_owned(),
        ticket: Ticket(1),
        http: None,
        is_modern: true,
        watch: Watch::Standing,
        headers: Vec::new(),
        is_reading: false,
    };
    scene.link.forward(forwarded).await;
    scene
        .forward(2, r#"{"jsonrpc":"2.0","id":2,"method":"x"}"#)
        .await;
    let idle = scene.link.idle();
    tokio::pin!(idle);
    assert_eq!(idle.as_mut().now_or_never(), None);
    scene
        .says(json!({"jsonrpc": "2.0", "id": 2, "result": 1}))
        .await;
    idle.await;
}

#[tokio::test]
async fn what_has_ended_is_not_started_again() {
    let mut scene = Scene::new().await;
    scene.link.closed("it ended");
    // The answer to what it asked is nobody's.
    let answer = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    scene.link.post(answer, Kind::Response, None).await;
    assert!(scene.link.starts.lock().await.is_empty());
    scene.link.close().await;
    scene
        .forward(1, r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#)
        .await;
    let told = scene.heard().await.1;
    assert!(told.to_string().contains("the proxy has ended"), "{told}");
    assert!(scene.link.starts.lock().await.is_empty());
}

#[tokio::test]
async fn nothing_is_said_to_a_server_that_was_started_again_before_its_handshake() {
    let mut scene = Scene::new().await;
    let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"x":1.0}}"#;
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    scene.link.opened(Bytes::from(initialize));
    scene.link.handshake_answered(true);
    scene.link.initialized(Bytes::from(initialized));
    scene.link.is_ready.store(false, Ordering::Release);
    let both = async {
        tokio::join!(
            scene.forward(1, r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#),
            scene.forward(2, r#"{"jsonrpc":"2.0","id":2,"method":"x"}"#),
        );
    };
    let server = async {
        let id = loop {
            if let Some(text) = scene.sent().pop() {
                let sent: Value = serde_json::from_slice(&text).unwrap();
                assert_eq!(sent["method"], json!("initialize"));
                break sent["id"].clone();
            }
            tokio::task::yield_now().await;
        };
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(scene.sent(), Vec::<Bytes>::new());
        scene
            .says(json!({"jsonrpc": "2.0", "id": id, "result": {"protocolVersion": "2025-11-25"}}))
            .await;
    };
    tokio::join!(both, server);
    let sent: Vec<Value> = scene
        .sent()
        .iter()
        .map(|text| serde_json::from_slice(text).unwrap())
        .collect();
    let methods: Vec<&Value> = sent.iter().map(|message| &message["method"]).collect();
    assert_eq!(methods, ["notifications/initialized", "x", "x"]);
    scene.hears_nothing();
}

#[tokio::test]
async fn a_handshake_that_fails_holds_nothing_up_and_is_not_repeated() {
    let mut scene = Scene::new().await;
    let text = Bytes::from_static(br#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#);
    let over = scene.link.opened(text.clone());
    let forwarded = Forwarded {
        text,
        id: Id::from_json("0").unwrap(),
        method: "initialize".to_owned(),
        ticket: Ticket(1),
        http: None,
        is_modern: false,
        watch: Watch::Initialize,
        headers: Vec::new(),
        is_reading: false,
    };
    scene.link.forward(forwarded).await;
    scene.sent();
    assert!(!over.is_cancelled());
    let id = Id::from_json("0").unwrap();
    scene.link.failed(&id, Failure::Lost("cut".to_owned()));
    assert!(over.is_cancelled());
    scene.heard().await;
    scene.link.is_ready.store(false, Ordering::Release);
    let next = r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#;
    scene.forward(2, next).await;
    assert_eq!(scene.sent(), [Bytes::from(next)]);
}

#[tokio::test]
async fn a_list_that_cannot_be_had_is_waited_for_once() {
    let scene = Scene::new().await;
    let lists = async { tokio::join!(scene.link.learn_tools(None), scene.link.learn_tools(None)) };
    let server = async {
        let id = loop {
            if let Some(text) = scene.sent().pop() {
                break serde_json::from_slice::<Value>(&text).unwrap()["id"].clone();
            }
            tokio::task::yield_now().await;
        };
        let error = json!({"code": -32601, "message": "no tools"});
        scene
            .says(json!({"jsonrpc": "2.0", "id": id, "error": error}))
            .await;
    };
    let ((first, second), ()) = tokio::join!(lists, server);
    assert!(first.is_err() && second.is_err());
    assert_eq!(scene.sent(), Vec::<Bytes>::new());
}
