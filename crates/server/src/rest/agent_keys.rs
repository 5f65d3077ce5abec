use axum::{extract::State, response::Response};
use counterfoil_core::{OperationId, Reply};
use counterfoil_http::{Mutation, Problem};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    edge::{Admin, Id},
    query::nothing_ignored,
    refusal::{failure_of, problem_of},
};
use crate::{
    AgentKey, Credential, Error, NewAgentKey, Role, agent_keys,
    agent_keys::{insert, revoke as revoke_row, rotate as rotate_row},
    state::Shared,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewKey {
    name: String,
    #[serde(default)]
    role: Option<String>,
}

/// A body without members, which may also be left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

pub(super) async fn issue(
    State(shared): State<Shared>,
    Admin(admin): Admin,
    mutation: Mutation,
) -> Response {
    let operation = &shared.operations.hand_out_key;
    let validate = |mutation: &Mutation| {
        nothing_ignored(mutation)?;
        let NewKey { name, role } = mutation.json()?;
        let role = role.as_deref().map_or(Ok(Role::Member), str::parse);
        let draft = role.and_then(|role| {
            shared.agent_keys.draft(NewAgentKey {
                workspace: admin.workspace.clone(),
                name,
                role,
            })
        });
        draft.map_err(|error| problem_of(&shared.rest, error))
    };
    mutation
        .atomically(&shared.engine, operation, validate, |tx| {
            Box::pin(async move {
                let issued = tx.input;
                insert(tx.sql, &issued.agent_key, issued.credential.hash()).await?;
                let body = handed_out(&issued.agent_key, &issued.credential, tx.operation_id);
                Ok(Reply::json(201, &body))
            })
        })
        .await
}

pub(super) async fn rotate(
    State(shared): State<Shared>,
    Admin(admin): Admin,
    Id(id): Id,
    mutation: Mutation,
) -> Response {
    let operation = &shared.operations.hand_out_key;
    let now = shared.engine.now();
    let validate = |mutation: &Mutation| {
        no_body(mutation)?;
        // Were its answer lost, nobody could ask for it any more: the old secret is refused, and
        // the new one is in that answer only.
        if admin.id.as_str() == id {
            let why = "names the key of this very call: if the answer were lost, you would be locked out; use another admin key, or `counterfoil keys rotate` on the server";
            return Err(problem_of(&shared.rest, Error::invalid("id", why)));
        }
        let secret = shared.agent_keys.secret_for(&id);
        secret.map_err(|error| problem_of(&shared.rest, error))
    };
    mutation
        .atomically(&shared.engine, operation, validate, move |tx| {
            Box::pin(async move {
                let (credential, workspace) = (tx.input, &tx.caller.workspace);
                let hash = credential.hash();
                let key = rotate_row(tx.sql, workspace, credential.id(), hash, now)
                    .await
                    .map_err(failure_of)?;
                let body = handed_out(&key, credential, tx.operation_id);
                Ok(Reply::json(200, &body))
            })
        })
        .await
}

pub(super) async fn revoke(
    State(shared): State<Shared>,
    Admin(admin): Admin,
    Id(id): Id,
    mutation: Mutation,
) -> Response {
    let operation = &shared.operations.revoke_key;
    let now = shared.engine.now();
    let validate = |mutation: &Mutation| {
        no_body(mutation)?;
        if admin.id.as_str() == id {
            let why = "names the key of this very call, which could not be answered any more; use another admin key, or `counterfoil keys revoke`";
            return Err(problem_of(&shared.rest, Error::invalid("id", why)));
        }
        Ok(id.clone())
    };
    mutation
        .atomically(&shared.engine, operation, validate, move |tx| {
            Box::pin(async move {
                let key = revoke_row(tx.sql, &tx.caller.workspace, tx.input, now)
                    .await
                    .map_err(failure_of)?;
                let mut body = agent_keys::to_json(&key);
                complete(&mut body, tx.operation_id);
                Ok(Reply::json(200, &body))
            })
        })
        .await
}

fn no_body(mutation: &Mutation) -> Result<(), Problem> {
    nothing_ignored(mutation)?;
    if mutation.body().is_empty() {
        return Ok(());
    }
    mutation.json::<Nothing>().map(drop)
}

/// The answer that carries a key. What is stored of it has `null` there, and the way back stands
/// beside it.
fn handed_out(key: &AgentKey, credential: &Credential, operation_id: Option<OperationId>) -> Value {
    let mut body = agent_keys::to_json(key);
    body["key"] = json!(credential.reveal().as_str());
    body["next_action"] = json!(format!(
        "The key is in the first answer only. If it was lost, rotate it: POST /api/v1/agent-keys/{}/rotate",
        key.id
    ));
    complete(&mut body, operation_id);
    body
}

fn complete(body: &mut Value, operation_id: Option<OperationId>) {
    body["status"] = json!("succeeded");
    body["operation_id"] = json!(operation_id.map(|id| id.to_string()));
}
