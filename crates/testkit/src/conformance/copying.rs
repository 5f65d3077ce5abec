//! Receipts on their way from one store to another of the same kind.

use std::sync::Arc;

use counterfoil_core::{Decision, Event, State, WorkspaceId};
use counterfoil_store::{
    Admission, Clash, EXPORT_BYTES, Imported, Query, Store, StoredReply, Whole,
};

use super::Subject;
use super::model::run_histories;
use super::scene::{
    START, after, atomic, completion, create_table, decided, guarded, identity, note, operation_id,
    question, ran, receipt, reply, run, stored, success, with_inputs,
};
use crate::MemoryStore;

/// Everything in a store, read in parts of `limit` rows.
async fn everything(store: &dyn Store, limit: u32) -> Vec<Whole> {
    let mut rows = Vec::new();
    let mut next = Some(0);
    while let Some(place) = next {
        let part = store.export(place, limit).await.unwrap();
        assert_eq!(part.damaged, []);
        assert!(part.rows.len() <= limit as usize);
        rows.extend(part.rows);
        next = part.next;
    }
    rows
}

/// A receipt in every state there is, with answers and questions.
async fn populate(store: &dyn Store) {
    create_table(store).await;
    run(store, guarded("running", START)).await;
    let done = run(store, guarded("done", START)).await.fence;
    let answer = success(done, "done", after(1));
    store.complete(done, answer).await.unwrap();
    let free = run(store, guarded("free", START)).await.fence;
    let released = Event::NotApplied {
        attempt: free.attempt,
    };
    let released = completion(released, after(1));
    store.complete(free, released).await.unwrap();
    let unknown = run(store, guarded("unknown", START)).await.fence;
    let mut lost = completion(
        Event::Lost {
            attempt: unknown.attempt,
        },
        after(1),
    );
    lost.evidence = Some("trace 5".to_owned());
    store.complete(unknown, lost).await.unwrap();
    let asking = run(store, guarded("asking", START)).await.fence;
    let asked = question(asking, "who pays?", after(1));
    store.complete(asking, asked).await.unwrap();
    let second = run(store, with_inputs(1, guarded("asking", after(2))))
        .await
        .fence;
    let asked = question(second, "how much?", after(3));
    store.complete(second, asked).await.unwrap();
    let stopping = run(store, guarded("stopping", START)).await.fence;
    let reason = "asked to".to_owned();
    let id = stopping.operation_id;
    let cancel = store.record(id, Event::CancelRequested, after(1), reason, None);
    cancel.await.unwrap();
    let at_once = note("at once", super::scene::End::Success);
    ran(store, atomic("atomic", after(4)), at_once).await;
    let mut elsewhere = guarded("running", after(5));
    elsewhere.identity.workspace = WorkspaceId::new("w2").unwrap();
    elsewhere.identity.target.parameters = vec!["a/b".to_owned(), String::new()];
    elsewhere.identity.target.upstream = "pay".to_owned();
    run(store, elsewhere).await;
}

async fn copy(from: &dyn Store, to: &dyn Store, limit: u32) -> Imported {
    let mut sum = Imported::default();
    for part in everything(from, limit).await.chunks(limit as usize) {
        let imported = to.import(part.to_vec()).await.unwrap().unwrap();
        sum.new += imported.new;
        sum.same += imported.same;
    }
    sum
}

/// Both say the same to whoever asks.
async fn assert_alike(first: &dyn Store, second: &dyn Store) {
    let rows = everything(first, 1000).await;
    assert_eq!(rows, everything(second, 1000).await);
    for whole in &rows {
        assert_eq!(whole.findings(), []);
        let (id, identity) = (whole.receipt.operation_id, &whole.receipt.identity);
        let found = second.find(identity).await.unwrap();
        assert!(found.is_some());
        assert_eq!(first.find(identity).await.unwrap(), found);
        assert_eq!(second.get(id).await.unwrap(), found);
        assert_eq!(second.events(id).await.unwrap(), whole.events);
        for (round, question) in &whole.questions {
            let there = second.question(id, *round).await.unwrap();
            assert_eq!(there.as_ref(), Some(question));
        }
    }
    for workspace in ["w1", "w2"] {
        let query = Query {
            workspace: WorkspaceId::new(workspace).unwrap(),
            principal: None,
            states: Vec::new(),
            cursor: None,
            limit: 500,
        };
        let page = first.list(&query).await.unwrap();
        let copied = second.list(&query).await.unwrap();
        assert_eq!(page.receipts, copied.receipts, "in the same order");
    }
    assert_eq!(
        first.census().await.unwrap(),
        second.census().await.unwrap()
    );
    let unresolved = first.health().await.unwrap().unresolved;
    assert_eq!(second.health().await.unwrap().unresolved, unresolved);
}

