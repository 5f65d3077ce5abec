//! Histories of calls without a key, one by one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use counterfoil_core::{Event, Key};
use counterfoil_sqlite::{Options, SqliteStore};
use counterfoil_store::{Error, Store};
use counterfoil_testkit::{Fault, FaultyStore, Step};

use super::scene::{Process, Scene, admit, at, call, channel, complete, succeed};
use crate::{
    keyless::{Pairing, judge::Windows},
    settings::Keyless,
};

/// How many reads and writes a store was asked for.
#[derive(Default)]
struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
}

fn counted(inner: Arc<dyn Store>, counts: &Arc<Counts>) -> Arc<dyn Store> {
    let counts = Arc::clone(counts);
    Arc::new(FaultyStore::new(inner, move |call| {
        if call.step.writes() {
            counts.writes.fetch_add(1, Ordering::Relaxed);
        } else {
            counts.reads.fetch_add(1, Ordering::Relaxed);
        }
        Fault::None
    }))
}

#[tokio::test]
async fn a_call_that_runs_costs_two_reads_and_no_write() {
    let scene = Scene::new();
    let counts = Arc::new(Counts::default());
    let process = Process::on(counted(Arc::clone(&scene.store), &counts)).await;
    counts.writes.store(0, Ordering::Relaxed);
    for (number, now) in [(1, at(0)), (2, at(1_000))] {
        counts.reads.store(0, Ordering::Relaxed);
        let paired = process.pair(&call(1, 1), now).await;
        paired.must_run(number);
        assert_eq!(counts.reads.load(Ordering::Relaxed), 2);
        let identity = paired.call.identity(
            "MCP write",
            &crate::keyless::key(paired.call.digest, number).unwrap(),
        );
        let fence = admit(&*scene.store, identity, paired.call.fingerprint, now).await;
        paired.delivery.started();
        succeed(&*scene.store, fence, now).await;
        paired.delivery.handed(now);
        process.deliveries.heard(channel(1), now);
    }
    assert_eq!(counts.writes.load(Ordering::Relaxed), 0);
    process.deliveries.flush().await.unwrap();
    assert_eq!(
        counts.writes.load(Ordering::Relaxed),
        1,
        "in one transaction"
    );
}

#[tokio::test]
async fn i5_two_parallel_identical_calls_both_run() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.run(&call(1, 1), at(0)).await;
    let second = process.run(&call(1, 1), at(1)).await;
    succeed(&*scene.store, first.fence, at(50)).await;
    // Its answer is about to be written.
    process.run(&call(1, 2), at(51)).await;
    drop(second);
}

#[tokio::test]
async fn i5_an_identical_call_waits_while_the_first_reserves_its_key() {
    let scene = Scene::new();
    let process = Arc::new(scene.process().await);
    let first = process.pair(&call(1, 1), at(0)).await;
    first.must_run(1);
    // It is cancelled before it starts: that counts once it has.
    first.delivery.undelivered(at(1));
    let second = {
        let process = Arc::clone(&process);
        tokio::spawn(async move { process.pair(&call(1, 1), at(2)).await })
    };
    tokio::task::yield_now().await;
    assert!(!second.is_finished());
    let identity = first.call.identity(
        "MCP write",
        &crate::keyless::key(first.call.digest, 1).unwrap(),
    );
    admit(&*scene.store, identity, first.call.fingerprint, at(2)).await;
    first.delivery.started();
    second.await.unwrap().must_attach(1);
}

#[tokio::test]
async fn a_call_that_was_refused_before_it_started_leaves_nothing() {
    let scene = Scene::new();
    let process = scene.process().await;
    for _ in 0..2 {
        let paired = process.pair(&call(1, 1), at(0)).await;
        paired.must_run(1);
        // What is told to the client is a refusal; the delivery may live on.
        paired.delivery.told(at(0));
        let next = process.pair(&call(1, 1), at(1)).await;
        next.must_run(1);
        next.delivery.discard();
    }
    process.deliveries.flush().await.unwrap();
    process.pair(&call(1, 1), at(2)).await.must_run(1);
}

