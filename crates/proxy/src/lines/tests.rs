use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
    time::Instant,
};

use super::{
    Bounds, Ended, Entry, Line, Lines, Outbox, Refused, Seldom, Shape, Tag, Why, one_line,
};

/// Says its number when the line was flushed.
#[derive(Clone, Debug)]
struct Numbered(usize, mpsc::UnboundedSender<usize>);

impl Tag for Numbered {
    fn flushed(self) {
        let _ = self.1.send(self.0);
    }
}

/// Takes `left` bytes, then breaks; remembers each write.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    text: Vec<u8>,
    writes: usize,
    flushes: usize,
    left: Option<usize>,
    ended: bool,
}

impl Paper {
    fn breaking_after(bytes: usize) -> Self {
        let paper = Self::default();
        paper.0.lock().unwrap().left = Some(bytes);
        paper
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().text.clone()).unwrap()
    }
}

impl AsyncWrite for Paper {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut written = self.0.lock().unwrap();
        written.writes += 1;
        let count = bytes.len().min(written.left.unwrap_or(usize::MAX));
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        written.text.extend_from_slice(&bytes[..count]);
        written.left = written.left.map(|left| left - count);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().unwrap().flushes += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().unwrap().ended = true;
        Poll::Ready(Ok(()))
    }
}

fn entry(number: usize, text: &str, flushed: &mpsc::UnboundedSender<usize>) -> Entry<Numbered> {
    Entry {
        text: Bytes::copy_from_slice(text.as_bytes()),
        tag: Numbered(number, flushed.clone()),
    }
}

fn few(lines_max: usize) -> Bounds {
    Bounds {
        lines_max,
        ..Bounds::default()
    }
}

async fn next<R: tokio::io::AsyncRead + Unpin>(lines: &mut Lines<R>) -> Option<Line> {
    loop {
        if let Some(line) = lines.at_hand() {
            return Some(line);
        }
        if !lines.fill().await.unwrap() {
            return None;
        }
    }
}

async fn all<R: tokio::io::AsyncRead + Unpin>(reader: R, bytes_max: usize) -> Vec<Line> {
    let mut lines = Lines::new(reader, bytes_max);
    let mut all = Vec::new();
    while let Some(line) = next(&mut lines).await {
        all.push(line);
    }
    all
}

fn text(text: &str) -> Line {
    Line::Text(Bytes::copy_from_slice(text.as_bytes()))
}

