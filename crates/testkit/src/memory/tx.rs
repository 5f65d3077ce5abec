use std::collections::HashMap;

use counterfoil_core::OperationId;
use counterfoil_store::{
    BoxFuture, Change, Dialect, Error, Fence, Row, Sql, Value, marked_committed,
};

use super::rows::Rows;

/// One statement of an application, as it was committed.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// Its text.
    pub sql: String,
    /// Its parameters.
    pub parameters: Vec<Value>,
}

/// A transaction: a journal beside the committed rows, which it sees and does not change.
pub(super) struct Tx<'a> {
    rows: &'a Rows,
    writable: bool,
    pub(super) journal: Vec<Statement>,
    pub(super) marks: HashMap<OperationId, Change<'static>>,
}

impl<'a> Tx<'a> {
    pub(super) fn new(rows: &'a Rows) -> Self {
        Self {
            rows,
            writable: true,
            journal: Vec::new(),
            marks: HashMap::new(),
        }
    }

    pub(super) fn reading(rows: &'a Rows) -> Self {
        Self {
            writable: false,
            ..Self::new(rows)
        }
    }

    fn may_write(&self) -> Result<(), Error> {
        if self.writable {
            Ok(())
        } else {
            Err(Error::Handler(
                "a reading connection cannot write".to_owned(),
            ))
        }
    }

    fn mark(&mut self, fence: Fence) -> Result<(), Error> {
        self.may_write()?;
        let id = fence.operation_id;
        let row = self.rows.of_operation(id).ok_or(Error::NotFound)?;
        let receipt = self
            .marks
            .get(&id)
            .map_or(&row.receipt, |mark| &mark.receipt);
        let at = row.events.last().map_or(receipt.created_at, |row| row.at);
        if let Some(change) = marked_committed(receipt, fence, at)? {
            self.marks.insert(id, change);
        }
        Ok(())
    }
}

impl Sql for Tx<'_> {
    fn execute<'a>(
        &'a mut self,
        sql: &'a str,
        parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            self.may_write()?;
            if controls_transactions(sql) {
                return Err(Error::Handler(
                    "a handler may not control transactions".to_owned(),
                ));
            }
            self.journal.push(Statement {
                sql: sql.to_owned(),
                parameters: parameters.to_vec(),
            });
            Ok(1)
        })
    }

    fn query<'a>(
        &'a mut self,
        sql: &'a str,
        _parameters: &'a [Value],
    ) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
        Box::pin(async move {
            let Some(table) = table_of(sql) else {
                return Err(Error::Statement("a query names its table".to_owned()));
            };
            let seen = self.rows.effects.iter().chain(&self.journal);
            let rows = seen
                .filter(|statement| is_insert(&statement.sql))
                .filter(|statement| table_of(&statement.sql) == Some(table))
                .map(|statement| Row(statement.parameters.clone()))
                .collect();
            Ok(rows)
        })
    }

    fn mark_committed<'a>(&'a mut self, fence: Fence) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.mark(fence) })
    }

    fn dialect(&self) -> Dialect {
        Dialect::Memory
    }
}

fn first_word(sql: &str) -> &str {
    sql.split_whitespace().next().unwrap_or_default()
}

fn is_insert(sql: &str) -> bool {
    first_word(sql).eq_ignore_ascii_case("insert")
}

fn controls_transactions(sql: &str) -> bool {
    ["begin", "commit", "end", "rollback", "savepoint", "release"]
        .iter()
        .any(|word| first_word(sql).eq_ignore_ascii_case(word))
}

/// The word after `INTO`, `FROM` or `UPDATE`.
fn table_of(sql: &str) -> Option<&str> {
    let mut words = sql.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | ';' | ','));
    words.find(|word| {
        ["into", "from", "update"]
            .iter()
            .any(|lead| word.eq_ignore_ascii_case(lead))
    })?;
    words.find(|word| !word.is_empty())
}
