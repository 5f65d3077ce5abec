//! The servers, and what is done with each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use counterfoil_e2e::installed::{modules, node, python_program, python_sdk_1_program};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::host::{Start, count};
use crate::subject::{Call, Subject};

/// The moment of every commit: the same commit has the same name then.
const MOMENT: &str = "2026-01-01T00:00:00+0000";
/// What `recorded` writes down.
const TOLD: &str = "told.jsonl";

fn path(file: &Path) -> String {
    file.display().to_string()
}

fn start(folder: &TempDir, words: Vec<String>) -> Start {
    Start {
        words,
        environment: Vec::new(),
        folder: folder.path().to_path_buf(),
    }
}

/// The program of a server on Node.
pub(crate) fn script(package: &str) -> Vec<String> {
    let package = modules().join("@modelcontextprotocol").join(package);
    vec![path(&node()), path(&package.join("dist/index.js"))]
}

/// The same server, where what it is told is written down on the way: its effects leave no trace
/// that could be counted.
fn recorded(world: &Path, words: Vec<String>) -> Vec<String> {
    // The server stays the child of whoever started this.
    let shell = r#"exec "$@" < <(tee -a "$0")"#;
    let mut all = vec!["bash".to_owned(), "-c".to_owned(), shell.to_owned()];
    all.push(path(&world.with_file_name(TOLD)));
    all.extend(words);
    all
}

fn listing_methods() -> Vec<(&'static str, Value)> {
    let lists = ["resources/list", "resources/templates/list", "prompts/list"];
    let mut asks: Vec<_> = lists.into_iter().map(|name| (name, json!({}))).collect();
    asks.push(("no/such/method", json!({"x": [1, 2.50]})));
    asks
}

/// `edit_file` puts one more x into a file.
pub(crate) fn filesystem() -> Subject {
    let (folder, world) = Subject::folder();
    let mut words = script("server-filesystem");
    words.push(path(&world));
    let file = path(&world.join("letters.txt"));
    let edits = json!([{"oldText": "x", "newText": "xx"}]);
    let at = |name: &str| json!({"path": path(&world.join(name))});
    let reads: Vec<Call> = vec![
        ("read_text_file", json!({"path": file})),
        ("read_text_file", at("missing.txt")),
        ("read_multiple_files", json!({"paths": [file]})),
        ("list_directory", at("")),
        ("directory_tree", at("")),
        (
            "search_files",
            json!({"path": path(&world), "pattern": "*.txt"}),
        ),
        ("list_allowed_directories", json!({})),
    ];
    Subject {
        direct: start(&folder, words),
        folder,
        lay: |world| fs::write(world.join("letters.txt"), "x\n").unwrap(),
        asks: listing_methods(),
        reads,
        change: ("edit_file", json!({"path": file, "edits": edits})),
        ready: |_| {},
        effects: |world| count(&world.join("letters.txt"), "x") - 1,
        annotated: true,
    }
}

/// `create_entities` answers with what was not there before.
pub(crate) fn memory() -> Subject {
    let (folder, world) = Subject::folder();
    let words = recorded(&world, script("server-memory"));
    let file = path(&world.join("memory.jsonl"));
    let entity = json!({"name": "Ada", "entityType": "person", "observations": ["counts"]});
    let mut direct = start(&folder, words);
    direct.environment.push(("MEMORY_FILE_PATH", file));
    Subject {
        direct,
        folder,
        lay: |world| {
            let known = r#"{"type":"entity","name":"Bo","entityType":"person","observations":[]}"#;
            fs::write(world.join("memory.jsonl"), known).unwrap();
            fs::write(world.with_file_name(TOLD), "").unwrap();
        },
        asks: listing_methods(),
        reads: vec![
            ("read_graph", json!({})),
            ("search_nodes", json!({"query": "Bo"})),
            ("open_nodes", json!({"names": ["Bo"]})),
        ],
        change: ("create_entities", json!({"entities": [entity]})),
        ready: |_| {},
        effects: |world| count(&world.with_file_name(TOLD), "\"create_entities\""),
        annotated: true,
    }
}

/// What is asked of the server with everything, over pipes and over HTTP.
pub(crate) fn everything_asks() -> Vec<(&'static str, Value)> {
    let mut asks = listing_methods();
    let reference = json!({"type": "ref/prompt", "name": "completable-prompt"});
    let argument = json!({"name": "department", "value": "E"});
    asks.extend([
        ("ping", json!({})),
        ("prompts/get", json!({"name": "simple-prompt"})),
        (
            "completion/complete",
            json!({"ref": reference, "argument": argument}),
        ),
        ("tasks/list", json!({})),
    ]);
    asks
}

