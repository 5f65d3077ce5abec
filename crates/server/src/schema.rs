use counterfoil_store::Migration;

/// Under which name the versions of these tables are kept in the store.
pub(crate) const COMPONENT: &str = "application";

/// The application's tables. Times are milliseconds since the Unix epoch. A key's secret is there
/// only as its SHA-256.
pub(crate) const MIGRATIONS: &[Migration] = &[FIRST, SEALING_KEYS];

const FIRST: Migration = Migration {
    version: 1,
    sqlite: "
CREATE TABLE workspaces (
    id TEXT NOT NULL PRIMARY KEY,
    created_at INTEGER NOT NULL
) STRICT;
CREATE TABLE agent_keys (
    id TEXT NOT NULL PRIMARY KEY,
    workspace TEXT NOT NULL REFERENCES workspaces (id),
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    secret_sha256 BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    rotated_at INTEGER,
    revoked_at INTEGER
) STRICT;
CREATE INDEX agent_keys_of_workspace ON agent_keys (workspace, id);
CREATE TABLE notes (
    workspace TEXT NOT NULL REFERENCES workspaces (id),
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    author TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (workspace, id)
) STRICT;
",
    postgres: "
CREATE TABLE workspaces (
    id TEXT NOT NULL PRIMARY KEY,
    created_at BIGINT NOT NULL
);
CREATE TABLE agent_keys (
    id TEXT NOT NULL PRIMARY KEY,
    workspace TEXT NOT NULL REFERENCES workspaces (id),
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    secret_sha256 BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    rotated_at BIGINT,
    revoked_at BIGINT
);
CREATE INDEX agent_keys_of_workspace ON agent_keys (workspace, id);
CREATE TABLE notes (
    workspace TEXT NOT NULL REFERENCES workspaces (id),
    id TEXT COLLATE \"C\" NOT NULL,
    body TEXT NOT NULL,
    author TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (workspace, id)
);
",
};

/// Which key is meant by an id of a sealing key: a digest, so that no process seals with another
/// key under the same id.
const SEALING_KEYS: Migration = Migration {
    version: 2,
    sqlite: "
CREATE TABLE sealing_keys (
    id INTEGER NOT NULL PRIMARY KEY,
    digest BLOB NOT NULL
) STRICT;
",
    postgres: "
CREATE TABLE sealing_keys (
    id BIGINT NOT NULL PRIMARY KEY,
    digest BYTEA NOT NULL
);
",
};

/// A table as it is copied from one store to another.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// Every column it has, those of its key first.
    pub(crate) columns: &'static [&'static str],
    /// How many columns its key has.
    pub(crate) key: usize,
}

/// Every table of the newest version, each after those it refers to.
pub(crate) const TABLES: &[Table] = &[
    Table {
        name: "workspaces",
        columns: &["id", "created_at"],
        key: 1,
    },
    Table {
        name: "agent_keys",
        columns: &[
            "id",
            "workspace",
            "name",
            "role",
            "secret_sha256",
            "created_at",
            "rotated_at",
            "revoked_at",
        ],
        key: 1,
    },
    Table {
        name: "notes",
        columns: &["workspace", "id", "body", "author", "created_at"],
        key: 2,
    },
    Table {
        name: "sealing_keys",
        columns: &["id", "digest"],
        key: 1,
    },
];
