//! The application over its own router: each test on SQLite in a folder of its own, and on
//! PostgreSQL in a database of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Runs each of these on both stores. A test that is not named is dead code, and said so.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(crate::fixture::On::Sqlite).await;
                }
            )*
        }

        mod postgres {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(crate::fixture::On::Postgres).await;
                }
            )*
        }
    };
}

mod away;
mod bad_input;
mod fixture;
mod mcp;
mod nodes;
mod notes;
mod observability;
mod operations;
mod principals;
mod probes;
mod sealing;
