use std::{
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream},
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    Limits, serve,
    standard::{Restore, own, reader, writer},
};
use crate::{
    front::Conversation,
    keyless::Channel,
    lines::Bounds,
    session::Incoming,
    wire::{Client, Handed, Ticket},
};

/// Hands on what it is given.
struct Recording {
    client: Arc<dyn Client>,
    heard: mpsc::UnboundedSender<Heard>,
    /// A message that says so stays until this is notified.
    go_on: Notify,
}

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Message(Ticket, Channel, String),
    End(Duration),
}

impl Conversation for Recording {
    async fn receive(self: &Arc<Self>, incoming: Incoming) {
        assert!(incoming.http.is_none());
        let text = String::from_utf8(incoming.text.to_vec()).unwrap();
        let stays = text.contains("stay");
        let heard = Heard::Message(incoming.ticket, incoming.channel, text);
        self.heard.send(heard).unwrap();
        if stays {
            self.go_on.notified().await;
        }
    }

    async fn end(self: &Arc<Self>, drain_for: Duration) {
        self.heard.send(Heard::End(drain_for)).unwrap();
    }
}

const CHANNEL: Channel = Channel([7; 16]);

fn limits() -> Limits {
    Limits::new(100, Duration::from_secs(3))
}

struct Served {
    session: Arc<Recording>,
    heard: mpsc::UnboundedReceiver<Heard>,
    stdin: Option<DuplexStream>,
    stdout: BufReader<DuplexStream>,
    stop: Arc<Notify>,
    serving: JoinHandle<()>,
}

/// Serves a client whose pipes hold so many bytes.
async fn served(limits: Limits, pipe_bytes: usize) -> Served {
    let (stdin, reader) = tokio::io::duplex(pipe_bytes);
    let (writer, stdout) = tokio::io::duplex(pipe_bytes);
    let (tell, heard) = mpsc::unbounded_channel();
    let (stop, made) = (Arc::new(Notify::new()), Arc::new(OnceLock::new()));
    let (stopped, slot) = (Arc::clone(&stop), Arc::clone(&made));
    let serving = tokio::spawn(async move {
        let session = |client| {
            let recording = Recording {
                client,
                heard: tell,
                go_on: Notify::new(),
            };
            let session = Arc::new(recording);
            assert!(slot.set(Arc::clone(&session)).is_ok());
            session
        };
        serve(
            session,
            CHANNEL,
            (reader, writer),
            limits,
            stopped.notified(),
        )
        .await;
    });
    while made.get().is_none() {
        tokio::task::yield_now().await;
    }
    Served {
        session: Arc::clone(made.get().unwrap()),
        heard,
        stdin: Some(stdin),
        stdout: BufReader::new(stdout),
        stop,
        serving,
    }
}

impl Served {
    async fn write(&mut self, text: &str) {
        self.stdin
            .as_mut()
            .unwrap()
            .write_all(text.as_bytes())
            .await
            .unwrap();
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        timeout(Duration::from_secs(10), read)
            .await
            .unwrap()
            .unwrap();
        line
    }

    async fn error_code(&mut self) -> i64 {
        let answer: Value = serde_json::from_str(&self.line().await).unwrap();
        assert_eq!(answer.get("id"), None);
        answer["error"]["code"].as_i64().unwrap()
    }

    async fn hears(&mut self) -> Heard {
        timeout(Duration::from_secs(10), self.heard.recv())
            .await
            .unwrap()
            .unwrap()
    }
}

