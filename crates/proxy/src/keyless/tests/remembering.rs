//! What is written, kept and let go of; and the rounds of a call.

use std::{sync::Arc, time::Duration};

use counterfoil_core::{Event, Key};
use counterfoil_engine::Engine;
use counterfoil_store::read;

use super::scene::{Process, Scene, at, call, channel, complete, succeed};
use crate::{
    keyless::{Deliveries, Inner},
    settings::{Settings, Target},
};

fn held(inner: &Inner) -> usize {
    inner.remember(|memory| memory.len())
}

async fn rows(process: &Process) -> usize {
    read(&*process.store, |sql| {
        Box::pin(async move {
            let rows = sql
                .query("SELECT serial FROM proxy_deliveries", &[])
                .await?;
            Ok(rows.len())
        })
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn what_is_settled_and_written_is_not_held() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.finish(&call(1, 1), at(0)).await;
    let second = process.finish(&call(2, 1), at(0)).await;
    let third = process.finish(&call(3, 2), at(0)).await;
    first.delivery.handed(at(10));
    second.delivery.undelivered(at(10));
    third.delivery.handed(at(10));
    process.deliveries.flush().await.unwrap();
    assert_eq!(held(&process.deliveries.inner), 2, "two wait for a message");
    process.deliveries.heard(channel(3), at(20));
    process.deliveries.heard(channel(1), at(20));
    process.deliveries.closed(channel(2));
    process.deliveries.flush().await.unwrap();
    assert_eq!(held(&process.deliveries.inner), 0);
    assert_eq!(rows(&process).await, 3);
    // What is said of it afterwards still counts.
    second.delivery.handed(at(30));
    process.deliveries.flush().await.unwrap();
    process.pair(&call(2, 1), at(1_000)).await.must_ask(&second);
    assert_eq!(held(&process.deliveries.inner), 0);
}

#[tokio::test]
async fn a_message_from_before_the_flush_proves_nothing() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.finish(&call(1, 1), at(0)).await;
    first.delivery.handed(at(10));
    process.deliveries.heard(channel(1), at(9));
    process.pair(&call(1, 2), at(11)).await.must_ask(&first);
    process.deliveries.heard(channel(1), at(12));
    process.pair(&call(1, 2), at(13)).await.must_run(2);
}

#[tokio::test]
async fn it_writes_by_itself_soon_and_evidence_at_once() {
    let scene = Scene::new();
    let engine = Engine::new(Arc::clone(&scene.store));
    let settings = Settings::new(Target::Url {
        url: "http://localhost/".to_owned(),
        headers: Vec::new(),
    });
    let deliveries = Deliveries::open(&engine, &settings).await.unwrap();
    let process = Process {
        store: Arc::clone(&scene.store),
        deliveries,
    };
    let first = process.finish(&call(1, 1), at(0)).await;
    first.delivery.undelivered(at(10));
    let second = process.finish(&call(2, 1), at(0)).await;
    second.delivery.handed(at(10));
    process.deliveries.heard(channel(1), at(20));
    let written = async {
        while held(&process.deliveries.inner) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), written)
        .await
        .unwrap();
    assert_eq!(rows(&process).await, 2);
    // Nothing keeps them alive once they are dropped.
    let inner = Arc::downgrade(&process.deliveries.inner);
    drop((process, first, second));
    let ended = async {
        while inner.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), ended)
        .await
        .unwrap();
}

#[tokio::test]
async fn i5_pruning_keeps_what_is_asked_about_and_the_numbers() {
    let scene = Scene::new();
    let process = scene.process().await;
    let day = 24 * 3_600_000;
    for (digest, on) in [(1, 1), (1, 1), (2, 1)] {
        let ran = process.finish(&call(digest, on), at(0)).await;
        ran.delivery.handed(at(1));
        process.deliveries.heard(channel(1), at(2));
    }
    let fresh = process.finish(&call(3, 1), at(day)).await;
    fresh.delivery.undelivered(at(day));
    process.deliveries.flush().await.unwrap();
    assert_eq!(process.deliveries.prune(at(day)).await.unwrap(), 0);
    let later = at(day + 2 * 3_600_000);
    assert_eq!(process.deliveries.prune(later).await.unwrap(), 1);
    assert_eq!(process.deliveries.prune(later).await.unwrap(), 0);
    assert_eq!(rows(&process).await, 3);
    let process = scene.process().await;
    process.pair(&call(1, 1), later).await.must_run(3);
    process.pair(&call(3, 1), later).await.must_ask(&fresh);
    let much_later = at(40 * day);
    assert_eq!(process.deliveries.prune(much_later).await.unwrap(), 3);
}

