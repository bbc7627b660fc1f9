//! Users, tokens and the audit log in the database, including a database of an earlier version.

use super::*;
use crate::audit::{AuditDurability, AuditEntry, AuditOutcome, AuditQuery, AuditRetention};
use crate::token_hash::hash_token;
use crate::user_tokens::TokenVerdict;
use crate::users::{Identity, OPERATOR_TOKEN_USER, UserChange, UserOutcome, UserRole};

const FILE: TokenHash = [9; 32];

fn verify(state: &ServerState, token: &str) -> TokenVerdict {
    wait(state.verify_user_token(hash_token(token), FILE))
}

fn add(state: &ServerState, name: &str, role: UserRole) -> String {
    assert!(matches!(wait(state.add_user(name, role, Vec::new())), UserOutcome::Done(_)));
    match wait(state.create_user_token(name, "t", Some(30))) {
        UserOutcome::Done((token, _)) => token,
        other => panic!("{other:?}"),
    }
}

fn entry(user: &str) -> AuditEntry {
    AuditEntry {
        id: 0,
        time: now(),
        user: user.to_owned(),
        token: "t".to_owned(),
        role: "admin".to_owned(),
        address: "10.0.0.1".to_owned(),
        request: "r".to_owned(),
        method: "POST".to_owned(),
        path: "/v1/x".to_owned(),
        action: "POST /v1/x".to_owned(),
        object: String::new(),
        outcome: AuditOutcome::Started,
        status: None,
        committed: false,
        changes: Vec::new(),
        reason: String::new(),
    }
}

/// A full disk must not lock out users, whose requests may be necessary to free space.
#[test]
fn a_token_whose_use_cannot_be_recorded_is_accepted() {
    if test_engine::is_postgres("the trigger is written for SQLite") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let token = add(&state, "ann", UserRole::Operator);
    let trigger = "CREATE TRIGGER full BEFORE UPDATE ON user_tokens
        BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END";
    wait(state.run_durably(move |transaction| transaction.execute(trigger, [])));
    for _ in 0..2 {
        assert!(matches!(verify(&state, &token), TokenVerdict::Valid(identity) if identity.user == "ann"));
    }
    assert_eq!(wait(state.list_user_tokens("ann"))[0].last_used, None);
    assert_eq!(verify(&state, "dh_other"), TokenVerdict::Unknown);
}

#[test]
fn tokens_are_stored_as_hashes_and_survive_a_restart() {
    if test_engine::is_postgres("PostgreSQL has no database file in the directory") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let token = add(&state, "ann", UserRole::Operator);
    let TokenVerdict::Valid(identity) = verify(&state, &token) else { panic!() };
    assert_eq!((identity.user.as_str(), identity.role, identity.token.as_str()), ("ann", UserRole::Operator, "t"));
    assert!(wait(state.list_user_tokens("ann"))[0].last_used.is_some());
    assert_eq!(verify(&state, "dh_other"), TokenVerdict::Unknown);
    assert_eq!(wait(state.verify_user_token(FILE, FILE)), TokenVerdict::Valid(Identity::from_token_file()));
    drop(state);
    let copy = copy(&dir);
    let bytes = fs::read(copy.path().join("state.sqlite")).unwrap();
    assert!(!bytes.windows(token.len()).any(|part| part == token.as_bytes()), "the file contains the token");
    assert!(matches!(verify(&open(&copy), &token), TokenVerdict::Valid(_)));
}

#[test]
fn token_file_is_enabled_when_the_last_token_expires() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let token = add(&state, "ann", UserRole::Admin);
    let disabled = UserChange { disabled: Some(true), ..UserChange::default() };
    assert!(matches!(wait(state.change_user(OPERATOR_TOKEN_USER, disabled.clone())), UserOutcome::Done(_)));
    assert!(matches!(wait(state.verify_user_token(FILE, FILE)), TokenVerdict::Refused { .. }));
    assert!(matches!(wait(state.change_user("ann", disabled)), UserOutcome::Refused(_)));
    let expire = "UPDATE user_tokens SET expires = '2020-01-01T00:00:00Z'";
    wait(state.run_deferred(move |transaction| transaction.execute(expire, [])));
    let refused =
        TokenVerdict::Refused { user: "ann".to_owned(), token: "t".to_owned(), reason: "the token has expired" };
    assert_eq!(verify(&state, &token), refused);
    assert!(
        matches!(wait(state.verify_user_token(FILE, FILE)), TokenVerdict::Valid(_)),
        "no administrator is locked out"
    );
    assert!(matches!(wait(state.create_user_token("ann", "t", None)), UserOutcome::Done(_)), "the name can be reused");
}

