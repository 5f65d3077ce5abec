//! Invariant I4: nothing is matched on less than the whole identity.

use counterfoil_core::{Decision, Identity, Key, PrincipalId, WorkspaceId};
use counterfoil_store::{Admission, Store};

use super::Subject;
use super::scene::{START, after, decided, guarded, identity, run, stored, success};

async fn finish(store: &dyn Store, identity: &Identity, body: &str) {
    let admission = Admission {
        identity: identity.clone(),
        ..guarded("unused", START)
    };
    let granted = run(store, admission).await;
    let answer = success(granted.fence, body, after(1));
    store.complete(granted.fence, answer).await.unwrap();
}

async fn all_are_apart(subject: Subject, identities: Vec<Identity>) {
    let store = subject.open().await;
    for (number, identity) in identities.iter().enumerate() {
        finish(&*store, identity, &number.to_string()).await;
    }
    for (number, identity) in identities.into_iter().enumerate() {
        let found = store.find(&identity).await.unwrap().unwrap();
        assert_eq!(found.receipt.identity, identity);
        assert_eq!(found.reply, Some(stored(&number.to_string())));
        let again = Admission {
            identity: identity.clone(),
            ..guarded("unused", after(2))
        };
        let (decision, found) = decided(&*store, again).await;
        assert_eq!(decision, Decision::Replay);
        assert_eq!(found.receipt.identity, identity);
        assert_eq!(found.reply, Some(stored(&number.to_string())));
    }
}

pub async fn i4_each_part_of_the_identity_separates(subject: Subject) {
    let base = identity("k");
    let with_target = |operation: &str, parameters: &[&str], upstream: &str| {
        let mut other = base.clone();
        operation.clone_into(&mut other.target.operation);
        other.target.parameters = parameters.iter().map(|text| (*text).to_owned()).collect();
        upstream.clone_into(&mut other.target.upstream);
        other
    };
    let operation = base.target.operation.clone();
    let identities = vec![
        base.clone(),
        Identity {
            workspace: WorkspaceId::new("w2").unwrap(),
            ..base.clone()
        },
        Identity {
            principal: PrincipalId::new("bob").unwrap(),
            ..base.clone()
        },
        Identity {
            key: Key::new("k2").unwrap(),
            ..base.clone()
        },
        with_target("MCP create_note", &[], ""),
        with_target(&operation, &["a"], ""),
        with_target(&operation, &["b"], ""),
        with_target(&operation, &["a", "b"], ""),
        with_target(&operation, &["ab"], ""),
        with_target(&operation, &["a\u{0}b"], ""),
        with_target(&operation, &["a,b"], ""),
        with_target(&operation, &["", "ab"], ""),
        with_target(&operation, &[""], ""),
        with_target(&operation, &[], "up"),
        with_target(&operation, &["up"], ""),
        with_target(&operation, &["a"], "up"),
        // Parts that would be one text if they were only joined.
        Identity {
            workspace: WorkspaceId::new("w1ad").unwrap(),
            principal: PrincipalId::new("a").unwrap(),
            ..base.clone()
        },
        Identity {
            workspace: WorkspaceId::new("w").unwrap(),
            principal: PrincipalId::new("1ada").unwrap(),
            ..base.clone()
        },
    ];
    all_are_apart(subject, identities).await;
}

pub async fn i4_a_key_is_compared_whole(subject: Subject) {
    let long = "x".repeat(199);
    let keys = [
        "Key", "key", "KEY", "key ", " key", "k", "ke", "é", "e\u{301}", "1", "01", "1.0", "'",
        "\"", "%", "_", "*",
    ];
    let mut identities: Vec<Identity> = keys.iter().map(|key| identity(key)).collect();
    identities.push(identity(&format!("{long}a")));
    identities.push(identity(&format!("{long}b")));
    all_are_apart(subject, identities).await;
}
