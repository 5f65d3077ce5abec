use counterfoil_store::Migration;

/// Under which name the versions of these tables are kept in the store.
pub(crate) const COMPONENT: &str = "application";

/// The application's tables. Times are milliseconds since the Unix epoch. A key's secret is there
/// only as its SHA-256.
pub(crate) const MIGRATIONS: &[Migration] = &[Migration {
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
}];
