//! The HTTP client: it does what it is told, once.

use std::{error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tower::{Service as _, service_fn};

use crate::wire::Failure;

/// Longest wait for a name, a connection and its TLS handshake together.
const CONNECT_FOR: Duration = Duration::from_secs(10);
/// How long a connection is kept for the next request. Much used servers close theirs after 5 s
/// without one; a request that meets such an end is lost, and nobody knows whether it was read.
const IDLE_FOR: Duration = Duration::from_secs(4);
/// Most connections that are kept so.
const IDLE_MAX: usize = 16;
/// A peer that is gone without a word is noticed after a minute.
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 3;
/// Longest text of an error, in characters.
const WHY_MAX: usize = 300;

type Body = Full<Bytes>;
type Failed = Box<dyn Error + Send + Sync>;

/// Sends requests.
pub(super) trait Sends: Send + Sync {
    /// Sends it once; the head of the response.
    fn send(
        &self,
        request: http::Request<Body>,
    ) -> BoxFuture<'static, Result<http::Response<hyper::body::Incoming>, Failure>>;
}

/// The address of an endpoint.
///
/// # Errors
/// [`Failure::NotSent`], without the address: there may be a secret in it.
pub(super) fn endpoint(url: &str) -> Result<Uri, Failure> {
    let unfit = |why: &str| Err(Failure::NotSent(why.to_owned()));
    let uri = url.parse::<Uri>().ok();
    let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
    let Some(uri) = uri else {
        return unfit("the server's address must begin with http:// or https:// and name a host");
    };
    if uri
        .authority()
        .is_none_or(|place| place.as_str().contains('@'))
    {
        return unfit("a name and password in the address are not used; configure a header");
    }
    Ok(uri)
}

/// The certificates that the system trusts; none where none is needed.
pub(super) fn roots(uri: &Uri) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    if uri.scheme_str() == Some("https") {
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
/// it would read what is sent, and it says nothing of how far a request came. HTTP/1.1 alone:
/// there the end of a connection concerns one request.
///
/// # Errors
/// [`Failure::NotSent`]: TLS is of no use as it is.
pub(super) fn client(roots: RootCertStore) -> Result<Arc<dyn Sends>, Failure> {
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::NotSent(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(PROBE_EVERY));
    tcp.set_keepalive_interval(Some(PROBE_EVERY));
    tcp.set_keepalive_retries(Some(PROBES));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    let bounded = service_fn(move |uri: Uri| {
        let mut connector = connector.clone();
        Box::pin(async move {
            let connecting = async {
                std::future::poll_fn(|context| connector.poll_ready(context)).await?;
                connector.call(uri).await
            };
            match tokio::time::timeout(CONNECT_FOR, connecting).await {
                Ok(connected) => connected,
                Err(_) => {
                    let seconds = CONNECT_FOR.as_secs();
                    Err(Failed::from(format!("no connection within {seconds} s")))
                }
            }
        })
    });
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_FOR)
        .pool_max_idle_per_host(IDLE_MAX)
        .retry_canceled_requests(false)
        .build(bounded);
    Ok(Arc::new(client))
}

impl<C> Sends for Client<C, Body>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    fn send(
        &self,
        request: http::Request<Body>,
    ) -> BoxFuture<'static, Result<http::Response<hyper::body::Incoming>, Failure>> {
        let response = self.request(request);
        Box::pin(async move {
            // Without a connection nothing was sent. Anything else may have been, also where a
            // connection that was kept turned out to have ended.
            response.await.map_err(|error| {
                if error.is_connect() {
                    Failure::NotSent(error_text(&error))
                } else {
                    Failure::Lost(error_text(&error))
                }
            })
        })
    }
}

/// What an error says, with its causes.
pub(super) fn error_text(error: &dyn Error) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_no_use_is_refused_without_being_shown() {
        for url in [
            "ftp://s3cret.test/",
            "s3cret",
            "http://",
            "https://u:s3cret@a.test/mcp",
        ] {
            let why = endpoint(url).unwrap_err().to_string();
            assert!(!why.contains("s3cret"), "{why}");
        }
        assert!(endpoint("http://[::1]:8080/mcp?key=a").is_ok());
    }
}
