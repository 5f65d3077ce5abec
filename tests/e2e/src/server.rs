use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::binary::{built, fixture};
use crate::folder::{Folder, Store};
use crate::http::Http;
use crate::mcp::Mcp;
use crate::wait::until;

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(60);
/// How long an end may take.
const END: Duration = Duration::from_secs(60);

/// A running `counterfoil serve`. Killed when dropped.
pub struct Server {
    process: Process,
    key: String,
}

/// A running fixture server of the MCP crate. Killed when dropped.
pub struct Fixture {
    process: Process,
}

/// A started program, the address it was told to listen on, and where its output goes.
struct Process {
    child: Child,
    address: SocketAddr,
    output: PathBuf,
}

impl Server {
    /// Starts it on a data folder and waits until it accepts calls.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(folder: &Folder) -> Self {
        Self::with(folder, &[])
    }

    /// The same, with more arguments.
    ///
    /// # Panics
    /// If it does not accept calls in time.
    #[must_use]
    pub fn with(folder: &Folder, more: &[&str]) -> Self {
        let mut server = Self::launch(folder, more);
        server.wait_until_ready();
        server.key = folder.key();
        server
    }

    /// Starts it and waits for nothing.
    ///
    /// # Panics
    /// If the program does not start.
    #[must_use]
    pub fn launch(folder: &Folder, more: &[&str]) -> Self {
        Self::launch_on(&folder.words(), folder.root(), more)
    }

    /// The same on a machine whose clock is wrong by `seconds`. `None`, and a line that says so,
    /// where clocks cannot be shifted (Debian's package `faketime` does it).
    ///
    /// # Panics
    /// If the program does not start.
    #[must_use]
    pub fn launch_off_by(folder: &Folder, seconds: i64, more: &[&str]) -> Option<Self> {
        let mut command = Command::new(built());
        shift_clock(&mut command, seconds)?;
        let (words, root) = (folder.words(), folder.root());
        Some(Self::launch_as(command, &words, root, more))
    }

    /// Waits until it accepts calls.
    ///
    /// # Panics
    /// If it does not, or ends.
    pub fn wait_until_ready(&mut self) {
        until("the server is ready", START, || {
            if let Some(status) = self.process.child.try_wait().expect("a child") {
                panic!("the server ended: {status}\n{}", self.printed());
            }
            self.is_ready().then_some(())
        });
    }

    /// Whether it has ended by itself.
    ///
    /// # Panics
    /// If the system does not tell.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.process.child.try_wait().expect("a child").is_some()
    }

    pub(crate) fn launch_on(place: &[String], around: &Path, more: &[&str]) -> Self {
        Self::launch_as(Command::new(built()), place, around, more)
    }

    fn launch_as(mut command: Command, place: &[String], around: &Path, more: &[&str]) -> Self {
        let address = free_address();
        command
            .arg("serve")
            .args(["--listen", &address.to_string()])
            .args(place)
            .args(more)
            .current_dir(around);
        let process = Process::start(command, address, around);
        Self {
            process,
            key: String::new(),
        }
    }

    /// Whether `/readyz` says 200 now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let ready = Http::new(self.process.address)
            .request("GET", "/readyz")
            .send();
        ready.is_ok_and(|reply| reply.status == 200)
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// A client with the first agent key.
    #[must_use]
    pub fn http(&self) -> Http {
        Http::new(self.process.address).with_key(&self.key)
    }

    /// A client with another credential.
    #[must_use]
    pub fn http_as(&self, key: &str) -> Http {
        Http::new(self.process.address).with_key(key)
    }

    /// An MCP client with the first agent key.
    #[must_use]
    pub fn mcp(&self) -> Mcp {
        Mcp::new(self.http())
    }

    /// What it printed up to now: standard output, then the rest.
    #[must_use]
    pub fn printed(&self) -> String {
        self.process.printed()
    }

    /// Ends it as a power cut would.
    pub fn kill(mut self) {
        self.process.end();
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// If there is no shell.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal, named as the shell's kill does.
    ///
    /// # Panics
    /// If there is no shell.
    pub fn signal(&self, which: &str) {
        self.process.signal(which);
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// If it does not.
    pub fn ended(mut self) -> ExitStatus {
        self.process.ended()
    }

    /// SIGTERM, and the end.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn stop(self) {
        self.terminate();
        let printed = self.process.output.clone();
        let status = self.ended();
        assert!(
            status.success(),
            "stopped with {status} ({:?})\n{}",
            status.signal(),
            fs::read_to_string(printed).unwrap_or_default()
        );
    }

    /// For a start that must fail: waits for the end and hands over what was printed.
    ///
    /// # Panics
    /// If it starts well.
    #[must_use]
    pub fn refused(mut self) -> String {
        until("the server gives up", START, || {
            assert!(!self.is_ready(), "it started:\n{}", self.printed());
            self.process.child.try_wait().expect("a child")
        });
        let status = self.process.ended();
        assert!(!status.success(), "it ended well:\n{}", self.printed());
        self.printed()
    }
}