pub async fn a_copy_is_the_same_in_everything(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    populate(&*from).await;
    let all = everything(&*from, 3).await;
    assert_eq!(all.len(), 8);
    let states: Vec<State> = all.iter().map(|w| w.receipt.status.state).collect();
    let wanted = [
        State::Running,
        State::Succeeded,
        State::Free,
        State::OutcomeUnknown,
        State::InputRequired,
        State::CancelRequested,
        State::Succeeded,
        State::Running,
    ];
    assert_eq!(states, wanted);
    assert_eq!(all[4].questions.len(), 2);
    let imported = copy(&*from, &*to, 3).await;
    assert_eq!((imported.new, imported.same), (8, 0));
    assert_alike(&*from, &*to).await;
    assert_alike(&*from, &*second.open().await).await;
}

pub async fn a_copy_agrees_with_the_model(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    let model: Arc<dyn Store> = Arc::new(MemoryStore::new());
    create_table(&*from).await;
    create_table(&*model).await;
    run_histories([&from, &model], 12).await;
    let (rows, wanted) = (everything(&*from, 7).await, everything(&*model, 7).await);
    assert!(rows.len() >= 12, "{}", rows.len());
    assert_eq!(rows, wanted, "with its log, its answers and its questions");
    copy(&*model, &*to, 5).await;
    assert_alike(&*from, &*to).await;
    let back = MemoryStore::new();
    copy(&*to, &back, 5).await;
    let digests = |rows: &[Whole]| -> Vec<_> { rows.iter().map(Whole::digest).collect() };
    assert_eq!(digests(&everything(&back, 9).await), digests(&wanted));
}

pub async fn i2_a_copied_call_is_replayed(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    populate(&*from).await;
    copy(&*from, &*to, 100).await;
    let (decision, found) = decided(&*to, guarded("done", after(10))).await;
    assert_eq!(decision, Decision::Replay);
    assert_eq!(found.reply, Some(stored("done")));
    let (decision, found) = decided(&*to, guarded("asking", after(10))).await;
    assert_eq!(decision, Decision::ReplayQuestion { round: 0 });
    assert_eq!(found.reply, Some(stored("who pays?")));
    let third = run(
        &*to,
        with_inputs(2, {
            let mut admission = guarded("asking", after(11));
            admission.inputs = None;
            admission
        }),
    )
    .await;
    assert_eq!((third.fence.attempt, third.round), (3, 2));
    let again = run(&*to, guarded("free", after(12))).await;
    assert_eq!(again.fence.attempt, 2, "it goes on where it was released");
    let new = run(&*to, guarded("new", after(13))).await;
    let listed = everything(&*to, 100).await;
    let last = listed.last().unwrap();
    assert_eq!(last.receipt.operation_id, new.fence.operation_id);
}

pub async fn i6_what_was_running_goes_on_or_lapses(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    let going_on = run(&*from, guarded("a", START)).await.fence;
    let silent = run(&*from, guarded("b", START)).await.fence;
    copy(&*from, &*to, 100).await;
    let answer = success(going_on, "late", after(5));
    let recorded = to.complete(going_on, answer).await.unwrap();
    assert_eq!(recorded.status.state, State::Succeeded);
    assert_eq!(to.lapse(after(3600), 10).await.unwrap(), 1);
    let lapsed = receipt(&*to, silent.operation_id).await;
    assert_eq!(lapsed.status.state, State::OutcomeUnknown);
    assert_eq!(to.health().await.unwrap().unresolved, 1);
}

pub async fn an_import_may_be_repeated(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    populate(&*from).await;
    let rows = everything(&*from, 100).await;
    let half = rows[..3].to_vec();
    let imported = to.import(half).await.unwrap().unwrap();
    assert_eq!(imported, Imported { new: 3, same: 0 });
    let imported = to.import(rows.clone()).await.unwrap().unwrap();
    assert_eq!(imported, Imported { new: 5, same: 3 });
    let twice = [rows.clone(), rows].concat();
    let imported = to.import(twice).await.unwrap().unwrap();
    assert_eq!(imported, Imported { new: 0, same: 16 });
    let nothing = to.import(Vec::new()).await.unwrap().unwrap();
    assert_eq!(nothing, Imported::default());
    assert_alike(&*from, &*to).await;
}

pub async fn an_import_cut_off_in_the_middle_goes_on(first: Subject, second: Subject) {
    let from = first.open().await;
    populate(&*from).await;
    let rows = everything(&*from, 100).await;
    for end in [2, 5] {
        // Each one is another process, which does not know how far the ones before it came.
        let to = second.open().await;
        for part in rows[..end].chunks(2) {
            to.import(part.to_vec()).await.unwrap().unwrap();
        }
    }
    let to = second.open().await;
    let imported = copy(&*from, &*to, 3).await;
    assert_eq!((imported.new, imported.same), (3, 5));
    assert_alike(&*from, &*to).await;
}

