//! The stored answer that belongs to a row.

use counterfoil_core::{Decision, Kept, State};
use counterfoil_store::{Error, Found, StoredReply};
use tokio_postgres::{Row, types::Type};

use crate::{
    connect::{Session, Text},
    error::Done,
    rows::{self, Stored, reply_columns},
};

static RESULT: Text = Text {
    sql: concat!(
        "SELECT ",
        reply_columns!(),
        " FROM counterfoil_results AS a WHERE a.receipt = $1"
    ),
    types: &[Type::INT8],
};
pub(crate) static QUESTION: Text = Text {
    sql: concat!(
        "SELECT ",
        reply_columns!(),
        " FROM counterfoil_questions AS a WHERE a.receipt = $1 AND a.round = $2"
    ),
    types: &[Type::INT8, Type::INT4],
};

/// A receipt with the answer that belongs to a decision.
pub(crate) async fn found_for(
    session: &Session,
    stored: &Stored,
    decision: Decision,
) -> Done<Found> {
    let receipt = stored.receipt.clone();
    let asks = receipt.status.state == State::InputRequired;
    let round = decision.round();
    let reply = match round.or(asks.then_some(receipt.status.round)) {
        Some(round) => reply(
            session
                .ask(&QUESTION, &[&stored.id, &i32::from(round)])
                .await?,
        )?,
        None if receipt.kept == Kept::Stored => reply(session.ask(&RESULT, &[&stored.id]).await?)?,
        None => None,
    };
    Ok(Found { receipt, reply })
}

fn reply(rows: Vec<Row>) -> Result<Option<StoredReply>, Error> {
    match rows.first() {
        Some(row) => rows::decode_reply(row, 0),
        None => Ok(None),
    }
}
