use axum::{
    Json,
    extract::State,
    http::Uri,
    response::{IntoResponse as _, Response},
};
use counterfoil_core::Reply;
use counterfoil_http::Mutation;
use serde::Deserialize;
use serde_json::json;

use super::{
    edge::{Id, Principal},
    query::{ListQuery, nothing_ignored},
    refusal::{problem_of, refuse},
};
use crate::{
    Error,
    notes::{self, PAGE_DEFAULT},
    state::Shared,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewNote {
    body: String,
}

pub(super) async fn create(
    State(shared): State<Shared>,
    Principal(key): Principal,
    mutation: Mutation,
) -> Response {
    let operation = &shared.operations.create_note;
    let validate = |mutation: &Mutation| {
        nothing_ignored(mutation)?;
        let NewNote { body } = mutation.json()?;
        notes::draft(&shared.engine, &key.id, body).map_err(|error| problem_of(&shared.rest, error))
    };
    mutation
        .atomically(&shared.engine, operation, validate, |tx| {
            Box::pin(async move {
                notes::insert(tx.sql, &tx.caller.workspace, tx.input).await?;
                let mut body = json!({
                    "status": "succeeded",
                    "operation_id": tx.operation_id.map(|id| id.to_string()),
                });
                notes::show(tx.input, &mut body);
                let mut reply = Reply::json(201, &body);
                let location = format!("/api/v1/notes/{}", tx.input.id);
                reply.headers.push(("location".to_owned(), location));
                Ok(reply)
            })
        })
        .await
}

pub(super) async fn show(
    State(shared): State<Shared>,
    Principal(key): Principal,
    Id(id): Id,
) -> Response {
    match notes::get(&shared.engine, &key.workspace, &id).await {
        Ok(note) => Json(notes::to_json(&note)).into_response(),
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
        if query.state.is_some() {
            return Err(Error::invalid("state", "is no parameter of this list"));
        }
        let limit = query.limit(PAGE_DEFAULT);
        notes::list(
            &shared.engine,
            &key.workspace,
            limit,
            query.cursor.as_deref(),
        )
        .await
    };
    match page.await {
        Ok(page) => Json(page.to_json()).into_response(),
        Err(error) => refuse(&shared.rest, error),
    }
}
