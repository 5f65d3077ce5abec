//! The upstream's side.