fn message(ticket: u64, text: &str) -> Heard {
    Heard::Message(Ticket(ticket), CHANNEL, text.to_owned())
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

#[tokio::test]
async fn messages_are_handed_over_in_order_and_the_end_is_told() {
    let mut served = served(limits(), 1 << 16).await;
    served
        .write("{\"a\":1}\n\n[{\"b\": 2 }]\r\n{\"last\":3}")
        .await;
    drop(served.stdin.take());
    assert_eq!(served.hears().await, message(1, "{\"a\":1}"));
    assert_eq!(served.hears().await, message(2, "[{\"b\": 2 }]"));
    assert_eq!(served.hears().await, message(3, "{\"last\":3}"));
    assert_eq!(served.hears().await, Heard::End(Duration::from_secs(3)));
    served.serving.await.unwrap();
    // Its output is closed too.
    assert_eq!(
        served.stdout.read_line(&mut String::new()).await.unwrap(),
        0
    );
}

#[tokio::test]
async fn what_is_no_message_is_answered_and_goes_no_further() {
    let mut served = served(limits(), 1 << 16).await;
    served.write("{\"half\":\n").await;
    assert_eq!(served.error_code().await, -32700);
    served.write("17\n").await;
    assert_eq!(served.error_code().await, -32600);
    served
        .write(&format!("{{\"long\":\"{}\"}}\n", "x".repeat(100)))
        .await;
    assert_eq!(served.error_code().await, -32600);
    served.write("{\"good\":1}\n").await;
    let Heard::Message(_, _, text) = served.hears().await else {
        panic!("the end?");
    };
    assert_eq!(text, "{\"good\":1}");
}

#[tokio::test]
async fn an_answer_is_over_when_it_was_taken_and_gone_when_the_client_is() {
    let mut served = served(limits(), 16).await;
    let client = Arc::clone(&served.session.client);
    let first = client.answer(Ticket(1), bytes("{\"first\":1,\n\"long\":2}"));
    tokio::pin!(first);
    // More than the pipe holds: not taken before somebody reads.
    for _ in 0..5 {
        tokio::task::yield_now().await;
        assert!(futures_util::poll!(&mut first).is_pending());
    }
    assert_eq!(served.line().await, "{\"first\":1, \"long\":2}\n");
    assert_eq!(first.await, Handed::Over);
    let second = client.answer(Ticket(2), bytes(&"x".repeat(100)));
    let waiting = client.answer(Ticket(3), bytes("{}"));
    drop(served.stdout);
    assert_eq!(second.await, Handed::Gone);
    assert_eq!(waiting.await, Handed::Gone);
    assert_eq!(client.answer(Ticket(4), bytes("{}")).await, Handed::Gone);
    client.tell(None, bytes("{}")).await;
    // Nobody is there to answer, so there is nothing to read either.
    assert_eq!(
        served.heard.recv().await,
        Some(Heard::End(Duration::from_secs(3)))
    );
    served.serving.await.unwrap();
}

#[tokio::test]
async fn nothing_more_is_said_about_what_was_cancelled() {
    let mut served = served(limits(), 1 << 16).await;
    let client = Arc::clone(&served.session.client);
    client.silence(Ticket(1));
    client
        .tell(Some(Ticket(1)), bytes("{\"progress\":1}"))
        .await;
    assert_eq!(
        client.answer(Ticket(1), bytes("{\"answer\":1}")).await,
        Handed::Gone
    );
    client
        .tell(Some(Ticket(2)), bytes("{\"progress\":2}"))
        .await;
    assert_eq!(
        client.answer(Ticket(2), bytes("{\"answer\":2}")).await,
        Handed::Over
    );
    assert_eq!(served.line().await, "{\"progress\":2}\n");
    assert_eq!(served.line().await, "{\"answer\":2}\n");
}

#[tokio::test(start_paused = true)]
async fn i6_a_client_that_never_reads_holds_up_nobody_for_long_and_little_memory() {
    let waiting = Bounds {
        lines_max: 100,
        ..Bounds::default()
    };
    let limits = Limits {
        waiting,
        ..limits()
    };
    let mut served = served(limits, 16).await;
    let client = Arc::clone(&served.session.client);
    let start = Instant::now();
    for number in 0..10_000 {
        let text = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notice\",\"params\":[{number}]}}");
        client.tell(None, bytes(&text)).await;
    }
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    // A request of the server's is not left out: it would be waited for.
    for number in 0..1000 {
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":{number},\"method\":\"roots/list\"}}");
        client.tell(None, bytes(&text)).await;
    }
    let answers: Vec<_> = (0..50)
        .map(|ticket| client.answer(Ticket(ticket), bytes("{\"answer\":1}")))
        .collect();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    // It goes, and has read nothing: its answers were not handed over, and it is not waited for
    // longer than agreed.
    drop(served.stdin.take());
    assert_eq!(served.hears().await, Heard::End(Duration::from_secs(3)));
    for answer in answers {
        assert_eq!(answer.await, Handed::Gone);
    }
    served.serving.await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn what_a_slow_client_gets_is_bounded_and_in_order_with_every_answer_in_it() {
    let waiting = Bounds {
        lines_max: 10,
        ..Bounds::default()
    };
    let limits = Limits {
        waiting,
        ..limits()
    };
    let mut served = served(limits, 16).await;
    let client = Arc::clone(&served.session.client);
    for number in 0..50 {
        let text = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notice\",\"params\":[{number}]}}");
        client.tell(None, bytes(&text)).await;
    }
    for number in 0..50 {
        let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":{number},\"method\":\"roots/list\"}}");
        client.tell(None, bytes(&text)).await;
    }
    let answers: Vec<_> = (0..30)
        .map(|ticket| client.answer(Ticket(ticket), bytes(&format!("{{\"answer\":{ticket}}}"))))
        .collect();
    drop(served.stdin.take());
    let mut text = String::new();
    served.stdout.read_to_string(&mut text).await.unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers = |find: &dyn Fn(&Value) -> Option<u64>| -> Vec<u64> {
        lines.iter().filter_map(find).collect()
    };
    let notices = numbers(&|line| line.get("params").and_then(|list| list[0].as_u64()));
    assert_eq!(notices, (0..10).collect::<Vec<_>>());
    assert_eq!(
        numbers(&|line| line["id"].as_u64()),
        (0..10).collect::<Vec<_>>()
    );
    assert_eq!(
        numbers(&|line| line["answer"].as_u64()),
        (0..30).collect::<Vec<_>>()
    );
    for answer in answers {
        assert_eq!(answer.await, Handed::Over);
    }
}

