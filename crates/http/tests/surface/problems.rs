//! The words on the wire. These are golden: a change here is a change of the contract.

use std::time::Duration;

use axum::response::IntoResponse as _;
use counterfoil_core::{Code, OperationId, Reply, Rule};
use counterfoil_engine::{Answer, Reason, Refusal};
use counterfoil_http::{ErrorStatus, Problem, Rest};
use http::StatusCode;
use http_body_util::BodyExt as _;

fn id() -> OperationId {
    "op_018f4e9a-0000-7000-8000-000000000001".parse().unwrap()
}

async fn wire(reason: Reason) -> (u16, Option<String>, String) {
    let refusal = Refusal {
        reason,
        operation_id: Some(id()),
    };
    let response = Rest::default().respond(Answer::Refused(refusal), Rule::Raw1);
    let status = response.status().as_u16();
    let after = response.headers().get("retry-after");
    let after = after.map(|value| value.to_str().unwrap().to_owned());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, after, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_conflict_is_byte_for_byte_this() {
    let (status, after, body) = wire(Reason::Conflict).await;
    assert_eq!((status, after), (409, None));
    assert_eq!(
        body,
        r#"{"type":"/docs/errors/idempotency_conflict","title":"Idempotency-Key was reused with different content","status":409,"detail":"This route compares the body and the query byte for byte: the order of fields and white space count.","code":"idempotency_conflict","operation_id":"op_018f4e9a-0000-7000-8000-000000000001","retryable":false,"next_action":"Find out which of the two requests was meant, and give the other one a key of its own"}"#
    );
}

#[tokio::test]
async fn in_progress_is_byte_for_byte_this_and_rounds_its_seconds_up() {
    let retry_after = Duration::from_millis(1001);
    let (status, after, body) = wire(Reason::InProgress { retry_after }).await;
    assert_eq!((status, after.as_deref()), (409, Some("2")));
    assert_eq!(
        body,
        r#"{"type":"/docs/errors/idempotency_in_progress","title":"This operation has already started","status":409,"detail":"An attempt with this key is under way, or died and its lease has not run out yet. Nothing was started now.","code":"idempotency_in_progress","operation_id":"op_018f4e9a-0000-7000-8000-000000000001","retryable":true,"retry_after_ms":1001,"next_action":"Wait, then send the same call with the same key"}"#
    );
}

#[tokio::test]
async fn every_reason_has_its_status_and_code() {
    let second = Duration::from_secs(1);
    let unknown = |first, timed_out| Reason::Unknown {
        first,
        timed_out,
        retryable: false,
    };
    let cases = [
        (Reason::Conflict, 409, "idempotency_conflict", None),
        (
            Reason::InProgress {
                retry_after: second,
            },
            409,
            "idempotency_in_progress",
            Some("1"),
        ),
        (
            Reason::Committed {
                retry_after: Some(second),
            },
            409,
            "idempotency_committed",
            Some("1"),
        ),
        (
            Reason::Committed { retry_after: None },
            409,
            "idempotency_committed",
            None,
        ),
        (
            Reason::ResultUnavailable,
            409,
            "idempotency_result_unavailable",
            None,
        ),
        (unknown(true, true), 504, "outcome_unknown", None),
        (unknown(true, false), 502, "outcome_unknown", None),
        (unknown(false, false), 409, "outcome_unknown", None),
        (Reason::Expired, 409, "idempotency_key_expired", None),
        (
            Reason::Busy {
                retry_after: second,
            },
            503,
            "busy",
            Some("1"),
        ),
        (
            Reason::Unavailable("/var/lib/secret.db: disk full".to_owned()),
            503,
            "unavailable",
            Some("5"),
        ),
        (Reason::Quota { limit: 7 }, 429, "quota_exceeded", None),
        (Reason::Denied, 401, "unauthorized", None),
        (
            Reason::Internal("secret in /var/lib".to_owned()),
            500,
            "internal",
            None,
        ),
    ];
    for (reason, status, code, after) in cases {
        let said = format!("{reason:?}");
        let (got, got_after, body) = wire(reason).await;
        assert_eq!((got, got_after.as_deref()), (status, after), "{said}");
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(problem["code"], code);
        assert_eq!(problem["status"], status);
        assert_eq!(problem["type"], format!("/docs/errors/{code}"));
        assert!(problem["next_action"].is_string());
        assert_eq!(problem["operation_id"], id().to_string());
        // What is for operators stays with them.
        assert!(!body.contains("secret") && !body.contains("/var"), "{body}");
    }
}

#[tokio::test]
async fn the_other_message_of_002_is_this() {
    let retry_after = Some(Duration::from_secs(1));
    let (_, _, body) = wire(Reason::Committed { retry_after }).await;
    assert!(body.contains(r#""title":"This operation has already started""#));
    assert!(body.contains(r#""code":"idempotency_committed""#));
}

#[test]
fn a_problem_cannot_say_that_something_worked() {
    for status in 100..1000 {
        let Ok(status) = StatusCode::from_u16(status) else {
            continue;
        };
        let error = (400..600).contains(&status.as_u16());
        assert_eq!(ErrorStatus::new(status).is_some(), error, "{status}");
    }
    for code in Code::all() {
        let response = Problem::new(code).into_response();
        assert!(response.status().as_u16() >= 400, "{code:?}");
    }
}

#[test]
fn standing_members_cannot_be_overwritten() {
    let problem = Problem::new(Code::NotFound)
        .with("code", "other")
        .with("extra", 1);
    let reply = Reply::from(problem);
    let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(
        (body["code"].as_str(), body["extra"].as_i64()),
        (Some("not_found"), Some(1))
    );
    assert_eq!(
        reply.content_type.as_deref(),
        Some("application/problem+json")
    );
}

#[test]
fn a_damaged_row_is_no_panic() {
    let answer = Answer::Replayed {
        reply: Reply {
            status: 7,
            content_type: Some("a\nb".to_owned()),
            headers: vec![("bad name".to_owned(), "x".to_owned())],
            body: "x".into(),
        },
        operation_id: id(),
        stored_failure: false,
    };
    assert_eq!(Rest::default().respond(answer, Rule::Raw1).status(), 500);
}

#[test]
fn field_07_what_belongs_to_one_connection_is_not_in_a_response() {
    let headers = [
        ("content-length", "999"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("etag", "\"1\""),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let reply = Reply {
        status: 200,
        content_type: None,
        headers: headers.to_vec(),
        body: "x".into(),
    };
    let answer = Answer::Ran {
        reply,
        operation_id: id(),
    };
    let response = Rest::default().respond(answer, Rule::Raw1);
    let names: Vec<_> = response
        .headers()
        .keys()
        .map(|name| name.as_str())
        .collect();
    assert_eq!(names, ["etag", "operation-id"]);
}
