//! How many calls a second get through admission and completion, two durable commits each.
//!
//! `cargo run --release -p counterfoil-sqlite --example throughput -- [tasks] [seconds] [random]`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use counterfoil_core::{
    Event, Fingerprint, Identity, Kept, Key, OperationId, Policy, PrincipalId, Reply, Target,
    Timestamp, Token, WorkspaceId,
};
use counterfoil_sqlite::{Options, SqliteStore};
use counterfoil_store::{Admission, Admitted, Completion, Store, StoredReply};

const START: i64 = 1_800_000_000_000;

fn mix(serial: u64) -> u64 {
    let mut x = serial.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn admission(serial: u64, now: Timestamp, random: bool) -> Admission {
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&mix(serial).to_be_bytes());
    let mut token = [0; 16];
    token[..8].copy_from_slice(&mix(!serial).to_be_bytes());
    let operation_id = OperationId::new(now, bytes);
    let key = if random {
        format!("{:016x}{:016x}", mix(serial), mix(!serial))
    } else {
        operation_id.to_string()[3..].to_owned()
    };
    Admission {
        identity: Identity {
            workspace: WorkspaceId::new("default").unwrap(),
            principal: PrincipalId::new("ada").unwrap(),
            target: Target::new("POST /api/v1/notes"),
            key: Key::new(key).unwrap(),
        },
        fingerprint: Fingerprint::raw("", &serial.to_be_bytes()),
        inputs: None,
        version: 1,
        policy: Policy::default(),
        operation_id,
        token: Token::new(token),
        now,
        patience: Duration::from_secs(5),
    }
}

fn completion(attempt: u32, at: Timestamp) -> Completion {
    Completion {
        event: Event::Succeeded { attempt },
        reply: Some(StoredReply {
            reply: Reply {
                status: 201,
                content_type: Some("application/json".to_owned()),
                headers: Vec::new(),
                body: vec![b'x'; 200].into(),
            },
            sealed: None,
        }),
        kept: Kept::Stored,
        at,
        reason: "answered",
        evidence: None,
        question_for: Duration::ZERO,
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| {
        let given = arguments.next().and_then(|text| text.parse().ok());
        given.unwrap_or(default)
    };
    let (tasks, seconds) = (number(64), number(5));
    let random = std::env::args().any(|argument| argument == "random");
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("receipts.db"), Options::default()).unwrap();
    let serial = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (store, serial) = (store.clone(), Arc::clone(&serial));
            tokio::spawn(async move {
                let mut taken = Vec::new();
                while Instant::now() < end {
                    let start = Instant::now();
                    let elapsed = i64::try_from(begin.elapsed().as_millis()).unwrap();
                    let now = Timestamp::from_millis(START + elapsed);
                    let number = serial.fetch_add(1, Ordering::Relaxed);
                    let admitted = store.admit(admission(number, now, random)).await.unwrap();
                    let Admitted::Run(granted) = admitted else {
                        panic!("not run");
                    };
                    let fence = granted.fence;
                    let told = completion(fence.attempt, now);
                    store.complete(fence, told).await.unwrap();
                    taken.push(start.elapsed());
                }
                taken
            })
        })
        .collect();
    let mut taken = Vec::new();
    for task in running {
        taken.extend(task.await.unwrap());
    }
    let elapsed = begin.elapsed();
    taken.sort_unstable();
    let rate = u128::try_from(taken.len()).unwrap() * 1_000_000 / elapsed.as_micros();
    println!(
        "{tasks} tasks: {rate} calls/s, p50 {:?}, p99 {:?}",
        taken[taken.len() / 2],
        taken[taken.len() * 99 / 100]
    );
    let looking = Instant::now();
    let mut found = 0_u32;
    for number in 0..20_000_u64 {
        let identity = admission(number, Timestamp::from_millis(START), true).identity;
        found += u32::from(store.find(&identity).await.unwrap().is_some());
    }
    let rate = 20_000_u128 * 1_000_000 / looking.elapsed().as_micros();
    println!("{rate} lookups/s ({found} found)");
    store.close().await;
}
