use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use counterfoil_mcp::framing::Id;
use counterfoil_store::BoxFuture;
use rustix::process::{Pid, Signal, getpgid, kill_process, test_kill_process_group};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

use super::{Child, Limits};
use crate::{
    lines::Bounds,
    settings::Target,
    wire::{Failure, Kind, Outbound, Sink, Transport as _},
};

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Message(String),
    Failed(String, Failure),
    Closed(String),
}

/// Hands on what it hears, a message for each permit.
struct Listener {
    heard: mpsc::UnboundedSender<Heard>,
    permits: Semaphore,
}

impl Sink for Listener {
    fn message<'a>(&'a self, text: Bytes, related: Option<&'a Id>) -> BoxFuture<'a, ()> {
        assert!(related.is_none());
        Box::pin(async move {
            self.permits.acquire().await.unwrap().forget();
            let text = String::from_utf8(text.to_vec()).unwrap();
            let _ = self.heard.send(Heard::Message(text));
        })
    }

    fn failed(&self, id: &Id, why: Failure) {
        let _ = self.heard.send(Heard::Failed(id.as_str().to_owned(), why));
    }

    fn closed(&self, why: &str) {
        let _ = self.heard.send(Heard::Closed(why.to_owned()));
    }
}

struct Started {
    child: Arc<Child>,
    listener: Arc<Listener>,
    heard: mpsc::UnboundedReceiver<Heard>,
}

fn limits() -> Limits {
    Limits {
        end_within: Duration::from_millis(200),
        terminate_within: Duration::from_millis(200),
        silent_after_end: Duration::from_millis(200),
        ..Limits::new(1 << 20)
    }
}

fn command(program: &str, arguments: &[&str]) -> Target {
    Target::Command {
        program: program.to_owned(),
        arguments: arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect(),
        environment: vec![("COUNTERFOIL_TEST".to_owned(), "a value".to_owned())],
        folder: None,
    }
}

fn start(target: &Target, limits: Limits, permits: usize) -> Result<Started, Failure> {
    let (tell, heard) = mpsc::unbounded_channel();
    let listener = Arc::new(Listener {
        heard: tell,
        permits: Semaphore::new(permits),
    });
    let sink: Weak<dyn Sink> = Arc::downgrade(&listener) as Weak<dyn Sink>;
    Ok(Started {
        child: Child::start(target, limits, sink)?,
        listener,
        heard,
    })
}

fn sh(script: &str) -> Started {
    start(&command("sh", &["-c", script]), limits(), 1_000_000).unwrap()
}