pub async fn two_imports_at_once_write_each_receipt_once(first: Subject, second: Subject) {
    let from = first.open().await;
    for number in 0..40 {
        run(&*from, guarded(&format!("k{number}"), after(number))).await;
    }
    let rows = everything(&*from, 100).await;
    let (one, other) = (second.open().await, second.open().await);
    let halves = [(0, 30), (10, 40)].map(|(begin, end)| rows[begin..end].to_vec());
    let [early, late] = halves;
    let (early, late) = tokio::join!(one.import(early), other.import(late));
    let (early, late) = (early.unwrap().unwrap(), late.unwrap().unwrap());
    assert_eq!(early.new + late.new, 40);
    assert_eq!(early.same + late.same, 20);
    let mut there = everything(&*one, 100).await;
    there.sort_by_key(|whole| whole.receipt.created_at);
    assert_eq!(there, rows);
    assert_eq!(one.census().await.unwrap().total(), 40);
}

pub async fn a_conflicting_import_changes_nothing(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    populate(&*from).await;
    let rows = everything(&*from, 100).await;
    to.import(rows[1..].to_vec()).await.unwrap().unwrap();
    let before = everything(&*to, 100).await;
    let differing: [fn(&mut Whole); 6] = [
        |whole| whole.receipt.version += 1,
        |whole| whole.receipt.token = super::scene::token(),
        |whole| whole.events[0].reason.push('!'),
        |whole| whole.events.clear(),
        |whole| whole.result = Some(stored("another")),
        |whole| whole.questions.push((7, stored("another"))),
    ];
    for change in differing {
        let mut brought = rows.clone();
        change(&mut brought[5]);
        let id = brought[5].receipt.operation_id;
        let clash = to.import(brought).await.unwrap().unwrap_err();
        assert_eq!(clash, Clash::Differs(id));
        assert!(clash.to_string().contains(&id.to_string()), "{clash}");
        assert_eq!(everything(&*to, 100).await, before, "the first one neither");
    }
    // Two rows that contradict each other.
    let mut other = rows[0].clone();
    other.receipt.version += 1;
    let clash = to.import(vec![rows[0].clone(), other]).await.unwrap();
    assert_eq!(clash, Err(Clash::Differs(rows[0].receipt.operation_id)));
    assert_eq!(everything(&*to, 100).await, before);
    to.import(rows).await.unwrap().unwrap();
}

pub async fn a_taken_key_is_not_taken_over(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    let brought = run(&*from, guarded("k", START)).await.fence.operation_id;
    let there = run(&*to, guarded("k", START)).await.fence.operation_id;
    let rows = everything(&*from, 100).await;
    let clash = to.import(rows).await.unwrap().unwrap_err();
    assert_eq!(clash, Clash::Taken { brought, there });
    assert_eq!(to.get(brought).await.unwrap(), None);
    assert_eq!(
        to.find(&identity("k"))
            .await
            .unwrap()
            .unwrap()
            .receipt
            .operation_id,
        there
    );
}

pub async fn a_sealed_reply_moves_as_it_is(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    let fence = run(&*from, guarded("k", START)).await.fence;
    let sealed = StoredReply {
        reply: counterfoil_core::Reply {
            body: vec![0, 255, 1, 254].into(),
            ..reply("")
        },
        sealed: Some(u32::MAX),
    };
    let mut answer = success(fence, "", after(1));
    answer.reply = Some(sealed.clone());
    from.complete(fence, answer).await.unwrap();
    copy(&*from, &*to, 100).await;
    let found = to.get(fence.operation_id).await.unwrap().unwrap();
    assert_eq!(found.reply, Some(sealed));
}

pub async fn an_export_is_bounded(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    for number in 0..3 {
        let admission = Admission {
            operation_id: operation_id(after(number)),
            ..guarded(&format!("k{number}"), START)
        };
        let fence = run(&*from, admission).await.fence;
        let body = "x".repeat(EXPORT_BYTES * 2 / 3);
        let answer = success(fence, &body, after(1));
        from.complete(fence, answer).await.unwrap();
    }
    let part = from.export(0, 1000).await.unwrap();
    assert_eq!(part.rows.len(), 2);
    let rest = from.export(part.next.unwrap(), 1000).await.unwrap();
    assert_eq!((rest.rows.len(), rest.next), (1, None));
    copy(&*from, &*to, 100).await;
    let to = everything(&*to, 2).await;
    assert_eq!(to, everything(&*from, 2).await);
}

pub async fn a_census_counts_everything(first: Subject, second: Subject) {
    let from = first.open().await;
    let to = second.open().await;
    assert_eq!(from.census().await.unwrap().total(), 0);
    populate(&*from).await;
    copy(&*from, &*to, 100).await;
    for store in [from, to] {
        let census = store.census().await.unwrap();
        assert_eq!(census.total(), 8);
        assert_eq!(census.in_state(State::Running), 2);
        assert_eq!(census.in_state(State::InputRequired), 1);
        assert_eq!(census.in_state(State::Failed), 0);
        let strays = [
            census.stray_results,
            census.stray_questions,
            census.stray_events,
            census.impossible,
        ];
        assert_eq!(strays, [0; 4]);
        let inspection = store.inspect().await.unwrap();
        assert_eq!(inspection.problems, [""; 0]);
        assert!(inspection.facts.iter().any(|(name, _)| *name == "kind"));
    }
}