#[tokio::test]
async fn i5_field_12_a_cancelled_call_is_paired_with_its_retry_once() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.finish(&call(1, 1), at(0)).await;
    first.delivery.undelivered(at(500));
    let retry = process.pair(&call(1, 2), at(1_000)).await;
    retry.must_attach(1);
    // While that one's answer is on its way nothing proves what another one is.
    process.pair(&call(1, 2), at(1_100)).await.must_ask(&first);
    // The retry is lost as well: its own retry is paired with it.
    retry.delivery.undelivered(at(1_200));
    let again = process.pair(&call(1, 3), at(1_300)).await;
    again.must_attach(1);
    again.delivery.handed(at(1_310));
    // A later message: now it is a new action.
    process.pair(&call(1, 3), at(2_000)).await.must_run(2);
}

#[tokio::test]
async fn i5_a_call_that_still_runs_is_paired_with_too() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.run(&call(1, 1), at(0)).await;
    first.delivery.undelivered(at(3_000));
    process.pair(&call(1, 1), at(4_000)).await.must_attach(1);
}

#[tokio::test]
async fn i5_a_cancelled_write_then_another_write_then_the_first_again_asks() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.finish(&call(1, 1), at(0)).await;
    first.delivery.undelivered(at(500));
    process.mutate("between", at(600)).await;
    process.pair(&call(1, 1), at(1_000)).await.must_ask(&first);
}

#[tokio::test]
async fn i5_a_released_write_that_ran_again_in_between_counts_as_one() {
    let scene = Scene::new();
    let process = scene.process().await;
    let other = call(9, 0);
    let identity = other.identity("MCP other", &Key::new("refused-at-first").unwrap());
    let (store, print) = (&*scene.store, other.fingerprint);
    let refused = admit(store, identity.clone(), print, at(0)).await;
    complete(store, refused, Event::NotApplied { attempt: 1 }, "", at(1)).await;
    let first = process.finish(&call(1, 1), at(100)).await;
    first.delivery.undelivered(at(500));
    let again = admit(store, identity, print, at(600)).await;
    succeed(store, again, at(601)).await;
    process.pair(&call(1, 1), at(1_000)).await.must_ask(&first);
}

#[tokio::test]
async fn i5_a_write_to_another_upstream_or_of_another_principal_is_not_between() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.finish(&call(1, 1), at(0)).await;
    first.delivery.undelivered(at(500));
    let mut elsewhere = call(9, 0);
    elsewhere.upstream = "another".to_owned();
    let mut somebody = call(9, 0);
    somebody.principal = counterfoil_core::PrincipalId::new("ada").unwrap();
    for other in [elsewhere, somebody] {
        let identity = other.identity("MCP other", &Key::new("k").unwrap());
        let fence = admit(&*scene.store, identity, other.fingerprint, at(600)).await;
        succeed(&*scene.store, fence, at(601)).await;
    }
    process.pair(&call(1, 1), at(1_000)).await.must_attach(1);
}

#[tokio::test]
async fn i5_more_newer_calls_than_are_looked_at_count_as_one_between() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.finish(&call(1, 1), at(0)).await;
    first.delivery.undelivered(at(500));
    let mut elsewhere = call(9, 0);
    elsewhere.upstream = "another".to_owned();
    for number in 0..501 {
        let identity = elsewhere.identity("MCP other", &Key::new(number.to_string()).unwrap());
        admit(&*scene.store, identity, elsewhere.fingerprint, at(600)).await;
    }
    process.pair(&call(1, 1), at(1_000)).await.must_ask(&first);
}

#[tokio::test]
async fn i5_a_cancelled_read_of_an_unannotated_tool_is_not_given_old_rows() {
    let scene = Scene::new();
    let process = scene.process().await;
    let mut query = call(1, 1);
    query.annotated = false;
    let first = process.finish(&query, at(0)).await;
    first.delivery.undelivered(at(500));
    process.pair(&query, at(5_001)).await.must_ask(&first);
    process.pair(&query, at(4_999)).await.must_attach(1);
}

