//! PostgreSQL's wire protocol, version 3, as far as commits and their answers have to be found.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use crate::plan::Armed;

/// Longest message that is passed on.
const MESSAGE_MAX: usize = 256 << 20;
/// How much of a transaction is remembered to look for a word in.
const TRANSACTION_MAX: usize = 4 << 20;

/// A byte stream that is not this protocol.
#[derive(Debug)]
pub(crate) struct Malformed;

/// The length of the message at the front, `before` bytes of it standing before its length field;
/// nothing while it is incomplete.
pub(crate) fn length(bytes: &[u8], before: usize) -> Result<Option<usize>, Malformed> {
    let Some(field) = bytes.get(before..before + 4) else {
        return Ok(None);
    };
    let field = field
        .iter()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    if !(4..=MESSAGE_MAX).contains(&field) {
        return Err(Malformed);
    }
    let whole = before + field;
    Ok((bytes.len() >= whole).then_some(whole))
}

/// What a client asks for before its session begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// TLS or GSS: answered by a single byte.
    Encryption,
    /// Never answered.
    Cancel,
    Session,
}

pub(crate) fn opening(message: &[u8]) -> Opening {
    match message.get(4..8) {
        Some([0x04, 0xd2, 0x16, 0x2f | 0x30]) => Opening::Encryption,
        Some([0x04, 0xd2, 0x16, 0x2e]) => Opening::Cancel,
        Some(_) | None => Opening::Session,
    }
}

/// What the client side of one connection has said.
#[derive(Default)]
pub(crate) struct Client {
    statements: HashMap<Vec<u8>, Rc<[u8]>>,
    portals: HashMap<Vec<u8>, Rc<[u8]>>,
    open: bool,
    transaction: Vec<u8>,
}

impl Client {
    /// Takes note of a message. True if it makes the server commit.
    pub(crate) fn sent(&mut self, tag: u8, body: &[u8]) -> bool {
        match tag {
            b'Q' => {
                let (sql, _) = until_zero(body);
                self.run(sql)
            }
            b'P' => {
                let (name, rest) = until_zero(body);
                let (sql, _) = until_zero(rest);
                self.statements.insert(name.to_vec(), sql.into());
                false
            }
            b'B' => {
                let (portal, rest) = until_zero(body);
                let (name, parameters) = until_zero(rest);
                if let Some(sql) = self.statements.get(name) {
                    self.portals.insert(portal.to_vec(), Rc::clone(sql));
                }
                self.remember(parameters);
                false
            }
            b'E' => {
                let (portal, _) = until_zero(body);
                match self.portals.get(portal).map(Rc::clone) {
                    Some(sql) => self.run(&sql),
                    None => false,
                }
            }
            _ => false,
        }
    }

    /// What the transaction has said so far.
    pub(crate) fn transaction(&self) -> &[u8] {
        &self.transaction
    }

    fn run(&mut self, sql: &[u8]) -> bool {
        let mut commits = false;
        for statement in sql.split(|byte| *byte == b';') {
            match word(statement).as_slice() {
                b"BEGIN" | b"START" => {
                    self.open = true;
                    self.transaction.clear();
                }
                b"COMMIT" | b"END" => {
                    self.open = false;
                    commits = true;
                }
                b"ROLLBACK" | b"ABORT" => {
                    self.open = contains_word(statement, b"TO");
                }
                _ => {
                    // Outside a transaction each stands alone; after a commit, what it said has
                    // been looked at.
                    if !self.open && !commits {
                        self.transaction.clear();
                    }
                }
            }
            self.remember(statement);
        }
        commits
    }

    fn remember(&mut self, text: &[u8]) {
        let room = TRANSACTION_MAX.saturating_sub(self.transaction.len());
        let some = text.get(..room.min(text.len())).unwrap_or_default();
        self.transaction.extend_from_slice(some);
        self.transaction.push(b'\n');
    }
}

