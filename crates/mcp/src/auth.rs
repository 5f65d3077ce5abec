use std::{net::SocketAddr, time::Duration};

use counterfoil_engine::{Caller, store::BoxFuture};
use http::HeaderMap;

/// Why a request has no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No credential: HTTP 401.
    #[error("no credential; send `Authorization: Bearer <agent key>`")]
    Missing,
    /// A credential that is not valid (any more): HTTP 401.
    #[error("the credential is not valid (any more)")]
    Invalid,
    /// A valid credential that may not do this: HTTP 403.
    #[error("the credential does not allow this")]
    Forbidden,
    /// Too many requests: HTTP 429.
    #[error("too many requests")]
    RateLimited {
        /// When to try again.
        retry_after: Duration,
    },
    /// It could not be found out: HTTP 503.
    #[error("the credential could not be checked now; nothing was done")]
    Unavailable {
        /// When to try again.
        retry_after: Duration,
    },
}

/// Finds out from the headers of a request who calls, and whether they may call now.
///
/// Called once for every HTTP request, before its body is looked at. The rate limit is asked here
/// too, so that it comes before anything touches a receipt: once for the request, with which the
/// first message in it is counted. [`crate::Builder::limiter`] is asked for each further one.
pub trait Authenticate: Send + Sync + 'static {
    /// The caller. `remote` is the other end of the connection, if the server that runs the routes
    /// tells it (`axum::extract::ConnectInfo<SocketAddr>` among the request's extensions): failures
    /// are best limited by it. A request without a credential is [`AuthError::Missing`], whatever
    /// others did.
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        remote: Option<SocketAddr>,
    ) -> BoxFuture<'a, Result<Caller, AuthError>>;
}
