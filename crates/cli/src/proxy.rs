//! `counterfoil proxy`: the guarantee for a server that somebody else wrote.

mod args;
mod clients;
mod file;
mod label;
mod plan;
mod recipe;
mod run;
mod secret;
mod section;

pub(crate) use args::{AFTER, Proxy};
pub(crate) use label::{Labels, tool};

use crate::exit::Failure;

pub(crate) fn run(args: &Proxy) -> Result<(), Failure> {
    match args.print_config {
        Some(client) => clients::run(client, args),
        None => run::run(args),
    }
}