/// An answer that the server owes.
enum Owed {
    /// To a request for encryption: a single byte.
    Byte,
    Parse,
    Bind,
    Describe,
    Close,
    Execute(Option<Armed>),
    Query(Option<Armed>),
    Sync,
}

/// The answers that the server owes, in order.
#[derive(Default)]
pub(crate) struct Answers {
    owed: VecDeque<Owed>,
    /// The session has begun: the greeting is over.
    begun: bool,
    /// After an error the server skips what the client sends, up to the next Sync.
    skipping: bool,
}

impl Answers {
    pub(crate) fn owe_byte(&mut self) {
        self.owed.push_back(Owed::Byte);
    }

    /// Whether the next thing from the server is a single byte; if so, it is settled.
    pub(crate) fn take_byte(&mut self) -> bool {
        let byte = matches!(self.owed.front(), Some(Owed::Byte));
        if byte {
            self.owed.pop_front();
        }
        byte
    }

    /// The client has sent this, and a plan may wait for its answer.
    pub(crate) fn owe(&mut self, tag: u8, armed: Option<Armed>) {
        let owed = match tag {
            b'P' => Owed::Parse,
            b'B' => Owed::Bind,
            b'D' => Owed::Describe,
            b'C' => Owed::Close,
            b'E' => Owed::Execute(armed),
            b'Q' | b'F' => Owed::Query(armed),
            b'S' => Owed::Sync,
            _ => return,
        };
        if self.skipping && !matches!(owed, Owed::Sync) {
            return;
        }
        self.skipping = false;
        self.owed.push_back(owed);
    }

    /// The server has sent this. Hands back the plan if it tells that its commit has happened.
    pub(crate) fn answered(&mut self, tag: u8, body: &[u8]) -> Option<Armed> {
        if !self.begun {
            self.begun = tag == b'Z';
            return None;
        }
        let committed = body.starts_with(b"COMMIT");
        match (tag, self.owed.front_mut()) {
            (b'C', Some(Owed::Query(armed))) if committed => return armed.take(),
            (b'C' | b'I' | b's', Some(Owed::Execute(armed))) => {
                let armed = armed.take();
                self.owed.pop_front();
                return armed.filter(|_| tag == b'C' && committed);
            }
            (b'1', Some(Owed::Parse))
            | (b'2', Some(Owed::Bind))
            | (b'3', Some(Owed::Close))
            | (b'T' | b'n', Some(Owed::Describe))
            | (b'Z', Some(Owed::Sync | Owed::Query(_))) => {
                self.owed.pop_front();
            }
            (b'E', Some(Owed::Query(armed))) => drop(armed.take()),
            (b'E', Some(_)) => {
                while self
                    .owed
                    .front()
                    .is_some_and(|owed| !matches!(owed, Owed::Sync))
                {
                    self.owed.pop_front();
                }
                self.skipping = self.owed.is_empty();
            }
            _ => {}
        }
        None
    }
}

fn until_zero(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0);
    let end = end.unwrap_or(bytes.len());
    (
        bytes.get(..end).unwrap_or_default(),
        bytes.get(end + 1..).unwrap_or_default(),
    )
}

/// The first word of a statement, in capitals.
fn word(statement: &[u8]) -> Vec<u8> {
    let start = statement.trim_ascii_start();
    let letters = start.iter().take_while(|byte| byte.is_ascii_alphabetic());
    letters.map(u8::to_ascii_uppercase).collect()
}

