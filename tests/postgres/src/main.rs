//! Starts a private server, prints its address, and keeps it until standard input is closed.

use std::io::Read as _;
use std::process::ExitCode;

use counterfoil_test_postgres::{Server, VARIABLE};

fn main() -> ExitCode {
    let server = match Server::try_start() {
        Ok(server) => server,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    println!("export {VARIABLE}={}", server.base());
    println!("# folder {}", server.folder().display());
    println!("# ends when this program's input is closed, or when it is killed");
    let mut nothing = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut nothing);
    ExitCode::SUCCESS
}
