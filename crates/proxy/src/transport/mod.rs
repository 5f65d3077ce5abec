//! The upstream's side.

mod http;
pub(crate) mod stdio;

use std::sync::{Arc, Weak};

use crate::{
    settings::{Settings, Target},
    wire::{Failure, Sink, Transport},
};

/// A way to the upstream that the settings name. What it says goes to `sink`.
pub(crate) fn start(
    settings: &Settings,
    sink: Weak<dyn Sink>,
) -> Result<Arc<dyn Transport>, Failure> {
    let largest = settings.message_bytes_max;
    match &settings.target {
        target @ Target::Command { .. } => {
            let child = stdio::Child::start(target, stdio::Limits::new(largest), sink)?;
            Ok(child)
        }
        Target::Url { url, headers } => {
            Ok(http::HttpTransport::start(url, headers, largest, sink)?)
        }
    }
}
