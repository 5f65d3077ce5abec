//! Starting: one migration however many start, and what is refused with a clear word.

use counterfoil_postgres::{OpenError, Options, PostgresStore};
use counterfoil_store::{Atomic, Error, Store, transact};
use counterfoil_test_postgres::{Database, Pooler, Server};

use crate::scene::{
    atomic, create_effects, effect, finish, guarded, node, node_at, run, until, write_effect,
};

async fn refused(url: &str, options: Options) -> OpenError {
    match PostgresStore::open(url, options).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_stores_start_at_once_on_an_empty_database() {
    let database = Database::new();
    let starts: Vec<_> = (0..10)
        .map(|_| {
            let url = database.url().to_owned();
            tokio::spawn(async move { node_at(&url, Options::default()).await })
        })
        .collect();
    let mut nodes = Vec::new();
    for start in starts {
        nodes.push(start.await.unwrap());
    }
    for (number, node) in nodes.iter().enumerate() {
        let granted = run(node, guarded(&format!("k{number}"))).await;
        // Each finds what the one before reserved: they have one secret.
        let previous = guarded(&format!("k{}", number.saturating_sub(1))).identity;
        assert!(node.find(&previous).await.unwrap().is_some());
        finish(node, granted.fence, "done").await;
    }
    assert_eq!(
        database.psql("SELECT name, version FROM counterfoil_components"),
        "store|1"
    );
    assert_eq!(database.psql("SELECT count(*) FROM counterfoil_meta"), "1");
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_receipts"),
        "10"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_missing_or_newer_are_refused() {
    let database = Database::new();
    let opened = PostgresStore::open_migrated(database.url(), Options::default()).await;
    match opened {
        Err(error @ OpenError::NotMigrated { found: 0, .. }) => {
            assert!(error.to_string().contains("counterfoil migrate"), "{error}");
        }
        other => panic!("there are no tables: {other:?}"),
    }
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'counterfoil%'";
    assert_eq!(database.psql(tables), "0", "it only looks");
    drop(node(&database).await);
    let opened = PostgresStore::open_migrated(database.url(), Options::default()).await;
    assert!(opened.is_ok(), "{opened:?}");
    database.psql("UPDATE counterfoil_components SET version = 99");
    let newer = refused(database.url(), Options::default()).await;
    assert!(
        matches!(newer, OpenError::Newer { found: 99, .. }),
        "{newer}"
    );
    let opened = PostgresStore::open_migrated(database.url(), Options::default()).await;
    assert!(
        matches!(opened, Err(OpenError::Newer { found: 99, .. })),
        "{opened:?}"
    );
}

/// A role that may not create tables, and owns none, is all a node needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_to_create_is_enough() {
    let database = Database::new();
    create_effects(&database);
    drop(node(&database).await);
    // Roles are of the whole server.
    let (address, name) = (database.address(), database.name());
    database.psql(&format!(
        "CREATE ROLE modest_{name} LOGIN;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO modest_{name};
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO modest_{name}"
    ));
    let url = format!("postgres://modest_{name}@{address}/{name}");
    for migrates in [false, true] {
        let store = if migrates {
            PostgresStore::open(&url, Options::default()).await
        } else {
            PostgresStore::open_migrated(&url, Options::default()).await
        };
        let store = store.unwrap();
        let granted = run(&store, guarded(&format!("k {migrates}"))).await;
        finish(&store, granted.fence, "done").await;
        let done = transact(&store, None, |tx| {
            Box::pin(async move { write_effect(tx, "e").await.map(drop) })
        });
        assert_eq!(done.await, Ok(()));
        assert!(store.health().await.is_ok());
    }
    database.psql(&format!(
        "DROP OWNED BY modest_{name}; DROP ROLE modest_{name}"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_database_is_refused() {
    let database = Database::new();
    let name = database.name();
    database.psql(&format!(
        "ALTER DATABASE {name} SET default_transaction_read_only = on"
    ));
    let error = refused(database.url(), Options::default()).await;
    assert!(matches!(error, OpenError::ReadOnly), "{error}");
    assert!(error.to_string().contains("primary"), "{error}");
}

/// A primary that stops taking writes under a store that is open, and takes them again.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_turns_read_only_is_unavailable_meanwhile() {
    let server = Server::start();
    let database = Database::on(&server);
    let store = node(&database).await;
    let granted = run(&store, guarded("before")).await;
    let outside = crate::scene::outsider(&database).await;
    let turn = |value: &str| {
        database.psql(&format!(
            "ALTER SYSTEM SET default_transaction_read_only = {value}"
        ))
    };
    turn("on");
    database.psql("SELECT pg_reload_conf()");
    let shown = "SELECT current_setting('default_transaction_read_only') = ";
    until(&outside, &format!("{shown}'on'")).await;
    let said = store.admit(guarded("k")).await;
    assert!(matches!(said, Err(Error::Unavailable(_))), "{said:?}");
    let health = store.health().await;
    assert!(matches!(health, Err(Error::Unavailable(_))), "{health:?}");
    // Statements of one psql are one transaction, and this one may not be in any.
    let off = "SET default_transaction_read_only = off";
    outside.batch_execute(off).await.unwrap();
    outside
        .batch_execute("ALTER SYSTEM RESET default_transaction_read_only")
        .await
        .unwrap();
    outside
        .batch_execute("SELECT pg_reload_conf(); RESET default_transaction_read_only")
        .await
        .unwrap();
    until(&outside, &format!("{shown}'off'")).await;
    assert!(store.health().await.is_ok());
    run(&store, guarded("k")).await;
    finish(&store, granted.fence, "done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_encoding_is_refused() {
    let database = Database::new();
    let name = format!("{}_bytes", database.name());
    let encoding = "ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0";
    database.psql(&format!("CREATE DATABASE {name} {encoding}"));
    let url = format!("postgres://postgres@{}/{name}", database.address());
    let error = refused(&url, Options::default()).await;
    database.psql(&format!("DROP DATABASE {name} WITH (FORCE)"));
    assert!(
        matches!(&error, OpenError::Encoding(found) if found == "SQL_ASCII"),
        "{error}"
    );
    assert!(error.to_string().contains("ENCODING 'UTF8'"), "{error}");
}

/// PgBouncer that was not announced: one that refuses our settings, and one that drops them.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_was_not_announced_is_refused() {
    let database = Database::new();
    let pooler = Pooler::start(database.address());
    let url = database.url_at(pooler.address());
    let error = refused(&url, Options::default()).await;
    assert!(matches!(error, OpenError::Pooler), "{error}");
    assert!(error.to_string().contains("store_pooler"), "{error}");
    let admin = format!("postgres://postgres@{}/pgbouncer", pooler.address());
    let (client, connection) = tokio_postgres::connect(&admin, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
        .simple_query("SET ignore_startup_parameters = 'options,extra_float_digits'")
        .await
        .unwrap();
    let error = refused(&url, Options::default()).await;
    assert!(matches!(error, OpenError::Pooler), "{error}");
    let announced = Options {
        pooler: true,
        ..Options::default()
    };
    let store = node_at(&url, announced).await;
    let granted = run(&store, guarded("k")).await;
    finish(&store, granted.fence, "done").await;
}

/// The role's password is changed under a store that is open: it is unavailable, and no statement
/// is said to have failed, until the password is the right one again.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_turned_wrong_is_unavailable_meanwhile() {
    let server = Server::start();
    let database = Database::on(&server);
    create_effects(&database);
    let name = database.name();
    ask_for_passwords(&server, &database);
    let url = format!("postgres://guarded:right@{}/{name}", server.address());
    let store = node_at(&url, Options::default()).await;
    database.psql("ALTER ROLE guarded PASSWORD 'another'; ALTER TABLE effects OWNER TO guarded");
    database.psql(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'guarded'",
    );
    let unavailable = |error: &Error| matches!(error, Error::Unavailable(why) if why.contains("password authentication failed"));
    let mut admission = guarded("k");
    admission.patience = std::time::Duration::from_millis(500);
    let said = store.admit(admission).await;
    assert!(said.as_ref().is_err_and(unavailable), "{said:?}");
    let said = store.atomically(atomic("a"), effect("e")).await;
    assert!(said.as_ref().is_err_and(unavailable), "{said:?}");
    let said = store.health().await;
    assert!(said.as_ref().is_err_and(unavailable), "{said:?}");
    let said = store.find(&guarded("k").identity).await;
    assert!(said.as_ref().is_err_and(unavailable), "{said:?}");
    database.psql("ALTER ROLE guarded PASSWORD 'right'");
    let granted = run(&store, guarded("k")).await;
    finish(&store, granted.fence, "done").await;
    let done = store.atomically(atomic("a"), effect("e")).await;
    assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
}

/// The role `guarded`, whose password is `right` and is asked for.
fn ask_for_passwords(server: &Server, database: &Database) {
    let access = server.folder().join("data/pg_hba.conf");
    let trust = std::fs::read_to_string(&access).unwrap();
    let asks = "host all guarded 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(&access, format!("{asks}{trust}")).unwrap();
    let name = database.name();
    database.psql(&format!(
        "CREATE ROLE guarded LOGIN PASSWORD 'right'; ALTER DATABASE {name} OWNER TO guarded"
    ));
    database.psql("SELECT pg_reload_conf()");
}

/// Nothing that is said of a connection that cannot be had holds its password.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_and_not_told() {
    const SECRET: &str = "s3cret-nobody-may-read";
    let server = Server::start();
    let database = Database::on(&server);
    let name = database.name();
    ask_for_passwords(&server, &database);
    let at = |password: &str| {
        let address = server.address();
        format!("postgres://guarded:{password}@{address}/{name}")
    };
    drop(node_at(&at("right"), Options::default()).await);
    let nobody_listens = format!("postgres://guarded:{SECRET}@127.0.0.1:1/{name}");
    let no_database = format!("postgres://guarded:{SECRET}@{}/nowhere", server.address());
    let not_understood = [
        format!("postgres://guarded:{SECRET}@/{name}?port=many"),
        format!("postgres://guarded:{SECRET}@127.0.0.1:many/{name}"),
        format!("host=127.0.0.1 password={SECRET} dbname"),
        format!("host=127.0.0.1 password='{SECRET}"),
        format!("mysql://guarded:{SECRET}@127.0.0.1/{name}"),
        format!("password={SECRET} dbname=x"),
    ];
    let wrong = refused(&at(SECRET), Options::default()).await;
    assert!(
        wrong.to_string().contains("password authentication failed"),
        "{wrong}"
    );
    let mut said = vec![
        wrong,
        refused(&nobody_listens, Options::default()).await,
        refused(&no_database, Options::default()).await,
    ];
    assert!(
        said.iter()
            .all(|error| matches!(error, OpenError::Refused(_)))
    );
    for url in not_understood {
        let error = refused(&url, Options::default()).await;
        assert!(matches!(error, OpenError::Address(_)), "{url}: {error}");
        said.push(error);
    }
    for error in said {
        assert!(!error.to_string().contains(SECRET), "{error}");
        assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    }
}
