use std::{error::Error as StdError, io, time::Duration};

use axum::body::{Body, HttpBody as _};
use bytes::Bytes;
use counterfoil_core::Code;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::{ErrorStatus, Problem};

/// Largest request body that is read unless told otherwise, in bytes: 1 MiB.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// How long a body may take to arrive.
const ARRIVES_FOR: Duration = Duration::from_secs(30);

/// A request's body did not arrive in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request's body did not arrive in time")]
pub(crate) struct Slow;

impl Slow {
    /// As readers of a body know it.
    pub(crate) fn error() -> Box<dyn StdError + Send + Sync> {
        io::Error::new(io::ErrorKind::TimedOut, Self).into()
    }
}

/// Reads a request's body whole, within bounds of size and time.
pub(crate) async fn collect(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return Err(too_large(bytes_max));
    }
    let limited = Limited::new(body, bytes_max);
    match tokio::time::timeout(ARRIVES_FOR, limited.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if caused_by::<LengthLimitError>(error.as_ref()) => {
            Err(too_large(bytes_max))
        }
        Ok(Err(error)) if timed_out(error.as_ref()) => Err(slow()),
        Ok(Err(_)) => {
            Err(Problem::new(Code::MalformedRequest).detail("The body broke off before its end."))
        }
        Err(_) => Err(slow()),
    }
}

pub(crate) fn too_large(bytes_max: usize) -> Problem {
    Problem::new(Code::TooLarge).detail(format!("The body may have {bytes_max} bytes."))
}

fn slow() -> Problem {
    Problem::new(Code::MalformedRequest)
        .status(ErrorStatus::REQUEST_TIMEOUT)
        .detail("The body did not arrive in time; nothing was done.")
        .next_action("Send the same call with the same key")
        .retryable(true)
}

fn timed_out(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn caused_by<E: StdError + 'static>(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<E>() {
            return true;
        }
        cause = error.source();
    }
    false
}
