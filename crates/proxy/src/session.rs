//! One client's conversation with the upstream.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    keyless::Channel,
    wire::{HttpFacts, Ticket},
};

/// A message of a client's, as its front hands it over.
pub(crate) struct Incoming {
    /// One message (or batch), as it came.
    pub(crate) text: Bytes,
    /// Names it, should it be a request.
    pub(crate) ticket: Ticket,
    /// The connection it came on.
    pub(crate) channel: Channel,
    /// From an HTTP front.
    pub(crate) http: Option<Arc<HttpFacts>>,
}
