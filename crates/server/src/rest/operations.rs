use axum::{
    Json,
    extract::State,
    http::Uri,
    response::{IntoResponse as _, Response},
};

use super::{
    edge::{Id, Principal},
    query::ListQuery,
    refusal::refuse,
};
use crate::{
    operations::{self, OperationFilter, PAGE_DEFAULT},
    state::Shared,
};

pub(super) async fn show(
    State(shared): State<Shared>,
    Principal(key): Principal,
    Id(id): Id,
) -> Response {
    match operations::get(&shared.engine, &key, &id).await {
        Ok(view) => Json(view.to_json()).into_response(),
        Err(error) => refuse(&shared.rest, error),
    }
}

pub(super) async fn list(
    State(shared): State<Shared>,
    Principal(key): Principal,
    uri: Uri,
) -> Response {
    let page = async {
        let query = ListQuery::read(&uri)?;
        let filter = OperationFilter {
            state: query.state.as_deref(),
            limit: query.limit(PAGE_DEFAULT),
            cursor: query.cursor.as_deref(),
        };
        operations::list(&shared.engine, &key, &filter).await
    };
    match page.await {
        Ok(page) => Json(page.to_json()).into_response(),
        Err(error) => refuse(&shared.rest, error),
    }
}
