use axum::{extract::Query, http::Uri};
use counterfoil_http::{Issue, Mutation, Problem};
use serde::Deserialize;

use crate::Error;

/// The query of a list. A parameter nobody knows is refused: it would be ignored silently.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    limit: Option<String>,
    pub(super) cursor: Option<String>,
    pub(super) state: Option<String>,
}

impl ListQuery {
    pub(super) fn read(uri: &Uri) -> Result<Self, Error> {
        let Query(query) = Query::try_from_uri(uri).map_err(|error| {
            let cause = std::error::Error::source(&error);
            let why = cause.map_or_else(|| error.to_string(), ToString::to_string);
            Error::invalid("query", why)
        })?;
        Ok(query)
    }

    /// The limit, or `default`; what is no number is out of every range.
    pub(super) fn limit(&self, default: u32) -> u32 {
        self.limit
            .as_ref()
            .map_or(default, |text| text.parse().unwrap_or(0))
    }
}

/// Refuses what a mutation would ignore silently: a query. A key under a name that is not taken is
/// refused before, and the body's unknown fields where it is read.
pub(super) fn nothing_ignored(mutation: &Mutation) -> Result<(), Problem> {
    if !mutation.query().is_empty() {
        let message = "this route takes no query; a key goes into the header Idempotency-Key";
        return Err(Problem::invalid([Issue::new("/query", message)]));
    }
    Ok(())
}