#[tokio::test]
async fn an_answer_to_a_question_goes_on_with_the_call_that_asked() {
    let scene = Scene::new();
    let process = scene.process().await;
    let call = call(1, 1);
    let mut asked = Vec::new();
    for (state, now) in [("one", at(0)), ("two", at(1)), ("three", at(2))] {
        let running = process.run(&call, now).await;
        let event = Event::Asked {
            attempt: 1,
            effect_none: false,
        };
        let body = format!(r#"{{"resultType":"input_required","requestState":"{state}"}}"#);
        complete(&*scene.store, running.fence, event, &body, now).await;
        asked.push(running);
    }
    let key = |number| Some(crate::keyless::key(call.digest, number).unwrap());
    let of = async |state| {
        let found = process.deliveries.open_question(&call, state, at(10)).await;
        found.unwrap()
    };
    assert_eq!(of(Some("two")).await, key(2));
    assert_eq!(of(Some("three")).await, key(3));
    assert_eq!(of(Some("four")).await, None);
    assert_eq!(of(None).await, None);
    // Another process, and nothing of it was written.
    let other = scene.process().await;
    let found = other.deliveries.open_question(&call, Some("one"), at(10));
    assert_eq!(found.await.unwrap(), key(1));
    // Its answer is sent again after it was answered: it is the same call's still.
    let mut admission = super::scene::admission(
        call.identity("MCP write", &key(2).unwrap()),
        call.fingerprint,
        at(20),
    );
    admission.inputs = Some([5; 32]);
    let granted = super::scene::grant(&*scene.store, admission).await.unwrap();
    assert_eq!(of(Some("two")).await, key(2));
    succeed(&*scene.store, granted.unwrap(), at(21)).await;
    assert_eq!(of(Some("two")).await, key(2));
}

#[tokio::test]
async fn a_question_without_a_name_is_the_latest_open_one() {
    let scene = Scene::new();
    let process = scene.process().await;
    let call = call(1, 1);
    let event = Event::Asked {
        attempt: 1,
        effect_none: false,
    };
    for now in [at(0), at(1)] {
        let running = process.run(&call, now).await;
        complete(&*scene.store, running.fence, event, "{}", now).await;
        running.delivery.handed(now);
        process.deliveries.heard(channel(1), now);
    }
    process.finish(&call, at(2)).await;
    let found = process.deliveries.open_question(&call, None, at(10)).await;
    let key = crate::keyless::key(call.digest, 2).unwrap();
    assert_eq!(found.unwrap(), Some(key));
}

#[test]
fn keys_are_short_enough_and_tell_their_numbers() {
    use crate::keyless::table::Place;

    let digest = call(0xff, 1).digest;
    let place = |operation: &str, key: &str| Place {
        digest,
        operation: operation.to_owned(),
        key: Key::new(key).unwrap(),
    };
    let own = crate::keyless::key(digest, u32::MAX).unwrap();
    assert!(own.as_str().len() <= 200);
    assert_eq!(place("MCP write", own.as_str()).serial(), u32::MAX);
    assert_eq!(place("*", own.as_str()).serial(), 0);
    let prefix = crate::keyless::prefix(digest);
    for other in ["0", "01", "+1", "-1", "4294967296", "1x"] {
        assert_eq!(place("MCP write", &format!("{prefix}{other}")).serial(), 0);
    }
    let another = crate::keyless::key(call(1, 1).digest, 3).unwrap();
    assert_eq!(place("MCP write", another.as_str()).serial(), 0);
}
