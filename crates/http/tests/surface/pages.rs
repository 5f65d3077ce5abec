//! Every public code has its page.

use std::{fs, path::PathBuf};

use axum::response::IntoResponse as _;
use counterfoil_core::Code;
use counterfoil_http::Problem;
use http_body_util::BodyExt as _;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors")
}

#[test]
fn every_code_has_a_page_and_a_line_in_the_index() {
    let index = fs::read_to_string(folder().join("README.md")).unwrap();
    for code in Code::all() {
        let code = code.as_str();
        let page = fs::read_to_string(folder().join(format!("{code}.md")));
        let page = page.unwrap_or_else(|_| panic!("docs/errors/{code}.md is missing"));
        assert!(page.starts_with(&format!("# `{code}`\n")), "{code}");
        for part in ["## When it happens", "## What to do", "## REST", "## MCP"] {
            assert!(page.contains(part), "{code}: {part}");
        }
        assert!(index.contains(&format!("]({code}.md)")), "{code}");
    }
}

#[test]
fn every_page_is_of_a_code() {
    for entry in fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let stem = name.strip_suffix(".md").unwrap();
        assert!(
            stem == "README" || Code::all().any(|code| code.as_str() == stem),
            "{name}"
        );
    }
}

#[test]
fn every_code_of_the_mcp_surface_is_explained() {
    let pages: String = fs::read_dir(folder())
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    for code in [
        "IDEMPOTENCY_KEY_REUSED",
        "IDEMPOTENCY_IN_PROGRESS",
        "IDEMPOTENCY_RESULT_UNAVAILABLE",
        "IDEMPOTENCY_ATTEMPT_STALLED",
        "MCP_IDEMPOTENCY_KEY_INVALID",
    ] {
        assert!(pages.contains(&format!("`{code}`")), "{code}");
    }
}

#[tokio::test]
async fn the_examples_of_the_pages_are_what_the_surface_says() {
    for code in Code::all() {
        let page = fs::read_to_string(folder().join(format!("{}.md", code.as_str()))).unwrap();
        let (_, rest) = page.split_once("## REST").unwrap();
        let (_, example) = rest.split_once("```json\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let example: serde_json::Value = serde_json::from_str(example).unwrap();
        let said = Problem::new(code).into_response().into_body();
        let said = said.collect().await.unwrap().to_bytes();
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
        for member in ["type", "code", "retryable"] {
            assert_eq!(example[member], said[member], "{code:?}: {member}");
        }
        let (example_title, title) = (example["title"].as_str(), said["title"].as_str());
        assert!(
            example_title.unwrap().starts_with(title.unwrap()),
            "{code:?}"
        );
        // The page shows the first call of an unknown outcome; retries are 409.
        if code != Code::OutcomeUnknown {
            assert_eq!(example["status"], said["status"], "{code:?}");
        }
    }
}
