//! The client's side.

pub(crate) mod http;
pub(crate) mod stdio;

use std::{sync::Arc, time::Duration};

use crate::{session::Incoming, wire::Ticket};

/// One client's conversation, as a front drives it.
pub(crate) trait Conversation: Send + Sync + 'static {
    /// Takes a message. Those of one stream are handed over one after the other, those of several
    /// HTTP connections as they come; what takes long goes on by itself.
    fn receive(self: &Arc<Self>, incoming: Incoming) -> impl Future<Output = ()> + Send;

    /// The client of an HTTP front went away before this request was answered. Whether that is a
    /// cancel is for the revision to say; a guarded call goes on.
    fn disconnected(self: &Arc<Self>, ticket: Ticket) {
        let _ = ticket;
    }

    /// The client says nothing more. Completes when what is under way is answered, or the time is
    /// over.
    fn end(self: &Arc<Self>, drain_for: Duration) -> impl Future<Output = ()> + Send;
}