#[tokio::test]
async fn i5_a_proxy_killed_before_it_noted_that_it_answered_asks() {
    let scene = Scene::new();
    let first = {
        let process = scene.process().await;
        let first = process.finish(&call(1, 1), at(0)).await;
        process.deliveries.flush().await.unwrap();
        first.delivery.handed(at(10));
        process.deliveries.heard(channel(1), at(20));
        first
    };
    let process = scene.process().await;
    process.pair(&call(1, 2), at(2_000)).await.must_ask(&first);
    // Whatever is asked, and however often, it is found again.
    process.deliveries.flush().await.unwrap();
    let process = scene.process().await;
    process.pair(&call(1, 3), at(3_000)).await.must_ask(&first);
}

#[tokio::test]
async fn i5_a_proxy_killed_in_the_middle_of_a_call_asks_then_says_unknown_once() {
    let scene = Scene::new();
    let first = scene.process().await.run(&call(1, 1), at(0)).await;
    let process = scene.process().await;
    // Its lease is alive: it may be another process's, whose client waits.
    process.pair(&call(1, 2), at(1_000)).await.must_ask(&first);
    let retry = process.pair(&call(1, 2), at(40_000)).await;
    retry.must_attach(1);
    assert_eq!(scene.store.lapse(at(40_000), 10).await.unwrap(), 1);
    retry.delivery.told(at(40_100));
    process.pair(&call(1, 2), at(41_000)).await.must_ask(&first);
}

#[tokio::test]
async fn i5_an_unknown_outcome_that_was_told_and_then_settled_is_attached() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.run(&call(1, 1), at(0)).await;
    complete(
        &*scene.store,
        first.fence,
        Event::Lost { attempt: 1 },
        "",
        at(100),
    )
    .await;
    first.delivery.told(at(101));
    succeed(&*scene.store, first.fence, at(5_000)).await;
    let retry = process.pair(&call(1, 1), at(6_000)).await;
    retry.must_attach(1);
    retry.delivery.handed(at(6_001));
    process.deliveries.heard(channel(1), at(6_002));
    process.pair(&call(1, 1), at(7_000)).await.must_run(2);
}

#[tokio::test]
async fn i5_what_is_proven_to_have_left_nothing_does_not_count() {
    let scene = Scene::new();
    let process = scene.process().await;
    let unsent = process.run(&call(1, 1), at(0)).await;
    let attempt = 1;
    complete(
        &*scene.store,
        unsent.fence,
        Event::NotApplied { attempt },
        "",
        at(1),
    )
    .await;
    unsent.delivery.undelivered(at(2));
    let settled = process.run(&call(1, 1), at(3)).await;
    complete(
        &*scene.store,
        settled.fence,
        Event::Lost { attempt },
        "",
        at(4),
    )
    .await;
    settled.delivery.told(at(4));
    let verdict = counterfoil_core::Verdict::NotHappened;
    let resolved = Event::Resolved { verdict };
    let id = settled.fence.operation_id;
    let why = "looked up".to_owned();
    scene
        .store
        .record(id, resolved, at(5), why, None)
        .await
        .unwrap();
    process.pair(&call(1, 1), at(6)).await.must_run(3);
}

#[tokio::test]
async fn i5_an_answer_that_came_late_is_never_confirmed() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.run(&call(1, 1), at(0)).await;
    succeed(&*scene.store, first.fence, at(10_001)).await;
    first.delivery.handed(at(10_001));
    process.deliveries.heard(channel(1), at(10_500));
    process.pair(&call(1, 1), at(11_000)).await.must_ask(&first);
}

