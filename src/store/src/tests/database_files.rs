//! Tests of database files: of earlier versions, of other programs, and damaged.

use super::*;

#[test]
fn database_of_earlier_schema_is_upgraded_with_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let old = rusqlite::Connection::open(dir.path().join("state.sqlite")).unwrap();
    old.execute_batch(
        "PRAGMA journal_mode=WAL;
         CREATE TABLE machines (
            id TEXT PRIMARY KEY, macs TEXT NOT NULL DEFAULT '[]', name TEXT NOT NULL DEFAULT '', registered TEXT,
            last_seen TEXT, last_event TEXT) STRICT;
         CREATE TABLE tokens (machine TEXT PRIMARY KEY, hash BLOB NOT NULL, created TEXT NOT NULL) STRICT;
         CREATE TABLE allocations (
            machine TEXT NOT NULL, id TEXT NOT NULL, created TEXT NOT NULL, succeeded INTEGER NOT NULL DEFAULT 0,
            reinstalled INTEGER NOT NULL DEFAULT 0, report TEXT, PRIMARY KEY (machine, id)) STRICT;
         CREATE TABLE layouts (
            machine TEXT NOT NULL, allocation TEXT NOT NULL, layout TEXT NOT NULL,
            PRIMARY KEY (machine, allocation)) STRICT;
         CREATE TABLE events (id INTEGER PRIMARY KEY, machine TEXT NOT NULL, time TEXT NOT NULL, event TEXT NOT NULL) STRICT;
         CREATE TABLE digests (
            path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime TEXT NOT NULL, digest TEXT NOT NULL) STRICT;
         INSERT INTO allocations VALUES ('m', 'a', '2026-01-01T00:00:00Z', 1, 1, '{}');
         INSERT INTO layouts VALUES ('m', 'a', 'default');",
    )
    .unwrap();
    drop(old);
    for _ in 0..2 {
        let state = open(&dir);
        let now = install_state(&state, "m");
        assert_eq!((now.created.as_str(), now.succeeded), ("2026-01-01T00:00:00Z", true));
        assert_eq!((now.layout_id.as_deref(), now.layout, now.image), (Some("default"), None, None));
        assert_eq!(wait(state.decide_next_boot("m", FileAllocation::Allocated("a".to_owned()))).next, BootTarget::Disk);
    }
    // The first reinstall in the upgraded database works like any other.
    let state = open(&dir);
    let OrderOutcome::Placed { order, .. } =
        wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None))
    else {
        panic!()
    };
    assert!(matches!(
        wait(state.decide_next_boot("m", FileAllocation::Allocated("a".to_owned()))).next,
        BootTarget::Attempt(_)
    ));
    let layout = serde_json::json!({"id": "default", "disks": []});
    wait(state.record_served(
        "m",
        "a",
        ServedInstall {
            layout_id: "default",
            layout: &layout,
            image: "i1",
            order: "",
            fields: &InstalledAllocation::default(),
        },
    ));
    let refused = wait(state.handle_report("m", "a", BOOT, &report(true, &order.id)));
    assert_eq!(refused.unproven, Some(UnprovenReason::NotBegun));
    assert!(matches!(wait(state.start_order("m", "a", &order.id, start())), OrderStart::Permitted(..)));
    wait(state.handle_report("m", "a", BOOT, &report(true, &order.id)));
    let now = install_state(&state, "m");
    assert_eq!((now.image.as_deref(), now.layout, now.order), (Some("i1"), Some(layout), None));
    // A first installation works as well.
    install(&state, "n");
    assert!(install_state(&state, "n").succeeded);
}

/// Earlier versions did not record the inode, so a file that replaced another one could have the digest of that file.
#[test]
fn digest_of_an_earlier_version_is_computed_again() {
    if test_engine::is_postgres("the table of an earlier version is created in a file") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let old = rusqlite::Connection::open(dir.path().join("state.sqlite")).unwrap();
    old.execute_batch(
        "CREATE TABLE digests (
            path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime TEXT NOT NULL, digest TEXT NOT NULL) STRICT;
         INSERT INTO digests VALUES ('/i', 3, '1', 'sha256:00');",
    )
    .unwrap();
    drop(old);
    let state = open(&dir);
    let (path, mtime, inode) = ("/i".to_owned(), "1".to_owned(), "7 1".to_owned());
    let stamp = FileStamp { path, size: 3, mtime, inode, device: 2 };
    assert_eq!(state.find_digest(&stamp).unwrap(), None);
    state.store_digest(&stamp, "sha256:01").unwrap();
    assert_eq!(state.find_digest(&stamp).unwrap().as_deref(), Some("sha256:01"));
}

