//! The HTTP client: it does what it is told, once.

use std::{error::Error as _, sync::Arc, time::Duration};

use reqwest::{Client, Url, redirect, retry};
use rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::wire::Failure;

/// Longest wait for a name, a connection and its TLS handshake together.
const CONNECT_FOR: Duration = Duration::from_secs(10);
/// How long a connection is kept for the next request. Much used servers close theirs after 5 s
/// without one; a request that meets such an end is lost, and nobody knows whether it was read.
const IDLE_FOR: Duration = Duration::from_secs(4);
/// Most connections that are kept so.
const IDLE_MAX: usize = 16;
/// Longest text of an error, in characters.
const WHY_MAX: usize = 300;

/// The address of an endpoint.
///
/// # Errors
/// [`Failure::NotSent`], without the address: there may be a secret in it.
pub(super) fn endpoint(url: &str) -> Result<Url, Failure> {
    let usable = Url::parse(url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    usable.ok_or_else(|| {
        Failure::NotSent("the server's address must begin with http:// or https://".to_owned())
    })
}

/// The certificates that the system trusts; none where none is needed.
pub(super) fn roots(url: &Url) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    if url.scheme() == "https" {
        for certificate in rustls_native_certs::load_native_certs().certs {
            // One unreadable certificate of the system says nothing about the others.
            let _ = roots.add(certificate);
        }
    }
    roots
}

/// A client for one server.
///
/// No redirect is followed (a POST would become a GET, or go to somebody else with its
/// credentials), nothing is sent twice, no cookie is kept, and no proxy of the environment is used:
/// it would read what is sent, and it says nothing of how far a request came. What the pool does by
/// itself is harmless: it takes another connection if the one it chose had ended before a byte of
/// the request was given to it. HTTP/1.1 alone: there the end of a connection concerns one request.
pub(super) fn client(roots: RootCertStore) -> Result<Client, Failure> {
    let unfit = |why: String| Failure::NotSent(format!("TLS cannot be set up: {why}"));
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .no_proxy()
        .referer(false)
        .connect_timeout(CONNECT_FOR)
        .pool_idle_timeout(IDLE_FOR)
        .pool_max_idle_per_host(IDLE_MAX)
        .user_agent(concat!("counterfoil/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| unfit(error_text(error)))
}

/// What an error says about whether anything was sent: without a connection nothing was. Anything
/// else may have been sent.
pub(super) fn failure(error: reqwest::Error) -> Failure {
    if error.is_connect() {
        Failure::NotSent(error_text(error))
    } else {
        Failure::Lost(error_text(error))
    }
}

/// What an error says, with its causes and without the address.
pub(super) fn error_text(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        if !text.contains(&why) {
            text.push_str(": ");
            text.push_str(&why);
        }
        cause = error.source();
    }
    text.chars().take(WHY_MAX).collect()
}