#[tokio::test]
async fn i5_a_cancel_that_crossed_the_answer_asks() {
    for is_written in [false, true] {
        let scene = Scene::new();
        let process = scene.process().await;
        let first = process.finish(&call(1, 1), at(0)).await;
        first.delivery.handed(at(10));
        process.deliveries.heard(channel(1), at(20));
        if is_written {
            process.deliveries.flush().await.unwrap();
        }
        first.delivery.doubted();
        process.pair(&call(1, 1), at(1_000)).await.must_ask(&first);
        process.deliveries.flush().await.unwrap();
        let process = scene.process().await;
        process.pair(&call(1, 1), at(1_000)).await.must_ask(&first);
    }
}

#[tokio::test]
async fn i5_a_keyed_repeat_takes_no_answer_that_is_being_handed_out() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.process().await, scene.process().await);
    let keyed = call(1, 1);
    let key = Key::new("mine").unwrap();
    let (operation, digest) = ("MCP write", keyed.digest);
    let begin = |process: &Process, on, now| {
        let deliveries = &process.deliveries;
        deliveries.begin(digest, operation, &key, channel(on), now)
    };
    let delivery = begin(&ours, 1, at(0));
    let identity = keyed.identity(operation, &key);
    let fence = admit(&*scene.store, identity, keyed.fingerprint, at(0)).await;
    delivery.started();
    succeed(&*scene.store, fence, at(1)).await;
    delivery.undelivered(at(2));
    // The repeat with the key begins there, the one without it is paired here.
    let repeat = begin(&theirs, 2, at(3));
    let paired = ours.pair(&keyed, at(4)).await;
    assert!(matches!(paired.pairing, Pairing::Attach { .. }));
    repeat.handed(at(5));
    theirs.deliveries.flush().await.unwrap();
    paired.delivery.handed(at(6));
    ours.deliveries.heard(channel(1), at(7));
    ours.deliveries.flush().await.unwrap();
    let another = scene.process().await;
    another.pair(&call(1, 3), at(8)).await.must_run(1);
}

#[tokio::test]
async fn i5_a_lost_answer_of_a_keyed_call_is_known_when_it_is_repeated_without_one() {
    let scene = Scene::new();
    let process = scene.process().await;
    let keyed = call(1, 1);
    for (operation, number) in [("MCP write", 1_u8), ("*", 2)] {
        let mut keyed = keyed.clone();
        keyed.digest = crate::keyless::CallDigest([number; 32]);
        let key = Key::new("mine").unwrap();
        let now = at(i64::from(number) * 10_000);
        let delivery = process
            .deliveries
            .begin(keyed.digest, operation, &key, keyed.channel, now);
        let identity = keyed.identity(operation, &key);
        let fence = admit(&*scene.store, identity, keyed.fingerprint, now).await;
        delivery.started();
        succeed(&*scene.store, fence, now).await;
        delivery.undelivered(now);
        process.deliveries.flush().await.unwrap();
        drop(delivery);
        // Another process knows it from the table.
        let other = scene.process().await;
        let retry = other.pair(&keyed, now.plus(Duration::from_secs(1))).await;
        let operation = operation.to_owned();
        assert_eq!(retry.pairing, Pairing::Attach { key, operation });
    }
}

#[tokio::test]
async fn a_keyed_call_that_reserved_nothing_leaves_nothing() {
    let scene = Scene::new();
    let process = scene.process().await;
    let invalid = call(1, 1);
    let key = Key::new("mine").unwrap();
    let begun = process
        .deliveries
        .begin(invalid.digest, "MCP write", &key, channel(1), at(0));
    drop(begun);
    process.pair(&invalid, at(1)).await.must_run(1);
}

