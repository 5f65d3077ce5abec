//! A client on a pipe.

use std::io::{self, BufRead as _, Write as _};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::exchange::Exchange;
use crate::message::Message;
use crate::server::Server;

/// Requests that may take their time: each on a thread of its own.
const SLOW: &[&str] = &["tools/call", "tasks/result", "subscriptions/listen"];

/// Answers on standard output.
struct Pipe {
    server: Arc<Server>,
    place: String,
    out: Arc<Mutex<io::Stdout>>,
}

/// Serves until standard input ends. Threads that still run then end with the process.
pub(crate) fn serve(server: &Arc<Server>) -> io::Result<()> {
    let out = Arc::new(Mutex::new(io::stdout()));
    for line in io::stdin().lock().split(b'\n') {
        let line = line?;
        let text = String::from_utf8_lossy(&line);
        if text.trim().is_empty() {
            continue;
        }
        let Some(message) = Message::read(&text, Vec::new()) else {
            let why =
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no message"}}"#;
            write(&out, why.as_bytes());
            continue;
        };
        if message.id.is_none() || message.method.is_none() {
            server.take(&message);
            continue;
        }
        server.begin(&message.place());
        let mut pipe = Pipe {
            server: Arc::clone(server),
            place: message.place(),
            out: Arc::clone(&out),
        };
        let slow = message
            .method
            .as_deref()
            .is_some_and(|method| SLOW.contains(&method));
        if slow {
            let server = Arc::clone(server);
            thread::spawn(move || server.serve(&mut pipe, &message));
        } else {
            server.serve(&mut pipe, &message);
        }
    }
    Ok(())
}

fn write(out: &Mutex<io::Stdout>, text: &[u8]) {
    let mut out = out.lock().expect("nobody panics with it");
    // In one write, as it is one line.
    let mut line = text.to_vec();
    line.push(b'\n');
    // Whoever read it may be gone.
    let _ = out.write_all(&line);
    let _ = out.flush();
}

impl Exchange for Pipe {
    fn tell(&mut self, text: &[u8]) {
        write(&self.out, text);
    }

    fn answer(&mut self, text: &[u8]) {
        write(&self.out, text);
    }

    fn refuse(&mut self, _: u16, text: &[u8]) {
        self.answer(text);
    }

    fn stream(&mut self) {}

    fn status(&mut self, _: u16, _: &[(&str, &str)], _: &str) -> bool {
        false
    }

    fn torn(&mut self, text: &[u8]) {
        write(&self.out, &text[..text.len() / 2]);
    }

    fn cut(&mut self, half: &[u8]) {
        let mut out = self.out.lock().expect("nobody panics with it");
        let _ = out.write_all(half);
        let _ = out.flush();
        std::process::exit(0);
    }

    fn is_over(&mut self) -> bool {
        self.server.is_cancelled(&self.place)
    }
}