#[tokio::test(start_paused = true)]
async fn asked_to_stop_it_ends_in_order_even_in_the_middle_of_a_message() {
    let mut served = served(limits(), 1 << 16).await;
    served.write("{\"stay\":1}\n{\"never\":2}\n").await;
    assert_eq!(served.hears().await, message(1, "{\"stay\":1}"));
    let start = Instant::now();
    served.stop.notify_one();
    assert_eq!(served.hears().await, Heard::End(Duration::from_secs(3)));
    // The message was given as long as what is under way.
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    served.serving.await.unwrap();
    assert!(served.heard.try_recv().is_err());
}

#[tokio::test]
async fn asked_to_stop_it_does_not_wait_for_another_line() {
    let mut served = served(limits(), 1 << 16).await;
    served.write("{\"stay\":1}\n").await;
    assert_eq!(served.hears().await, message(1, "{\"stay\":1}"));
    served.session.go_on.notify_one();
    served.stop.notify_one();
    assert_eq!(served.hears().await, Heard::End(Duration::from_secs(3)));
    served.serving.await.unwrap();
}

#[tokio::test]
async fn the_answers_of_one_reading_leave_together() {
    // Not the writer of the client is looked at here but what a pipe of the system makes of it:
    // one read gets all that was written at once.
    let (writer, mut stdout) = tokio::net::unix::pipe::pipe().unwrap();
    let (stdin, reader) = tokio::io::duplex(16);
    let kept = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&kept);
    let (tell, _heard) = mpsc::unbounded_channel();
    let serving = tokio::spawn(async move {
        let session = |client| {
            let session = Arc::new(Recording {
                client,
                heard: tell,
                go_on: Notify::new(),
            });
            *slot.lock().unwrap() = Some(Arc::clone(&session));
            session
        };
        serve(
            session,
            CHANNEL,
            (reader, writer),
            limits(),
            std::future::pending(),
        )
        .await;
    });
    while kept.lock().unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    let session = kept.lock().unwrap().take().unwrap();
    let answers: Vec<_> = (0..100)
        .map(|ticket| {
            session
                .client
                .answer(Ticket(ticket), bytes("{\"answer\":1}"))
        })
        .collect();
    let mut text = vec![0; 1 << 16];
    let count = stdout.read(&mut text).await.unwrap();
    assert_eq!(count, 100 * "{\"answer\":1}\n".len());
    for answer in answers {
        assert_eq!(answer.await, Handed::Over);
    }
    drop(stdin);
    serving.await.unwrap();
}

/// Whether a stream blocks.
fn blocks(stream: &impl std::os::fd::AsFd) -> bool {
    let flags = rustix::fs::fcntl_getfl(stream).unwrap();
    !flags.contains(rustix::fs::OFlags::NONBLOCK)
}