#[tokio::test]
async fn i5_a_row_that_another_process_claimed_counts_more_than_the_memory() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.process().await, scene.process().await);
    let first = ours.run(&call(1, 1), at(0)).await;
    complete(
        &*scene.store,
        first.fence,
        Event::Lost { attempt: 1 },
        "",
        at(100),
    )
    .await;
    // Here the client has not been told yet; there the retry comes.
    ours.deliveries.flush().await.unwrap();
    let retry = theirs.pair(&call(1, 2), at(200)).await;
    retry.must_attach(1);
    ours.pair(&call(1, 1), at(300)).await.must_ask(&first);
    retry.delivery.handed(at(310));
    theirs.deliveries.heard(channel(2), at(320));
    theirs.deliveries.flush().await.unwrap();
    // What the first client is told afterwards changes nothing of it.
    first.delivery.told(at(330));
    ours.deliveries.flush().await.unwrap();
    theirs.pair(&call(1, 3), at(390)).await.must_run(2);
    // The row is settled, which only a failed claim shows.
    ours.pair(&call(1, 1), at(400)).await.must_run(2);
}

#[tokio::test]
async fn i5_a_claim_whose_commit_is_in_doubt_is_its_own() {
    for fault in [Fault::DoneUnknown, Fault::NotDoneUnknown] {
        let scene = Scene::new();
        let process = scene.process().await;
        let first = process.finish(&call(1, 1), at(0)).await;
        first.delivery.undelivered(at(500));
        process.deliveries.flush().await.unwrap();
        let inner = Arc::clone(&scene.store);
        let faulty = Arc::new(FaultyStore::once(inner, Step::Transact, 0, fault));
        let other = Process::on(faulty.clone()).await;
        other.pair(&call(1, 2), at(1_000)).await.must_attach(1);
        assert_eq!(faulty.chosen().len(), 1);
        process.pair(&call(1, 1), at(1_001)).await.must_ask(&first);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_of_sixteen_at_once_in_two_processes_exactly_one_is_paired() {
    let scene = Scene::new();
    let first = {
        let process = scene.process().await;
        let first = process.finish(&call(1, 1), at(0)).await;
        first.delivery.undelivered(at(500));
        process.deliveries.flush().await.unwrap();
        first
    };
    let ours = Arc::new(scene.process().await);
    let another = SqliteStore::open(scene.path(), Options::default()).unwrap();
    let theirs = Arc::new(Process::on(Arc::new(another)).await);
    let tasks: Vec<_> = (0..16_u8)
        .map(|number| {
            let process = Arc::clone(if number % 2 == 0 { &ours } else { &theirs });
            tokio::spawn(async move { process.pair(&call(1, number), at(1_000)).await })
        })
        .collect();
    let mut attached = 0;
    // Held until the end: a handing out that is dropped is an unproven one all the same.
    let mut all = Vec::new();
    for task in tasks {
        let paired = task.await.unwrap();
        match paired.pairing {
            Pairing::Attach { .. } => attached += 1,
            Pairing::Ask(_) => paired.must_ask(&first),
            Pairing::Run(_) => panic!("it ran again"),
        }
        all.push(paired);
    }
    assert_eq!(attached, 1);
}

#[tokio::test]
async fn ask_never_attaches_and_mint_never_asks() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.finish(&call(1, 1), at(0)).await;
    first.delivery.undelivered(at(500));
    for (keyless, runs) in [
        (Keyless::Ask, false),
        (Keyless::Require, false),
        (Keyless::Mint, true),
    ] {
        let mut call = call(1, 1);
        call.keyless = keyless;
        let paired = process.pair(&call, at(1_000)).await;
        if runs {
            paired.must_run(2);
        } else {
            paired.must_ask(&first);
        }
    }
}

#[tokio::test]
async fn i5_a_number_that_a_rival_took_is_passed_over() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.process().await, scene.process().await);
    let paired = ours.pair(&call(1, 1), at(0)).await;
    paired.must_run(1);
    // Somebody else's call under that very key, of another content.
    let other = call(7, 1);
    let key = crate::keyless::key(paired.call.digest, 1).unwrap();
    let identity = paired.call.identity("MCP write", &key);
    admit(&*scene.store, identity, other.fingerprint, at(0)).await;
    drop(paired);
    ours.pair(&call(1, 1), at(1)).await.must_run(2);
    // The same content: whose client may wait, in a process that nothing is known of.
    let rival = theirs.run(&call(2, 2), at(2)).await;
    ours.pair(&call(2, 1), at(3)).await.must_ask(&rival);
}

