//! The pages that the `type` of every problem names.

use axum::{
    extract::Path,
    http::header,
    response::{IntoResponse as _, Response},
};
use counterfoil_core::Code;
use counterfoil_http::Problem;

macro_rules! page {
    ($code:literal) => {
        (
            $code,
            include_str!(concat!("../../../../docs/errors/", $code, ".md")),
        )
    };
}

/// Every code with its page.
const PAGES: &[(&str, &str)] = &[
    page!("busy"),
    page!("forbidden"),
    page!("idempotency_committed"),
    page!("idempotency_conflict"),
    page!("idempotency_in_progress"),
    page!("idempotency_key_expired"),
    page!("idempotency_key_required"),
    page!("idempotency_result_unavailable"),
    page!("internal"),
    page!("invalid"),
    page!("invalid_key"),
    page!("malformed_request"),
    page!("method_not_allowed"),
    page!("not_found"),
    page!("outcome_unknown"),
    page!("possible_duplicate"),
    page!("quota_exceeded"),
    page!("rate_limited"),
    page!("too_large"),
    page!("unauthorized"),
    page!("unavailable"),
    page!("unsupported_media_type"),
];

/// What a code means and what to do.
pub(super) async fn show(Path(code): Path<String>) -> Response {
    let page = PAGES.iter().find(|(name, _)| *name == code);
    match page {
        Some((_, text)) => (
            [(header::CONTENT_TYPE, "text/markdown; charset=utf-8")],
            *text,
        )
            .into_response(),
        None => Problem::new(Code::NotFound).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_page() {
        for code in Code::all() {
            assert!(
                PAGES.iter().any(|(name, _)| *name == code.as_str()),
                "{code:?}"
            );
        }
    }
}