#[tokio::test]
async fn pipes_and_sockets_are_read_and_written_as_they_are_and_put_back() {
    use std::{io::Write as _, os::fd::AsFd as _};

    let (pipe_out, pipe_in) = std::io::pipe().unwrap();
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut restore = Restore::default();
    // What is read from the pipe goes out by the socket, as with a client that uses both.
    let mut from = own(pipe_out.as_fd(), &mut restore, reader).unwrap();
    let mut to = own(one.as_fd(), &mut restore, writer).unwrap();
    let mut back = own(one.as_fd(), &mut restore, reader).unwrap();
    assert!(!blocks(&pipe_out) && !blocks(&one));
    (&pipe_in).write_all(b"line").unwrap();
    let mut text = [0; 4];
    from.read_exact(&mut text).await.unwrap();
    to.write_all(&text).await.unwrap();
    std::io::Read::read_exact(&mut &other, &mut text).unwrap();
    (&other).write_all(&text).unwrap();
    back.read_exact(&mut text).await.unwrap();
    assert_eq!(&text, b"line");
    // The ends of others are never touched.
    assert!(blocks(&pipe_in) && blocks(&other));
    drop(restore);
    assert!(blocks(&pipe_out) && blocks(&one));
}

#[tokio::test]
async fn files_and_sockets_of_the_net_are_left_as_they_are() {
    use std::os::fd::AsFd as _;

    let file = tempfile::tempfile().unwrap();
    assert!(own(file.as_fd(), &mut Restore::default(), reader).is_none());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(own(tcp.as_fd(), &mut Restore::default(), writer).is_none());
    assert!(blocks(&file) && blocks(&tcp));
}

/// What a link does, in short: answers are noted and handed on, the rest is told.
struct Bridge {
    client: Arc<super::Stdio>,
    noted: mpsc::UnboundedSender<String>,
}

impl crate::wire::Sink for Bridge {
    fn message<'a>(
        &'a self,
        text: Bytes,
        _: Option<&'a counterfoil_mcp::framing::Id>,
    ) -> counterfoil_store::BoxFuture<'a, ()> {
        if !text.starts_with(b"{\"id\"") {
            return self.client.tell(None, text);
        }
        let noted = String::from_utf8(text.to_vec()).unwrap();
        self.noted.send(noted).unwrap();
        drop(self.client.answer(Ticket(1), text));
        Box::pin(std::future::ready(()))
    }

    fn failed(&self, _: &counterfoil_mcp::framing::Id, _: crate::wire::Failure) {}

    fn closed(&self, why: &str) {
        self.noted.send(why.to_owned()).unwrap();
    }
}

#[tokio::test]
async fn i6_answers_pass_a_flood_that_the_client_does_not_read() {
    use crate::{
        lines::{Outbox, Seldom},
        transport::stdio::{Child, Limits},
    };

    let (writer, mut stdout) = tokio::io::duplex(64);
    let bounds = Bounds {
        patience: Duration::from_millis(50),
        ..Bounds::default()
    };
    let (outbox, drain) = Outbox::new(writer, bounds);
    tokio::spawn(drain.run());
    let client = Arc::new(super::Stdio {
        outbox,
        silenced: Mutex::default(),
        left_out: Seldom::default(),
    });
    let (noted, mut notes) = mpsc::unbounded_channel();
    let bridge = Arc::new(Bridge {
        client: Arc::clone(&client),
        noted,
    });
    let flood = "yes '{\"jsonrpc\":\"2.0\",\"method\":\"notice\"}' | head -n 100000";
    let script = format!("{flood}; echo '{{\"id\":1}}'; {flood}; echo '{{\"id\":2}}'");
    let target = crate::settings::Target::Command {
        program: "sh".to_owned(),
        arguments: vec!["-c".to_owned(), script],
        environment: Vec::new(),
        folder: None,
    };
    let sink = Arc::downgrade(&bridge) as std::sync::Weak<dyn crate::wire::Sink>;
    let _child = Child::start(&target, Limits::new(1 << 20), sink).unwrap();
    for note in [
        "{\"id\":1}",
        "{\"id\":2}",
        "the server ended: exit status 0",
    ] {
        let heard = timeout(Duration::from_secs(30), notes.recv())
            .await
            .unwrap();
        assert_eq!(heard.as_deref(), Some(note));
        let (lines, _) = client.outbox.waiting();
        assert!(lines <= bounds.lines_max + 2, "{lines} lines wait");
    }
    // Whatever was left out, what is there is whole, and has both answers.
    client.outbox.close();
    let mut text = String::new();
    stdout.read_to_string(&mut text).await.unwrap();
    let answers = text
        .lines()
        .filter(|line| line.starts_with("{\"id\""))
        .count();
    assert_eq!((answers, text.lines().count()), (2, bounds.lines_max + 2));
}