#[tokio::test]
async fn i5_what_was_left_behind_is_found_however_many_follow() {
    let scene = Scene::new();
    let lost = scene.process().await.finish(&call(1, 1), at(0)).await;
    let process = scene.process().await;
    let mut minted = call(1, 1);
    minted.keyless = Keyless::Mint;
    let second = process.finish(&minted, at(1_000)).await;
    second.delivery.handed(at(1_001));
    process.deliveries.heard(channel(1), at(1_002));
    process.deliveries.flush().await.unwrap();
    let process = scene.process().await;
    process.pair(&call(1, 1), at(2_000)).await.must_ask(&lost);
}

#[tokio::test]
async fn i5_too_many_in_doubt_ask() {
    let scene = Scene::new();
    let process = scene.process().await;
    let mut minted = call(1, 1);
    minted.keyless = Keyless::Mint;
    for number in 0..70 {
        let unsent = process.run(&minted, at(number)).await;
        let attempt = 1;
        complete(
            &*scene.store,
            unsent.fence,
            Event::NotApplied { attempt },
            "",
            at(1),
        )
        .await;
        unsent.delivery.undelivered(at(number));
    }
    process.deliveries.flush().await.unwrap();
    let paired = scene.process().await.pair(&call(1, 1), at(1_000)).await;
    assert!(
        matches!(paired.pairing, Pairing::Ask(_)),
        "{:?}",
        paired.pairing
    );
}

#[tokio::test]
async fn a_store_that_fails_is_told_of_and_nothing_is_lost() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.finish(&call(1, 1), at(0)).await;
    first.delivery.undelivered(at(500));
    process.deliveries.flush().await.unwrap();
    for step in [Step::Read, Step::Find, Step::List, Step::Transact] {
        let inner = Arc::clone(&scene.store);
        let faulty = Arc::new(FaultyStore::once(inner, step, 0, Fault::Unavailable));
        let other = Process::on(faulty.clone()).await;
        let failed = other.deliveries.pair(&call(1, 2), at(1_000)).await;
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{step:?}");
        assert_eq!(faulty.chosen().len(), 1, "{step:?}");
    }
    let inner = Arc::clone(&scene.store);
    let faulty = Arc::new(FaultyStore::once(
        inner,
        Step::Transact,
        0,
        Fault::Unavailable,
    ));
    let other = Process::on(faulty).await;
    let second = other.finish(&call(2, 2), at(1_000)).await;
    second.delivery.undelivered(at(1_001));
    other.deliveries.flush().await.unwrap_err();
    other.deliveries.flush().await.unwrap();
    process.pair(&call(2, 1), at(1_002)).await.must_attach(1);
}

#[test]
fn windows_are_those_of_the_settings() {
    let target = crate::settings::Target::Url {
        url: "http://localhost/".to_owned(),
        headers: Vec::new(),
    };
    let windows = Windows::of(&crate::settings::Settings::new(target));
    assert_eq!(windows, super::scene::WINDOWS);
}

#[tokio::test]
async fn i5_a_claim_leaves_no_gap_below_it() {
    let scene = Scene::new();
    let process = scene.process().await;
    let first = process.run(&call(1, 1), at(0)).await;
    let second = process.run(&call(1, 1), at(1)).await;
    first.delivery.undelivered(at(2));
    second.delivery.undelivered(at(2));
    // The first is not attached because the second started since.
    let retry = process.pair(&call(1, 1), at(100)).await;
    retry.must_attach(2);
    complete(
        &*scene.store,
        second.fence,
        Event::NotApplied { attempt: 1 },
        "",
        at(200),
    )
    .await;
    drop((process, retry));
    let process = scene.process().await;
    process.pair(&call(1, 1), at(300)).await.must_attach(1);
}
