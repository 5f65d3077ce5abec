//! What ends a server when the process that started it is gone, however it went.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::programs::Failure;

/// A shell that waits on a pipe of this process.
pub(crate) struct Watchdog(Child);

impl Watchdog {
    /// Starts it for a folder. From here on the folder and what runs in it end with this process.
    pub(crate) fn start(folder: &Path) -> Result<Self, Failure> {
        Command::new("sh")
            .args(["-c", include_str!("watchdog.sh"), "watchdog"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map(Self)
            .map_err(|error| Failure(format!("the watchdog (sh) does not start: {error}")))
    }
}

impl Drop for Watchdog {
    /// Lets it do its work now. It gives up by itself after some ten seconds.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
