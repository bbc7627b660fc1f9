//! Login sessions that several servers share.

use super::postgres::{new_database, open_at};
use super::*;
use crate::login_sessions::{SessionLimits, SharedSession};

const LIMITS: SessionLimits = SessionLimits { per_user: 2, lifetime: Duration::from_secs(3600) };

fn session(user: &str) -> SharedSession {
    SharedSession { user: user.to_owned(), token: [7; 32], form: format!("form of {user}") }
}

fn start(state: &ServerState, number: u8, user: &str) {
    wait(state.store_login_session([number; 32], session(user), LIMITS));
}

fn find(state: &ServerState, number: u8) -> Option<(SharedSession, Duration)> {
    wait(state.find_login_session([number; 32], LIMITS.lifetime))
}

/// Makes a session older by `seconds`.
fn age(state: &ServerState, number: u8, seconds: i64) {
    let update = "UPDATE login_sessions SET created = created - ?2 WHERE hash = ?1";
    let changed =
        wait(state.run_durably(move |transaction| transaction.execute(update, params![[number; 32], seconds])));
    assert_eq!(changed, 1);
}

#[test]
fn sessions_are_valid_at_all_servers_until_they_end() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [a, b] = dirs.each_ref().map(|dir| open_at(&address, dir));
    start(&a, 1, "ann");
    age(&a, 1, 100);
    for state in [&a, &b] {
        let (found, age) = find(state, 1).unwrap();
        assert_eq!(found, session("ann"));
        assert!((100..160).contains(&age.as_secs()), "{age:?}");
    }
    assert_eq!(find(&b, 2), None);
    start(&b, 2, "ann");
    start(&b, 3, "bob");
    // A further login ends the oldest session of the same user.
    start(&b, 4, "ann");
    assert_eq!([1, 2, 3, 4].map(|number| find(&a, number).is_some()), [false, true, true, true]);
    wait(b.delete_login_session([2; 32]));
    assert_eq!(find(&a, 2), None);
    age(&a, 3, 3601);
    assert_eq!(find(&b, 3), None, "the session has expired");
    start(&a, 5, "ann");
    let count = wait(a.run_job(|connection| {
        connection.query_row("SELECT count(*) FROM login_sessions", [], |row| row.get::<_, i64>(0))
    }));
    assert_eq!(count, 2, "expired sessions are deleted");
    wait(a.delete_login_sessions_of("ann"));
    assert_eq!([4, 5].map(|number| find(&b, number)), [None, None]);
}
