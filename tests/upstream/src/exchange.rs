use std::time::Duration;

/// The way back to whoever sent a request: a line of a pipe, or an HTTP answer.
pub(crate) trait Exchange {
    /// Says something before the answer. Over HTTP this makes the answer a stream.
    fn tell(&mut self, text: &[u8]);

    /// Answers. Over HTTP without a stream this is all there is.
    fn answer(&mut self, text: &[u8]);

    /// Answers with a refusal of the request as such; over HTTP under this status.
    fn refuse(&mut self, status: u16, text: &[u8]);

    /// Over HTTP: what follows is a stream.
    fn stream(&mut self);

    /// Answers with a bare HTTP status. Says whether that could be done.
    fn status(&mut self, code: u16, headers: &[(&str, &str)], body: &str) -> bool;

    /// Half of the answer, and nothing more. The connection stays.
    fn torn(&mut self, text: &[u8]);

    /// Ends the connection without more words. `half` of an answer may be written first.
    fn cut(&mut self, half: &[u8]);

    /// Whether the client cancelled the request, or is gone.
    fn is_over(&mut self) -> bool;

    /// Waits, at most so long, and says whether the client stayed.
    fn wait(&mut self, limit: Duration) -> bool {
        const STEP: Duration = Duration::from_millis(10);
        let mut left = limit;
        loop {
            if self.is_over() {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            let step = left.min(STEP);
            std::thread::sleep(step);
            left -= step;
        }
    }
}