fn refusal(target: &Target) -> String {
    match start(target, limits(), 0) {
        Err(Failure::NotSent(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was started"),
    }
}

impl Started {
    async fn hears(&mut self) -> Heard {
        let heard = timeout(Duration::from_secs(20), self.heard.recv()).await;
        heard.unwrap().unwrap()
    }

    async fn hears_message(&mut self, text: &str) {
        assert_eq!(self.hears().await, Heard::Message(text.to_owned()));
    }

    async fn hears_closed(&mut self, why: &str) {
        assert_eq!(self.hears().await, Heard::Closed(why.to_owned()));
        // Once, and nothing after it.
        timeout(Duration::from_secs(20), self.child.close())
            .await
            .unwrap();
        assert!(self.heard.try_recv().is_err());
    }

    /// The number that the child tells first.
    async fn pid(&mut self) -> Pid {
        let Heard::Message(text) = self.hears().await else {
            panic!("no message");
        };
        let pid = text.trim_start_matches("[").trim_end_matches("]");
        Pid::from_raw(pid.parse().unwrap()).unwrap()
    }

    async fn send(&self, id: u64, text: &str) -> Result<(), Failure> {
        self.child.send(request(id, text)).await
    }
}

fn request(id: u64, text: &str) -> Outbound {
    Outbound {
        text: Bytes::copy_from_slice(text.as_bytes()),
        kind: Kind::Request {
            id: Id::from_json(&id.to_string()).unwrap(),
            method: "tools/list".to_owned(),
            name: None,
        },
        version: None,
        http: None,
        headers: Vec::new(),
    }
}

#[tokio::test]
async fn a_child_that_cannot_be_started_says_what_to_do() {
    let absent = refusal(&command("counterfoil-test-no-such-program", &["secret"]));
    assert!(
        absent.contains("not found on the PATH; install it"),
        "{absent}"
    );
    let path = refusal(&command("/no/such/program", &["secret"]));
    assert!(path.contains("does not exist; correct its path"), "{path}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program");
    std::fs::write(&file, "#!/no/such/interpreter\n").unwrap();
    let file = file.to_str().unwrap();
    let barred = refusal(&command(file, &["secret"]));
    assert!(barred.contains("make it executable"), "{barred}");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(file, executable).unwrap();
    let interpreter = refusal(&command(file, &["secret"]));
    assert!(
        interpreter.contains("the interpreter in its first line"),
        "{interpreter}"
    );
    let nowhere = refusal(&Target::Command {
        program: "cat".to_owned(),
        arguments: Vec::new(),
        environment: Vec::new(),
        folder: Some("/no/such/folder".into()),
    });
    assert!(
        nowhere.contains("/no/such/folder does not exist"),
        "{nowhere}"
    );
    for why in [absent, path, barred, interpreter, nowhere] {
        assert!(!why.contains("secret") && !why.contains("a value"), "{why}");
    }
}

#[tokio::test]
async fn messages_go_out_and_come_back_in_order() {
    let mut cat = start(&command("cat", &[]), limits(), 1_000_000).unwrap();
    for id in 0..500 {
        cat.send(id, &format!("{{\"id\":{id},\n\"a\": 1.50}}"))
            .await
            .unwrap();
    }
    for id in 0..500 {
        cat.hears_message(&format!("{{\"id\":{id}, \"a\": 1.50}}"))
            .await;
    }
    cat.child.close().await;
    cat.hears_closed("the proxy ended the server: exit status 0")
        .await;
    let late = cat.send(501, "{}").await;
    assert_eq!(
        late,
        Err(Failure::NotSent("the server has ended".to_owned()))
    );
}

#[tokio::test]
async fn what_was_taken_before_the_close_still_reaches_the_child() {
    let slow = "sleep 0.1; exec cat";
    let limits = Limits {
        end_within: Duration::from_secs(20),
        ..limits()
    };
    let mut cat = start(&command("sh", &["-c", slow]), limits, 1_000_000).unwrap();
    let long = format!("{{\"long\":\"{}\"}}", "x".repeat(300_000));
    cat.send(1, &long).await.unwrap();
    cat.send(2, "{\"short\":1}").await.unwrap();
    cat.child.close().await;
    cat.hears_message(&long).await;
    cat.hears_message("{\"short\":1}").await;
    cat.hears_closed("the proxy ended the server: exit status 0")
        .await;
}

#[tokio::test]
async fn environment_and_folder_are_set_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let Target::Command {
        program,
        arguments,
        environment,
        ..
    } = command(
        "sh",
        &["-c", r#"echo "[\"$COUNTERFOIL_TEST\",\"$(pwd -P)\"]""#],
    )
    else {
        panic!("a command");
    };
    let target = Target::Command {
        program,
        arguments,
        environment,
        folder: Some(folder.path().to_owned()),
    };
    let mut child = start(&target, limits(), 10).unwrap();
    let folder = folder.path().canonicalize().unwrap();
    child
        .hears_message(&format!("[\"a value\",\"{}\"]", folder.display()))
        .await;
}

#[tokio::test]
async fn its_death_is_told_once_after_all_that_it_wrote() {
    let mut child = sh("for i in 1 2 3 4 5; do echo \"[$i]\"; done; exit 3");
    for number in 1..=5 {
        child.hears_message(&format!("[{number}]")).await;
    }
    child.hears_closed("the server ended: exit status 3").await;
    let mut child = sh("echo '{}'; kill -9 $$");
    child.hears_message("{}").await;
    child
        .hears_closed("the server ended: signal 9 (SIGKILL)")
        .await;
}

#[tokio::test]
async fn half_a_message_is_none() {
    let mut child = sh(r#"echo '{"a":1}'; printf '{"result":{"content":"ha'; exit 1"#);
    child.hears_message("{\"a\":1}").await;
    child.hears_closed("the server ended: exit status 1").await;
    // A whole one without a line end is one.
    let mut child = sh(r#"printf '{"a":1}'"#);
    child.hears_message("{\"a\":1}").await;
    child.hears_closed("the server ended: exit status 0").await;
}

#[tokio::test]
async fn what_is_no_message_is_left_out() {
    let limits = Limits {
        message_bytes_max: 20,
        ..limits()
    };
    let script = "echo 'Server running on stdio'; echo; echo '[INFO] ready'; echo 17; \
                  echo '{\"a\":1}'; echo '{\"a\":\"2 is longer than that\"}'; echo '{\"a\":3}'";
    let mut child = start(&command("sh", &["-c", script]), limits, 10).unwrap();
    child.hears_message("{\"a\":1}").await;
    child.hears_message("{\"a\":3}").await;
    child.hears_closed("the server ended: exit status 0").await;
}

#[tokio::test]
async fn an_interrupt_of_the_proxy_does_not_reach_it() {
    let mut child = sh("echo [$$]; exec cat");
    let pid = child.pid().await;
    assert_eq!(getpgid(Some(pid)).unwrap(), pid);
    assert_ne!(getpgid(None).unwrap(), pid);
}

#[tokio::test]
async fn a_child_that_takes_no_hint_is_terminated_then_killed() {
    let mut child = sh("echo [$$]; while :; do sleep 0.01; done");
    child.pid().await;
    child.child.close().await;
    child
        .hears_closed("the proxy ended the server: signal 15 (SIGTERM)")
        .await;
    let mut child = sh("trap '' TERM; echo [$$]; while :; do sleep 0.01; done");
    let pid = child.pid().await;
    child.child.close().await;
    child
        .hears_closed("the proxy ended the server: signal 9 (SIGKILL)")
        .await;
    gone(pid).await;
}

/// Waits until nobody of a process group is left.
async fn gone(group: Pid) {
    let looking = async {
        while test_kill_process_group(group).is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), looking).await.unwrap();
}

#[tokio::test]
async fn a_server_behind_a_script_that_ended_is_not_left_behind() {
    let mut child = sh("echo [$$]; (trap '' TERM; echo '{\"from\":\"below\"}'; \
                        while :; do sleep 0.01; done) & exit 0");
    let pid = child.pid().await;
    child.hears_message("{\"from\":\"below\"}").await;
    child.hears_closed("the server ended: exit status 0").await;
    gone(pid).await;
}

#[tokio::test]
async fn a_daemon_that_it_started_is_left_alone() {
    let mut child = sh("sleep 60 >/dev/null 2>&1 </dev/null & echo [$!]; exit 0");
    let daemon = child.pid().await;
    child.hears_closed("the server ended: exit status 0").await;
    kill_process(daemon, Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_child_without_output_or_input_is_ended() {
    let mut child = sh("echo '{}'; exec >&-; while :; do sleep 0.01; done");
    child.hears_message("{}").await;
    let why = "the server closed its output and was ended: signal 15 (SIGTERM)";
    child.hears_closed(why).await;
    let mut child = sh("exec <&-; echo '{}'; while :; do sleep 0.01; done");
    child.hears_message("{}").await;
    child.send(1, "{}").await.unwrap();
    let why = Failure::NotSent("the server ended before it took this".to_owned());
    assert_eq!(child.hears().await, Heard::Failed("1".to_owned(), why));
    let why = "the server closed its input and was ended: signal 15 (SIGTERM)";
    child.hears_closed(why).await;
}

#[tokio::test]
async fn i3_what_never_reached_the_pipe_is_not_sent_and_what_did_is_lost() {
    let limits = Limits {
        waiting: Bounds {
            lines_max: 3,
            patience: Duration::from_millis(50),
            ..Bounds::default()
        },
        ..limits()
    };
    let script = "echo [$$]; while :; do sleep 0.01; done";
    let mut child = start(&command("sh", &["-c", script]), limits, 10).unwrap();
    let pid = child.pid().await;
    // More than a pipe holds: this one is begun and never finished.
    let long = format!("{{\"long\":\"{}\"}}", "x".repeat(1 << 20));
    child.send(1, &long).await.unwrap();
    child.send(2, "{}").await.unwrap();
    child.send(3, "{}").await.unwrap();
    let full = child.send(4, "{}").await;
    let why = "the server does not read its input".to_owned();
    assert_eq!(full, Err(Failure::NotSent(why)));
    kill_process(pid, Signal::KILL).unwrap();
    let not_sent = || Failure::NotSent("the server ended before it took this".to_owned());
    assert_eq!(
        child.hears().await,
        Heard::Failed("2".to_owned(), not_sent())
    );
    assert_eq!(
        child.hears().await,
        Heard::Failed("3".to_owned(), not_sent())
    );
    // Nothing of 1 and 4: 4 was refused, and 1 is lost with all that was asked.
    child
        .hears_closed("the server ended: signal 9 (SIGKILL)")
        .await;
}

#[tokio::test]
async fn a_flood_is_read_no_faster_than_it_is_taken() {
    let target = command("sh", &["-c", "echo [$$]; exec yes '{\"notice\":1}'"]);
    let mut child = start(&target, limits(), 1).unwrap();
    child.pid().await;
    // Nobody takes the next one: the reader waits with it, and the child with its pipe.
    assert!(
        timeout(Duration::from_millis(100), child.heard.recv())
            .await
            .is_err()
    );
    child.listener.permits.add_permits(100_000);
    for _ in 0..100_000 {
        child.hears_message("{\"notice\":1}").await;
    }
    // It is ended all the same.
    let closing = child.child.close();
    tokio::pin!(closing);
    assert!(
        timeout(Duration::from_millis(50), &mut closing)
            .await
            .is_err()
    );
    child.listener.permits.add_permits(1_000_000);
    timeout(Duration::from_secs(20), closing).await.unwrap();
}

#[tokio::test]
async fn nobody_left_to_hear_ends_it() {
    let mut child = sh("echo [$$]; exec yes '{}'");
    let pid = child.pid().await;
    drop(child.listener);
    gone(pid).await;
    let Started {
        child,
        mut heard,
        listener,
    } = sh("trap '' TERM; echo [$$]; while :; do sleep 0.01; done");
    heard.recv().await.unwrap();
    drop(child);
    let closed = timeout(Duration::from_secs(20), heard.recv())
        .await
        .unwrap();
    let why = "the proxy ended the server: signal 9 (SIGKILL)".to_owned();
    assert_eq!(closed, Some(Heard::Closed(why)));
    drop(listener);
}
