use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use counterfoil_engine::Caller;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::mpsc,
    task::JoinSet,
};

use crate::{
    Endpoint,
    cancel::Waits,
    endpoint::{Context, Inbound},
    era::LEGACY,
    framing::{
        Id, Incoming, Line, Lines, Message, Notification, RpcError, Unreadable, codes, error_text,
        read,
    },
};

/// Messages waiting to be written.
const OUT_MAX: usize = 64;
/// Progress of one call waiting to be passed on; what is more is left out.
pub(crate) const PROGRESS_MAX: usize = 16;
/// Calls of one connection under way at once; beyond it the reader waits for one to end.
const UNDER_WAY_MAX: usize = 256;

impl Endpoint {
    /// Serves one client over a pair of streams, a message a line, until `reader` ends. Calls
    /// under way are then waited for, at most [`crate::Limits::drain_for`]; their operations go on
    /// after that for as long as the process lives. Nothing but protocol is written.
    ///
    /// # Errors
    /// What the streams say. The calls under way are drained before that too.
    pub async fn serve_stdio<R, W>(
        &self,
        caller: Caller,
        reader: R,
        writer: W,
    ) -> std::io::Result<()>
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (out, queue) = mpsc::channel(OUT_MAX);
        let writing = tokio::spawn(write_lines(writer, queue));
        let mut connection = Connection {
            endpoint: self.clone(),
            caller,
            out,
            waits: Arc::new(Waits::new()),
            tasks: JoinSet::new(),
            batches: false,
        };
        let limits = self.inner.limits;
        let mut lines = Lines::new(BufReader::new(reader), limits.framing.message_bytes_max);
        let read = loop {
            match lines.next().await {
                Ok(Some(line)) => {
                    if connection.take(line).await.is_err() {
                        break Ok(());
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        connection.drain(limits.drain_for).await;
        drop(connection);
        let wrote = match tokio::time::timeout(limits.drain_for, writing).await {
            Ok(Ok(wrote)) => wrote,
            Ok(Err(_)) | Err(_) => Ok(()),
        };
        read.and(wrote)
    }
}

async fn write_lines<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: mpsc::Receiver<Bytes>,
) -> std::io::Result<()> {
    while let Some(text) = queue.recv().await {
        writer.write_all(&text).await?;
        writer.write_all(b"\n").await?;
        writer.flush().await?;
    }
    Ok(())
}

/// The client takes no more answers.
struct Gone;

struct Connection {
    endpoint: Endpoint,
    caller: Caller,
    out: mpsc::Sender<Bytes>,
    waits: Arc<Waits<Id>>,
    tasks: JoinSet<()>,
    /// The negotiated revision has batches.
    batches: bool,
}

impl Connection {
    async fn take(&mut self, line: Line) -> Result<(), Gone> {
        while self.tasks.try_join_next().is_some() {}
        let limits = self.endpoint.inner.limits.framing;
        let text = match line {
            Line::Text(text) if text.iter().all(u8::is_ascii_whitespace) => return Ok(()),
            Line::Text(text) => text,
            Line::TooLong => {
                let what = format!(
                    "Invalid request: larger than {} bytes",
                    limits.message_bytes_max
                );
                let error = RpcError::new(codes::INVALID_REQUEST, what);
                return self.send(error_text(None, &error)).await;
            }
        };
        match read(&text, limits) {
            Err(unreadable) => self.refuse(&unreadable).await,
            Ok(Incoming::Single(message)) => self.message(message).await,
            Ok(Incoming::Batch(_)) if !self.batches => {
                let what = "Invalid request: this revision has no batches";
                let error = RpcError::new(codes::INVALID_REQUEST, what);
                self.send(error_text(None, &error)).await
            }
            Ok(Incoming::Batch(messages)) => self.batch(messages).await,
        }
    }

    async fn send(&self, text: Bytes) -> Result<(), Gone> {
        self.out.send(text).await.map_err(|_| Gone)
    }

    async fn refuse(&self, unreadable: &Unreadable) -> Result<(), Gone> {
        let text = error_text(unreadable.id.as_ref(), &unreadable.error);
        self.send(text).await
    }

    async fn message(&mut self, message: Message<'_>) -> Result<(), Gone> {
        match message {
            Message::Request(request) => match self.endpoint.inbound(request) {
                Ok(inbound) => {
                    self.start(inbound).await;
                    Ok(())
                }
                Err(unreadable) => self.refuse(&unreadable).await,
            },
            Message::Notification(notification) => {
                self.notified(&notification);
                Ok(())
            }
            Message::Response(_) => Ok(()),
        }
    }

    fn notified(&self, notification: &Notification<'_>) {
        if let Some(id) = cancelled_id(notification) {
            self.waits.stop(&id);
        }
    }

    fn context(&self) -> Context {
        Context {
            caller: self.caller.clone(),
            counted: false,
            headers: None,
            progress: None,
        }
    }

    async fn start(&mut self, inbound: Inbound) {
        if inbound.method == "initialize" {
            let version = inbound.params.get("protocolVersion");
            let wanted = counterfoil_core::Json::String(LEGACY[2].to_owned());
            self.batches = version == Some(&wanted);
        }
        while self.tasks.len() >= UNDER_WAY_MAX {
            self.tasks.join_next().await;
        }
        let (endpoint, mut context) = (self.endpoint.clone(), self.context());
        let out = self.out.clone();
        // Opened here, so that a cancel in the next line finds it.
        let (open, mut stopped) = self.waits.open(inbound.id.clone());
        self.tasks.spawn(async move {
            let _open = open;
            // Progress goes through this task, so that nothing follows the answer or a cancel.
            let (tell, mut progress) = mpsc::channel(PROGRESS_MAX);
            context.progress = Some(tell);
            let answer = endpoint.answer(inbound, context);
            tokio::pin!(answer);
            let outgoing = loop {
                tokio::select! {
                    biased;
                    Ok(()) = &mut stopped => return,
                    Some(told) = progress.recv() => {
                        let _ = out.send(told).await;
                    }
                    outgoing = &mut answer => break outgoing,
                }
            };
            let _ = out.send(outgoing.text).await;
        });
    }

    async fn batch(&mut self, messages: Vec<Result<Message<'_>, Unreadable>>) -> Result<(), Gone> {
        let mut answers = Vec::new();
        for message in messages {
            match message {
                Err(unreadable) => {
                    answers.push(error_text(unreadable.id.as_ref(), &unreadable.error));
                }
                Ok(Message::Request(request)) => match self.endpoint.inbound(request) {
                    Ok(inbound) => {
                        let answer = self.endpoint.answer(inbound, self.context()).await;
                        answers.push(answer.text);
                    }
                    Err(unreadable) => {
                        answers.push(error_text(unreadable.id.as_ref(), &unreadable.error));
                    }
                },
                Ok(Message::Notification(notification)) => self.notified(&notification),
                Ok(Message::Response(_)) => {}
            }
        }
        if answers.is_empty() {
            return Ok(());
        }
        self.send(joined(&answers)).await
    }

    async fn drain(&mut self, bound: Duration) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(bound, all).await.is_err() {
            tracing::warn!("calls were still under way when the client's stream had ended");
        }
        self.tasks.abort_all();
    }
}

/// The id a `notifications/cancelled` is about.
pub(crate) fn cancelled_id(notification: &Notification<'_>) -> Option<Id> {
    if notification.method != "notifications/cancelled" {
        return None;
    }
    let params: HashMap<&str, &serde_json::value::RawValue> =
        serde_json::from_str(notification.params?.get()).ok()?;
    Id::from_json(params.get("requestId")?.get())
}

/// The answers of a batch as one array.
pub fn joined(answers: &[Bytes]) -> Bytes {
    let mut text = vec![b'['];
    for (index, answer) in answers.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(answer);
    }
    text.push(b']');
    Bytes::from(text)
}
