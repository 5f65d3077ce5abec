//! What calls without a key get, on a real store.

mod histories;
mod judging;
mod pairing;
mod postgres;
mod remembering;
mod scene;