impl Fixture {
    /// Starts it on the folder's store, and waits until it listens.
    ///
    /// # Panics
    /// If it does not listen in time.
    #[must_use]
    pub fn start(folder: &Folder, more: &[&str]) -> Self {
        let mut fixture = Self::launch(folder, more);
        fixture.wait_until_up();
        fixture
    }

    /// The same on a machine whose clock is wrong by `seconds`; as [`Server::launch_off_by`].
    ///
    /// # Panics
    /// If it does not listen in time.
    #[must_use]
    pub fn start_off_by(folder: &Folder, seconds: i64, more: &[&str]) -> Option<Self> {
        let mut command = Command::new(fixture());
        shift_clock(&mut command, seconds)?;
        let mut fixture = Self::launch_as(command, folder, more);
        fixture.wait_until_up();
        Some(fixture)
    }

    fn wait_until_up(&mut self) {
        until("the fixture listens", START, || {
            assert!(
                !self.has_ended(),
                "the fixture ended:\n{}",
                self.process.printed()
            );
            std::net::TcpStream::connect(self.process.address).ok()
        });
    }

    /// Starts it and waits for nothing.
    ///
    /// # Panics
    /// If the program does not start.
    #[must_use]
    pub fn launch(folder: &Folder, more: &[&str]) -> Self {
        Self::launch_as(Command::new(fixture()), folder, more)
    }

    fn launch_as(mut command: Command, folder: &Folder, more: &[&str]) -> Self {
        let address = free_address();
        command.arg(address.port().to_string()).args(more);
        match folder.store() {
            Store::Sqlite => {}
            Store::Memory => {
                command.args(["--store", "memory"]);
            }
            Store::Postgres => {
                let base = folder.base().expect("a database");
                command.args(["--store", base.database().url()]);
            }
        }
        let process = Process::start(command, address, folder.root());
        Self { process }
    }

    /// Whether it has ended by itself.
    ///
    /// # Panics
    /// If the system does not tell.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.process.child.try_wait().expect("a child").is_some()
    }

    /// Ends it as a power cut would.
    pub fn kill(mut self) {
        self.process.end();
    }

    /// A client of it; it asks for no credential.
    #[must_use]
    pub const fn http(&self) -> Http {
        Http::new(self.process.address)
    }

    /// The address of its MCP endpoint.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.process.address)
    }
}

impl Process {
    fn start(mut command: Command, address: SocketAddr, folder: &Path) -> Self {
        let output = folder.join(format!("{}.out", address.port()));
        let file = File::create(&output).expect("a file for the output");
        let errors = file.try_clone().expect("the same file");
        clean(&mut command);
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .expect("the program starts");
        Self {
            child,
            address,
            output,
        }
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    fn signal(&self, which: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("sh")
            .args(["-c", "kill -s \"$1\" \"$2\"", "sh", which, &id])
            .status()
            .expect("a shell");
        assert!(status.success(), "kill -s {which}: {status}");
    }

    fn ended(&mut self) -> ExitStatus {
        until("the process ends", END, || {
            self.child.try_wait().expect("a child")
        })
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            println!("-- printed by {}:\n{}", self.address, self.printed());
        }
    }
}

/// Takes the settings of whoever runs the tests out of a program's environment.
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"COUNTERFOIL_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG");
}

/// Shifts the wall clock of a program, and nothing but that.
fn shift_clock(command: &mut Command, seconds: i64) -> Option<()> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let library = folders
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.is_file());
    let Some(library) = library else {
        println!("SKIPPED: libfaketime is not here");
        return None;
    };
    command
        .env("LD_PRELOAD", library)
        .env("FAKETIME", format!("{seconds:+}"))
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Some(())
}

/// A loopback address on which nobody listens now.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener
        .local_addr()
        .expect("a bound socket has an address")
}
