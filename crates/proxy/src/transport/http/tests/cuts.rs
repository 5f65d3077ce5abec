//! Cuts after each byte.

use super::{
    server::{Act, Server, Told, chunk, chunked_stream, json, stream},
    *,
};

/// One server, one request for each place to cut at: its id says where.
async fn cut_everywhere(
    version: &'static str,
    whole: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    complete_at: usize,
) {
    let length = whole("0000").len();
    let server = Server::start(move |seen| {
        let (_, number) = seen.body.split_once("\"id\":\"").unwrap();
        let (number, _) = number.split_once('"').unwrap();
        let at: usize = number.parse().unwrap();
        let mut bytes = whole(number);
        bytes.truncate(at);
        vec![Act::Send(bytes), Act::Close]
    })
    .await;
    let line = Line::to(&server.url());
    for at in 0..=length {
        let number = format!("\"{at:04}\"");
        let outcome = line.outcome(request_as(&number, Some(version))).await;
        match &outcome {
            Told::Message(text, related) => {
                assert!(at >= complete_at, "an answer after {at} bytes");
                assert_eq!(*text, answer_to(&format!("{at:04}")));
                assert_eq!(*related, Some(id(&number)));
            }
            Told::Failed(failed, Failure::Lost(_)) => {
                assert!(at < complete_at, "no answer after {at} bytes");
                assert_eq!(*failed, id(&number));
            }
            Told::Failed(..) | Told::Closed => panic!("{outcome:?} after {at} bytes"),
        }
    }
    assert_eq!(server.seen().len(), length + 1, "each was sent once");
}

fn answer_to(number: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"{number}","result":{{"é":[1.0]}}}}"#)
}

#[tokio::test]
async fn i3_field_17_a_response_cut_anywhere_is_lost_and_never_sent_again() {
    let whole = |number: &str| json(200, &answer_to(number));
    cut_everywhere(OLDER, whole, whole("0000").len()).await;
}

#[tokio::test]
async fn i3_field_17_a_stream_cut_anywhere_is_lost_unless_the_answer_was_whole() {
    let event = |number: &str| format!("data: {}\r\n\r\n", answer_to(number));
    let whole = move |number: &str| [stream(), event(number).into_bytes()].concat();
    // The carriage return of the blank line ends the event.
    cut_everywhere(MODERN, whole, whole("0000").len() - 1).await;
    let end = b"0\r\n\r\n";
    let whole = move |number: &str| {
        let before = chunk(": hello\n\nid: 1\ndata:\n\n");
        [
            chunked_stream(),
            before,
            chunk(&event(number)),
            end.to_vec(),
        ]
        .concat()
    };
    // Behind the carriage return: its line feed, the end of the chunk, the last chunk.
    let complete_at = whole("0000").len() - end.len() - 3;
    cut_everywhere(MODERN, whole, complete_at).await;
}