/// The other file has the same path, size and modification time, as in a Nix store or after `cp -p`.
#[test]
fn stamp_of_a_replaced_file_differs() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("a.img"), dir.path().join("b.img"));
    for (path, content) in [(&path, "one"), (&other, "two")] {
        fs::write(path, content).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    }
    let before = image_digest_cache::file_stamp(&path).unwrap();
    fs::rename(&other, &path).unwrap();
    let after = image_digest_cache::file_stamp(&path).unwrap();
    assert_eq!((&after.path, after.size, &after.mtime), (&before.path, before.size, &before.mtime));
    assert_ne!(after, before);
}

#[test]
fn file_that_is_not_a_database_is_refused() {
    if test_engine::is_postgres("PostgreSQL has no database file in the directory") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.sqlite");
    fs::write(&path, "not a database, but long enough to be read as one, and then some more of it").unwrap();
    let error = ServerState::open(&path, Duration::ZERO).err().unwrap().to_string();
    assert!(error.contains("open the database") && error.contains("not a database"), "{error}");
    assert!(error.contains("restore an undamaged backup with `drophammer serve restore`"), "{error}");
}

/// Tests databases with zeroed or altered sectors, and truncated databases. Each one is either refused, or still
/// contains the installation.
#[test]
fn damaged_database_never_reinstalls_installed_machines() {
    if test_engine::is_postgres("PostgreSQL has no database file in the directory") {
        return;
    }
    const SECTOR: usize = 512;
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    RUNTIME.with(|runtime| runtime.block_on(state.close()));
    let whole = fs::read(dir.path().join("state.sqlite")).unwrap();
    let mut random = fastrand::Rng::with_seed(13);
    let sectors = whole.len() / SECTOR;
    let zeroed = (0..sectors).map(|sector| {
        let mut bytes = whole.clone();
        bytes[sector * SECTOR..(sector + 1) * SECTOR].fill(0);
        (format!("sector {sector} is zero"), bytes)
    });
    let scrambled = (0..sectors).step_by(3).map(|sector| {
        let mut bytes = whole.clone();
        bytes[sector * SECTOR..(sector + 1) * SECTOR].fill_with(|| random.u8(..));
        (format!("sector {sector} is something else"), bytes)
    });
    let cut = (1..sectors)
        .step_by(5)
        .map(|sector| (format!("it ends at sector {sector}"), whole[..sector * SECTOR].to_vec()));
    let (mut refused, mut known) = (0, 0);
    for (damage, bytes) in zeroed.chain(scrambled).chain(cut) {
        let other = copy(&dir);
        fs::write(other.path().join("state.sqlite"), bytes).unwrap();
        let Ok(state) = ServerState::open(&other.path().join("state.sqlite"), Duration::ZERO) else {
            refused += 1;
            continue;
        };
        let next = state.decide_next_boot("m", FileAllocation::Allocated("a".to_owned()));
        match RUNTIME.with(|runtime| runtime.block_on(next)) {
            Ok(handed) => assert_eq!(handed.next, BootTarget::Disk, "{damage}"),
            Err(_) => refused += 1,
        }
        known += 1;
    }
    assert!(refused > 20 && known > 20, "{refused} {known}");
}

#[test]
fn file_with_newer_schema_is_refused() {
    if test_engine::is_postgres("the test changes the version in a SQLite file") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.sqlite");
    let set_version = |version: i64| {
        let file = rusqlite::Connection::open(&path).unwrap();
        file.pragma_update(None, "user_version", version).unwrap();
    };
    install(&open(&dir), "m");
    set_version(99);
    let expected = "the database has schema version 99, but this program supports versions up to";
    for refused in [
        ServerState::open(&path, Duration::ZERO).map(drop),
        crate::backup::copy_database(&path, &dir.path().join("copy.sqlite")).map(drop),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("state.sqlite"), "{error}");
    }
    // Versions up to now have not recorded a version in the file.
    set_version(0);
    for _ in 0..2 {
        assert!(install_state(&open(&dir), "m").succeeded);
    }
    let file = rusqlite::Connection::open(&path).unwrap();
    let version: i64 = file.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert!(version > 0);
}