/// Reading calls of the server with everything.
pub(crate) fn everything_reads() -> Vec<Call> {
    vec![
        ("echo", json!({"message": "h\u{e9} \u{1f600} \"quoted\""})),
        ("get-sum", json!({"a": 0.1, "b": 0.2})),
        ("get-tiny-image", json!({})),
        ("get-structured-content", json!({"location": "New York"})),
        ("get-resource-links", json!({"count": 3})),
        (
            "get-annotated-message",
            json!({"messageType": "debug", "includeImage": true}),
        ),
        (
            "trigger-long-running-operation",
            json!({"duration": 0.1, "steps": 2}),
        ),
        ("echo", json!({"message": 7})),
    ]
}

/// `toggle-subscriber-updates` says on or off in turn.
pub(crate) fn everything() -> Subject {
    let (folder, world) = Subject::folder();
    let mut words = script("server-everything");
    words.push("stdio".to_owned());
    Subject {
        direct: start(&folder, recorded(&world, words)),
        folder,
        lay: |world| fs::write(world.with_file_name(TOLD), "").unwrap(),
        asks: everything_asks(),
        reads: everything_reads(),
        change: ("toggle-subscriber-updates", json!({})),
        ready: |_| {},
        effects: |world| count(&world.with_file_name(TOLD), "\"toggle-subscriber-updates\""),
        annotated: true,
    }
}

/// `git_commit` commits what is staged.
pub(crate) fn git() -> Subject {
    let (folder, world) = Subject::folder();
    let words = vec![path(&python_program("mcp-server-git"))];
    let repository = path(&world);
    let mut direct = start(&folder, words);
    for name in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
        direct.environment.push((name, MOMENT.to_owned()));
    }
    let with = |more: Value| {
        let mut arguments = json!({"repo_path": repository});
        for (name, value) in more.as_object().into_iter().flatten() {
            arguments[name] = value.clone();
        }
        arguments
    };
    Subject {
        direct,
        folder,
        lay: |world| {
            run_git(world, &["init", "--quiet", "--initial-branch", "main"]);
            run_git(world, &["config", "user.name", "Ada"]);
            run_git(world, &["config", "user.email", "ada@example.org"]);
            fs::write(world.join("one.txt"), "one\n").unwrap();
            run_git(world, &["add", "one.txt"]);
            run_git(world, &["commit", "--quiet", "-m", "First"]);
        },
        asks: listing_methods(),
        reads: vec![
            ("git_status", with(json!({}))),
            ("git_log", with(json!({"max_count": 3}))),
            ("git_show", with(json!({"revision": "HEAD"}))),
            ("git_show", with(json!({"revision": "no-such-one"}))),
            ("git_branch", with(json!({"branch_type": "local"}))),
        ],
        change: ("git_commit", with(json!({"message": "Once"}))),
        // It refuses a commit of nothing.
        ready: |world| {
            let lines = fs::read_to_string(world.join("one.txt")).unwrap();
            fs::write(world.join("one.txt"), format!("{lines}more\n")).unwrap();
            run_git(world, &["add", "one.txt"]);
        },
        effects: |world| {
            let commits = run_git(world, &["rev-list", "--count", "HEAD"]);
            commits.trim().parse::<usize>().unwrap() - 1
        },
        annotated: true,
    }
}

fn run_git(world: &Path, words: &[&str]) -> String {
    let done = Command::new("git")
        .args(words)
        .current_dir(world)
        .env("GIT_AUTHOR_DATE", MOMENT)
        .env("GIT_COMMITTER_DATE", MOMENT)
        .stdin(Stdio::null())
        .output()
        .expect("git starts");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "git {words:?}: {errors}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn database(world: &Path) -> PathBuf {
    world.join("rows.db")
}

/// `write_query` adds a row. Its tools say nothing of themselves.
pub(crate) fn sqlite() -> Subject {
    let (folder, world) = Subject::folder();
    let words = vec![
        path(&python_sdk_1_program("mcp-server-sqlite")),
        "--db-path".to_owned(),
        path(&database(&world)),
    ];
    Subject {
        direct: start(&folder, words),
        folder,
        lay: |world| {
            let rows = rusqlite::Connection::open(database(world)).unwrap();
            rows.execute_batch("CREATE TABLE rows (name TEXT)").unwrap();
        },
        asks: listing_methods(),
        reads: Vec::new(),
        change: (
            "write_query",
            json!({"query": "INSERT INTO rows VALUES ('one')"}),
        ),
        ready: |_| {},
        effects: |world| {
            let rows = rusqlite::Connection::open(database(world)).unwrap();
            let counted = rows.query_row("SELECT count(*) FROM rows", [], |row| row.get(0));
            usize::try_from(counted.unwrap_or(-1_i64)).unwrap()
        },
        annotated: false,
    }
}

/// It changes nothing.
pub(crate) fn time() -> Start {
    let words = vec![path(&python_program("mcp-server-time"))];
    Start {
        words,
        environment: Vec::new(),
        folder: std::env::temp_dir(),
    }
}