fn contains_word(statement: &[u8], wanted: &[u8]) -> bool {
    statement
        .split(u8::is_ascii_whitespace)
        .any(|part| part.eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Active, Plan};

    /// A message of the extended protocol, by its texts, each ended by a zero.
    fn texts(texts: &[&str]) -> Vec<u8> {
        texts
            .iter()
            .flat_map(|text| [text.as_bytes(), &[0]].concat())
            .collect()
    }

    fn armed() -> Option<Armed> {
        Active::new(Plan::cut_after_commit()).take(b"")
    }

    #[test]
    fn lengths_wait_for_whole_messages() {
        assert!(matches!(length(&[b'Z', 0, 0, 0], 1), Ok(None)));
        assert!(matches!(length(&[b'Z', 0, 0, 0, 5], 1), Ok(None)));
        assert!(matches!(length(b"Z\0\0\0\x05I1", 1), Ok(Some(6))));
        assert!(matches!(
            length(b"\0\0\0\x08\x04\xd2\x16\x2f", 0),
            Ok(Some(8))
        ));
        assert!(length(b"HTTP/1.1", 1).is_err());
    }

    #[test]
    fn a_prepared_commit_is_a_commit() {
        let mut client = Client::default();
        assert!(!client.sent(b'P', &texts(&["s1", "  commit"])));
        assert!(!client.sent(b'P', &texts(&["s2", "insert into t values ($1)"])));
        assert!(!client.sent(b'B', &texts(&["", "s2", "one-key"])));
        assert!(!client.sent(b'E', &texts(&[""])));
        assert!(!client.sent(b'B', &texts(&["", "s1"])));
        assert!(client.sent(b'E', &texts(&[""])));
    }

    #[test]
    fn a_transaction_is_what_was_said_since_it_began() {
        let mut client = Client::default();
        let mut says = |sql| {
            let commits = client.sent(b'Q', &texts(&[sql]));
            (
                commits,
                String::from_utf8_lossy(client.transaction()).into_owned(),
            )
        };
        says("BEGIN");
        says("insert into first_table values (1)");
        let (commits, said) = says("COMMIT");
        assert!(commits && said.contains("first_table"));
        says("start transaction");
        says("savepoint a");
        says("rollback to a");
        says("insert into second_table values (1)");
        let (commits, said) = says("end");
        assert!(commits && said.contains("second_table") && !said.contains("first_table"));
        let (commits, said) = says("begin; insert into third_table values (1); commit");
        assert!(commits && said.contains("third_table") && !said.contains("second_table"));
    }

    #[test]
    fn the_answer_is_the_commits_own() {
        let mut answers = Answers::default();
        answers.answered(b'Z', b"I");
        for tag in *b"PBE" {
            answers.owe(tag, None);
        }
        answers.owe(b'P', None);
        answers.owe(b'B', None);
        answers.owe(b'D', None);
        answers.owe(b'E', armed());
        answers.owe(b'S', None);
        assert!(answers.answered(b'1', b"").is_none());
        assert!(answers.answered(b'2', b"").is_none());
        assert!(
            answers.answered(b'C', b"COMMIT\0").is_none(),
            "an earlier one"
        );
        assert!(answers.answered(b'1', b"").is_none());
        assert!(answers.answered(b'2', b"").is_none());
        assert!(answers.answered(b'n', b"").is_none());
        assert!(answers.answered(b'C', b"COMMIT\0").is_some());
    }

    #[test]
    fn a_commit_that_fails_is_handed_back() {
        let plan = Active::new(Plan::cut_after_commit());
        let mut answers = Answers::default();
        answers.answered(b'Z', b"I");
        answers.owe(b'E', None);
        answers.owe(b'E', plan.take(b""));
        assert!(plan.take(b"").is_none(), "taken");
        assert!(answers.answered(b'E', b"S").is_none());
        // Skipped by the server, so nothing is owed for it.
        answers.owe(b'E', plan.take(b""));
        answers.owe(b'S', None);
        assert!(answers.answered(b'Z', b"I").is_none());
        answers.owe(b'Q', plan.take(b""));
        assert!(answers.answered(b'C', b"ROLLBACK\0").is_none());
        assert!(answers.answered(b'Z', b"I").is_none());
        answers.owe(b'Q', plan.take(b""));
        assert!(answers.answered(b'C', b"COMMIT\0").is_some());
    }
}
