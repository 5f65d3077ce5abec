//! The REST surface: one handler a route, which translates and decides nothing.

mod agent_keys;
mod edge;
mod notes;
mod openapi;
mod operations;
mod pages;
mod probes;
mod query;
mod refusal;

use axum::{
    Extension, Router, middleware,
    routing::{MethodRouter, delete, get, post},
};
use counterfoil_http::{bound_body, catch_panics, with_fallbacks};

use crate::state::Shared;

pub(crate) use openapi::document;

/// Every route of the REST surface with its methods; the OpenAPI document has the same.
fn routes() -> Vec<(&'static str, MethodRouter<Shared>)> {
    vec![
        ("/api/v1/notes", get(notes::list).post(notes::create)),
        ("/api/v1/notes/{id}", get(notes::show)),
        ("/api/v1/operations", get(operations::list)),
        ("/api/v1/operations/{id}", get(operations::show)),
        ("/api/v1/agent-keys", post(agent_keys::issue)),
        ("/api/v1/agent-keys/{id}/rotate", post(agent_keys::rotate)),
        ("/api/v1/agent-keys/{id}", delete(agent_keys::revoke)),
    ]
}

/// What answers without a credential.
fn open_routes() -> Vec<(&'static str, MethodRouter<Shared>)> {
    vec![
        ("/healthz", get(probes::healthz)),
        ("/readyz", get(probes::readyz)),
        ("/metrics", get(probes::metrics)),
        ("/openapi.json", get(probes::openapi)),
        ("/docs/errors/{code}", get(pages::show)),
    ]
}

/// The whole surface, with `mcp` beside it.
pub(crate) fn router(shared: Shared, body_bytes_max: usize, mcp: Router) -> Router {
    let rest = shared.rest.clone();
    let mut api = Router::new();
    for (path, route) in routes() {
        api = api.route(path, route);
    }
    let api = api.route_layer(middleware::from_fn_with_state(
        shared.clone(),
        edge::authenticate,
    ));
    let mut open = Router::new();
    for (path, route) in open_routes() {
        open = open.route(path, route);
    }
    let router = with_fallbacks(api.merge(open), &rest).with_state(shared);
    router
        .merge(mcp)
        .layer(Extension(rest))
        .layer(middleware::from_fn_with_state(body_bytes_max, bound_body))
        .layer(middleware::from_fn(catch_panics))
        .layer(middleware::from_fn(edge::measure))
}