#[tokio::test]
async fn lines_end_as_they_may_and_empty_ones_are_skipped() {
    let read = all(&b"one\ntwo\r\n\n \r\nthree"[..], 100).await;
    assert_eq!(read, [text("one"), text("two"), text("three")]);
    assert_eq!(all(&b""[..], 100).await, []);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_left_out_and_the_next_one_is_read() {
    let read = all(&b"12345\n123456\n12345\r\n123456\r\n1\n123456"[..], 5).await;
    let long = Line::TooLong;
    let want = [
        text("12345"),
        long.clone(),
        text("12345"),
        long.clone(),
        text("1"),
        long,
    ];
    assert_eq!(read, want);
}

#[tokio::test]
async fn a_line_without_an_end_takes_no_more_memory_than_one_may_have() {
    let (mut far, near) = tokio::io::duplex(256 << 10);
    let mut lines = Lines::new(near, 1 << 20);
    let writing = tokio::spawn(async move {
        for _ in 0..64 {
            far.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
        }
        far.write_all(b"\nafter\n").await.unwrap();
    });
    assert_eq!(next(&mut lines).await, Some(Line::TooLong));
    assert!(lines.capacity() <= 4 << 20, "{}", lines.capacity());
    assert_eq!(next(&mut lines).await, Some(text("after")));
    writing.await.unwrap();
}

#[tokio::test]
async fn a_dropped_read_loses_nothing() {
    let (mut far, near) = tokio::io::duplex(64);
    let mut lines = Lines::new(near, 100);
    far.write_all(b"half").await.unwrap();
    {
        let next = next(&mut lines);
        tokio::pin!(next);
        assert!(futures_util::poll!(&mut next).is_pending());
    }
    far.write_all(b" and half\n").await.unwrap();
    assert_eq!(next(&mut lines).await, Some(text("half and half")));
}

proptest! {
    #[test]
    fn however_the_bytes_come_the_lines_are_the_same(
        lines in prop::collection::vec("[a-z ]{0,12}\r?", 0..20),
        cuts in prop::collection::vec(1_usize..9, 1..9),
        bytes_max in 1_usize..12,
    ) {
        let whole = lines.join("\n");
        // The obvious way.
        let want: Vec<Line> = whole
            .split('\n')
            .map(|line| line.strip_suffix('\r').unwrap_or(line))
            .filter_map(|line| match line {
                line if line.len() > bytes_max => Some(Line::TooLong),
                line if line.trim().is_empty() => None,
                line => Some(text(line)),
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let got = runtime.block_on(async {
            let (mut far, near) = tokio::io::duplex(4096);
            let writing = tokio::spawn(async move {
                let (mut rest, mut cut) = (whole.as_bytes(), cuts.iter().cycle());
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(rest.len().min(*cut.next().unwrap()));
                    far.write_all(now).await.unwrap();
                    tokio::task::yield_now().await;
                    rest = later;
                }
            });
            let got = all(near, bytes_max).await;
            writing.await.unwrap();
            got
        });
        prop_assert_eq!(got, want);
    }
}

#[test]
fn what_can_be_a_message_is_told_from_what_cannot() {
    for line in ["{}", " {\"a\": [1, 2]} ", "[{}]"] {
        assert_eq!(Shape::of(line.as_bytes()), Shape::Message, "{line}");
    }
    for line in ["1", "\"text\"", "null"] {
        assert_eq!(Shape::of(line.as_bytes()), Shape::Scalar, "{line}");
    }
    for line in [
        "[INFO] started",
        "{\"half\": ",
        "{} {}",
        "listening",
        "",
        "nothing",
    ] {
        assert_eq!(Shape::of(line.as_bytes()), Shape::Other, "{line}");
    }
    assert_eq!(Shape::of(b"{\"a\":\"\xff\"}"), Shape::Other);
}

#[test]
fn a_message_on_several_lines_is_put_on_one() {
    let message = Bytes::from_static(b"{\n  \"a\": \"\\n\"\r\n}");
    assert_eq!(&one_line(message)[..], b"{   \"a\": \"\\n\"  }");
}

#[tokio::test(start_paused = true)]
async fn what_happens_often_is_said_now_and_then() {
    let seldom = Seldom::default();
    assert_eq!(seldom.again(), Some(1));
    assert_eq!(seldom.again(), None);
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(seldom.again(), Some(2));
}

#[tokio::test]
async fn what_is_queued_leaves_in_one_write_in_its_order() {
    let (flushed, mut order) = mpsc::unbounded_channel();
    let paper = Paper::default();
    let (outbox, drain) = Outbox::new(paper.clone(), Bounds::default());
    let mut want = String::new();
    for number in 0..200 {
        let line = format!("line {number}");
        outbox.put(entry(number, &line, &flushed)).unwrap();
        want.push_str(&line);
        want.push('\n');
    }
    let writing = tokio::spawn(drain.run());
    for number in 0..200 {
        assert_eq!(order.recv().await, Some(number));
    }
    assert_eq!(paper.text(), want);
    {
        let written = paper.0.lock().unwrap();
        assert_eq!((written.writes, written.flushes), (1, 1));
    }
    outbox.close();
    assert!(matches!(writing.await.unwrap().why, Why::Closed));
    assert!(paper.0.lock().unwrap().ended);
}

#[tokio::test]
async fn long_lines_keep_their_place_among_short_ones() {
    let (flushed, mut order) = mpsc::unbounded_channel();
    let paper = Paper::default();
    let (outbox, drain) = Outbox::new(paper.clone(), Bounds::default());
    let mut want = String::new();
    for (number, size) in [
        10, 100_000, 20_000, 5, 15_000, 15_000, 15_000, 15_000, 15_000, 3,
    ]
    .into_iter()
    .enumerate()
    {
        let line = char::from_digit(number as u32, 10)
            .unwrap()
            .to_string()
            .repeat(size);
        outbox.put(entry(number, &line, &flushed)).unwrap();
        want.push_str(&line);
        want.push('\n');
    }
    outbox.close();
    let ended = drain.run().await;
    assert!(ended.unsent.is_empty() && matches!(ended.why, Why::Closed));
    assert_eq!(paper.text(), want);
    for number in 0..10 {
        assert_eq!(order.recv().await, Some(number));
    }
}

#[tokio::test]
async fn i3_exactly_the_lines_of_which_nothing_was_written_are_named_when_the_stream_breaks() {
    // Each line is 5 bytes with its end; the last one is long, and written by itself.
    for (taken, unsent) in [
        (0, vec![0, 1, 2, 3]),
        (1, vec![1, 2, 3]),
        (5, vec![1, 2, 3]),
        (6, vec![2, 3]),
        (14, vec![3]),
        (15, vec![3]),
        (16, vec![]),
        (20_000, vec![]),
    ] {
        let (flushed, mut order) = mpsc::unbounded_channel();
        let (outbox, drain) = Outbox::new(Paper::breaking_after(taken), Bounds::default());
        for number in 0..3 {
            outbox.put(entry(number, "1234", &flushed)).unwrap();
        }
        outbox.put(entry(3, &"x".repeat(30_000), &flushed)).unwrap();
        let ended = drain.run().await;
        let named: Vec<usize> = ended.unsent.iter().map(|tag| tag.0).collect();
        assert_eq!(named, unsent, "after {taken} bytes");
        assert!(matches!(ended.why, Why::Broken(_)));
        // A batch is flushed as a whole or not at all.
        drop((ended, flushed));
        let mut whole = 0;
        while order.recv().await.is_some() {
            whole += 1;
        }
        assert_eq!(
            whole,
            if taken >= 15 { 3 } else { 0 },
            "after {taken} bytes"
        );
        let late = outbox.put(entry(4, "late", &mpsc::unbounded_channel().0));
        assert_eq!(late.unwrap_err().tag.0, 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_delays_the_writer_once() {
    let (flushed, _order) = mpsc::unbounded_channel();
    let (mut far, near) = tokio::io::duplex(8);
    let (outbox, drain) = Outbox::new(near, few(4));
    tokio::spawn(drain.run());
    for number in 0..4 {
        outbox
            .offer(entry(number, "1234567", &flushed))
            .await
            .unwrap();
    }
    let start = Instant::now();
    let left = outbox.offer(entry(4, "5", &flushed)).await.unwrap_err();
    assert_eq!(
        (left.why, start.elapsed()),
        (Refused::Full, Duration::from_secs(5))
    );
    for number in 5..100 {
        let left = outbox
            .offer(entry(number, "5", &flushed))
            .await
            .unwrap_err();
        assert_eq!(left.why, Refused::Full);
    }
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    // What needs no room is taken all the same, and what may go a little further, too.
    outbox.put(entry(100, "answer", &flushed)).unwrap();
    outbox
        .put_within(2, entry(101, "request", &flushed))
        .unwrap();
    assert_eq!(outbox.waiting().0, 6);
    // Once it reads, it gets what was taken, in order, and there is time again.
    let mut text = vec![0; 4 * 8 + 7 + 8];
    far.read_exact(&mut text).await.unwrap();
    assert!(text.ends_with(b"1234567\nanswer\nrequest\n"));
    for number in 0..4 {
        outbox
            .offer(entry(number, "1234567", &flushed))
            .await
            .unwrap();
    }
    let start = Instant::now();
    let late = outbox.offer(entry(4, "late", &flushed));
    let reading = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        far.read_exact(&mut text).await.unwrap();
    };
    let (taken, ()) = tokio::join!(late, async {
        tokio::select! { () = reading => {}, () = tokio::time::sleep(Duration::from_secs(3)) => {} }
    });
    taken.unwrap();
    assert!(start.elapsed() <= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn bytes_count_too_and_one_long_line_passes() {
    let (flushed, _order) = mpsc::unbounded_channel();
    let (_far, near) = tokio::io::duplex(8);
    let bounds = Bounds {
        bytes_max: 100,
        ..Bounds::default()
    };
    let (outbox, drain) = Outbox::new(near, bounds);
    tokio::spawn(drain.run());
    outbox
        .offer(entry(0, &"x".repeat(1000), &flushed))
        .await
        .unwrap();
    let left = outbox.offer(entry(1, "x", &flushed)).await.unwrap_err();
    assert_eq!(left.why, Refused::Full);
    assert_eq!(outbox.waiting(), (1, 1000));
}

#[tokio::test]
async fn a_stuck_write_is_given_up_and_whoever_waits_for_room_is_told() {
    let (flushed, _order) = mpsc::unbounded_channel();
    let (_far, near) = tokio::io::duplex(2);
    let (outbox, drain) = Outbox::new(near, few(1));
    let writing = tokio::spawn(drain.run());
    outbox.put(entry(0, "first", &flushed)).unwrap();
    tokio::task::yield_now().await;
    outbox.put(entry(1, "second", &flushed)).unwrap();
    let offer = outbox.offer(entry(2, "third", &flushed));
    let (left, ()) = tokio::join!(offer, async {
        tokio::task::yield_now().await;
        outbox.abort();
    });
    assert_eq!(left.unwrap_err().why, Refused::Ended);
    let Ended { unsent, why } = writing.await.unwrap();
    assert!(matches!(why, Why::Aborted));
    assert_eq!(unsent.iter().map(|tag| tag.0).collect::<Vec<_>>(), [1]);
    outbox.ended().await;
}

#[tokio::test]
async fn a_dropped_outbox_writes_what_it_took_and_closes() {
    let (flushed, _order) = mpsc::unbounded_channel();
    let (mut far, near) = tokio::io::duplex(4);
    let (outbox, drain) = Outbox::new(near, few(1));
    tokio::spawn(drain.run());
    outbox.put(entry(0, "first", &flushed)).unwrap();
    outbox.put(entry(1, "second", &flushed)).unwrap();
    drop(outbox);
    let mut text = String::new();
    far.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "first\nsecond\n");
}

/// Prints how many lines a second pass from a reader to an outbox over pipes of the system.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_a_second() {
    const LINES: usize = 200_000;
    let (mut far, near) = tokio::net::unix::pipe::pipe().unwrap();
    let (out, mut end) = tokio::net::unix::pipe::pipe().unwrap();
    let line = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"{}\"}}\n",
        "x".repeat(160)
    );
    let bytes = line.len() * LINES;
    let chunk = line.repeat(300);
    tokio::spawn(async move {
        let mut left = bytes;
        while left > 0 {
            let now = chunk.as_bytes().get(..left).unwrap_or(chunk.as_bytes());
            far.write_all(now).await.unwrap();
            left -= now.len();
        }
    });
    let start = std::time::Instant::now();
    let passing = tokio::spawn(async move {
        let (outbox, drain) = Outbox::new(out, Bounds::default());
        tokio::spawn(drain.run());
        let (flushed, _order) = mpsc::unbounded_channel();
        let mut lines = Lines::new(near, 1 << 20);
        let mut count = 0;
        while let Some(Line::Text(text)) = next(&mut lines).await {
            assert_eq!(Shape::of(&text), Shape::Message);
            let tag = Numbered(count, flushed.clone());
            outbox.offer(Entry { text, tag }).await.unwrap();
            count += 1;
        }
        count
    });
    let (mut got, mut buffer) = (0, vec![0; 64 << 10]);
    while got < bytes {
        got += end.read(&mut buffer).await.unwrap();
    }
    let took = start.elapsed();
    assert_eq!(passing.await.unwrap(), LINES);
    let rate = LINES as f64 / took.as_secs_f64();
    println!(
        "{LINES} lines of {} bytes in {took:?}: {rate:.0} lines/s",
        line.len()
    );
}
