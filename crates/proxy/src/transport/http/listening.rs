//! The stream that a server of the older era may offer beside those of the requests.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Upstream,
    answers::{self, Said},
    exchange::{Opened, open, resume_after},
    sse::Place,
};

/// Attempts one after the other that bring nothing, before the stream is given up.
const ATTEMPTS_MAX: u32 = 20;
/// The longest wait between two of them.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A stream that was open this long was of use, even if nothing came.
const LIVED: Duration = Duration::from_secs(10);

/// Listens until `end`, or until the server refuses: most have no such stream.
pub(super) async fn run(upstream: Arc<Upstream>, epoch: u64, end: CancellationToken) {
    tokio::select! {
        biased;
        () = end.cancelled() => {}
        why = listen(&upstream, epoch) => {
            tracing::debug!(why, "there is no stream beside the requests");
        }
    }
}

async fn listen(upstream: &Upstream, epoch: u64) -> String {
    let mut place = Place::default();
    let mut attempts = 0;
    loop {
        let known = upstream.session.known();
        if known.epoch != epoch {
            return "the session is over".to_owned();
        }
        let (was_of_use, why) = match open(upstream, &known, &place).await {
            Opened::Refused(why) => return why,
            Opened::NotNow(why) => (false, why),
            Opened::Stream(mut stream) => {
                let begun = Instant::now();
                let mut anything = false;
                let why = loop {
                    match stream.next().await {
                        Ok(Some(event)) => {
                            anything = true;
                            take(upstream, &event).await;
                        }
                        Ok(None) => break "it ended".to_owned(),
                        Err(why) => break why,
                    }
                };
                let moved = stream.place().last_event_id != place.last_event_id;
                place = stream.place().clone();
                (anything || moved || begun.elapsed() >= LIVED, why)
            }
        };
        attempts = if was_of_use { 0 } else { attempts + 1 };
        match wait(attempts, resume_after(&place)) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => return why,
        }
    }
}

/// The wait after so many attempts that brought nothing; `None`: no other attempt is made.
fn wait(attempts: u32, first: Duration) -> Option<Duration> {
    let longer = 1 << attempts.saturating_sub(1).min(6);
    (attempts < ATTEMPTS_MAX).then(|| first.saturating_mul(longer).min(WAIT_MAX))
}

async fn take(upstream: &Upstream, event: &Bytes) {
    for text in answers::messages(event) {
        match answers::judge(text, None) {
            Said::Other(text) => upstream.tell(text, None).await,
            // It belongs on the request's own stream, but an answer is an answer.
            Said::Foreign(Some(id), text) => {
                if upstream.flights.take(&id) {
                    upstream.tell(text, None).await;
                }
            }
            Said::Answer(_) | Said::Foreign(None, _) | Said::Unreadable => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_never_brings_anything_is_asked_for_more_rarely_and_then_not_at_all() {
        let seconds = |attempts| wait(attempts, Duration::from_secs(1)).map(|wait| wait.as_secs());
        let waits: Vec<_> = (0..8).map(|attempts| seconds(attempts).unwrap()).collect();
        assert_eq!(waits, [1, 1, 2, 4, 8, 16, 32, 60]);
        assert_eq!((seconds(19), seconds(20)), (Some(60), None));
    }
}