#[test]
fn entries_are_completed_once_and_deleted_only_by_the_retention() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let ids: Vec<i64> =
        (0..10).map(|_| wait(state.append_audit(entry("ann"), AuditDurability::BeforeChange))).collect();
    let end = |object: &str| (ids[0], object.to_owned());
    let completed = wait(state.complete_audit(end("a_1, b"), 409, Vec::new(), "because".to_owned())).unwrap();
    assert_eq!(completed.objects().collect::<Vec<_>>(), ["a_1", "b"]);
    for (machine, count) in [("a_1", 1), ("b", 1), ("a_1, b", 1), ("ab1", 0), ("a%", 0), ("", 10)] {
        let query = AuditQuery { machine: machine.to_owned(), ..AuditQuery::default() };
        assert_eq!(wait(state.list_audit(query)).len(), count, "{machine:?}");
    }
    assert_eq!(
        (completed.outcome, completed.status, completed.reason.as_str()),
        (AuditOutcome::Refused, Some(409), "because")
    );
    assert_eq!(wait(state.complete_audit(end(""), 200, Vec::new(), String::new())), None, "an entry is completed once");
    let completed = wait(state.complete_audit((ids[1], String::new()), 200, Vec::new(), String::new())).unwrap();
    assert_eq!(completed.object, entry("ann").object);
    let all = || wait(state.list_audit(AuditQuery::default()));
    assert_eq!(all().len(), 10);
    wait(state.trim_audit(AuditRetention { days: 1, entries: 4 }));
    assert_eq!(all().iter().map(|entry| entry.id).collect::<Vec<_>>(), [ids[9], ids[8], ids[7], ids[6]]);
    let old = AuditEntry { time: "2020-01-01T00:00:00Z".to_owned(), ..entry("bob") };
    wait(state.append_audit(old, AuditDurability::BeforeChange));
    assert_eq!(all().len(), 5);
    wait(state.trim_audit(AuditRetention { days: 1, entries: 1000 }));
    assert_eq!(all().len(), 4);
}

#[test]
fn transaction_marks_only_the_audit_entry_of_its_request() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let id = wait(state.append_audit(entry("ann"), AuditDurability::BeforeChange));
    assert_eq!(id, 1);
    let hooked = state.clone().with_hooks(StoreHooks { current_audit_entry: || Some(1), ..StoreHooks::default() });
    let committed = || wait(state.list_audit(AuditQuery::default()))[0].committed;
    assert!(matches!(wait(hooked.add_user("a b", UserRole::Viewer, Vec::new())), UserOutcome::Refused(_)));
    wait(state.add_user("other", UserRole::Viewer, Vec::new()));
    assert!(!committed(), "nothing was changed by this request");
    wait(hooked.add_user("own", UserRole::Viewer, Vec::new()));
    assert!(committed());
}

/// Returns the audit log, and the number of users in the database, that remain after a power failure. A power failure
/// loses the unsynced part of SQLite's log.
fn after_power_failure(dir: &TempDir) -> (Vec<AuditEntry>, usize) {
    let copy = tempfile::tempdir().unwrap();
    for name in ["state.sqlite", "state.id"] {
        fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    let state = open(&copy);
    (wait(state.list_audit(AuditQuery::default())), wait(state.list_users()).len())
}

#[test]
fn an_entry_is_on_disk_before_its_change_or_together_with_it() {
    if test_engine::is_postgres("PostgreSQL has no database file in the directory") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir).with_hooks(StoreHooks { current_audit_entry: || Some(1), ..StoreHooks::default() });
    let users = wait(state.list_users()).len();
    let id = wait(state.append_audit(entry("ann"), AuditDurability::WithChange));
    assert_eq!((id, after_power_failure(&dir)), (1, (Vec::new(), users)));
    wait(state.add_user("own", UserRole::Viewer, Vec::new()));
    let (entries, with_change) = after_power_failure(&dir);
    assert_eq!((entries.len(), entries[0].committed, with_change), (1, true, users + 1));
}
