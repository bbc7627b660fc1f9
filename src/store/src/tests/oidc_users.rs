//! Logins of users of an identity provider.

use super::*;
use crate::oidc_users::{LoginOutcome, LoginToken, ProviderLogin};
use crate::token_hash::hash_token;
use crate::user_tokens::TokenVerdict;
use crate::users::{IdentitySource, UserChange, UserOutcome, UserRole};

const FILE: TokenHash = [9; 32];

fn login(subject: &str, name: &str, mark: &str) -> ProviderLogin {
    ProviderLogin {
        issuer: "https://id.example.org".to_owned(),
        subject: subject.to_owned(),
        name: Some(name.to_owned()),
        access: Some((UserRole::Operator, vec!["blue".to_owned()])),
        token_name: "cli@laptop".to_owned(),
        validity: Duration::from_secs(3600),
        marks: vec![mark.to_owned()],
        expires: u64::try_from(time::OffsetDateTime::now_utc().unix_timestamp()).unwrap() + 300,
    }
}

fn accept(state: &ServerState, login: ProviderLogin) -> LoginToken {
    match wait(state.log_in_provider_user(login)) {
        LoginOutcome::LoggedIn(token) => *token,
        other => panic!("{other:?}"),
    }
}

fn refuse(state: &ServerState, login: ProviderLogin) -> String {
    match wait(state.log_in_provider_user(login)) {
        LoginOutcome::Refused { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

fn verify(state: &ServerState, token: &str) -> TokenVerdict {
    wait(state.verify_user_token(hash_token(token), FILE))
}

#[test]
fn a_login_adds_the_user_and_updates_its_role() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let first = accept(&state, login("s1", "ann", "1"));
    assert_eq!((first.identity.user.as_str(), first.identity.source), ("ann", IdentitySource::Oidc));
    assert_eq!(verify(&state, &first.secret), TokenVerdict::Valid(first.identity.clone()));
    // The name of the first login remains, and the role is that of the last login.
    let admin = ProviderLogin { access: Some((UserRole::Admin, Vec::new())), ..login("s1", "ann.b", "2") };
    let second = accept(&state, admin);
    assert_eq!((second.identity.user.as_str(), second.identity.role), ("ann", UserRole::Admin));
    assert_eq!(verify(&state, &first.secret), TokenVerdict::Unknown, "the new login replaces that of the same host");
    let user = wait(state.find_user("ann")).unwrap();
    let identity = user.provider_identity.unwrap();
    assert_eq!((identity.subject.as_str(), user.source), ("s1", IdentitySource::Oidc));
    wait(state.end_provider_login(second.hash));
    assert_eq!(verify(&state, &second.secret), TokenVerdict::Unknown);
}

#[test]
fn an_id_token_is_accepted_once() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    accept(&state, login("s1", "ann", "1"));
    for replayed in [login("s1", "ann", "1"), login("s2", "bob", "1")] {
        assert_eq!(refuse(&state, replayed), "the ID token was used before; log in again");
    }
    let mut several = login("s1", "ann", "2");
    several.marks.push("1".to_owned());
    assert!(refuse(&state, several).contains("used before"));
    assert!(wait(state.find_user("bob")).is_none());
    // Hashes of expired tokens are deleted.
    accept(&state, ProviderLogin { expires: 1, ..login("s1", "ann", "3") });
    accept(&state, login("s1", "ann", "4"));
    let count = "SELECT COUNT(*) FROM oidc_used WHERE mark = '3'";
    assert_eq!(wait(state.run_job(move |db| db.query_row(count, [], |row| row.get::<_, i64>(0)))), 0);
}

#[test]
fn login_cannot_take_over_existing_users() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    assert!(matches!(wait(state.add_user("ann", UserRole::Viewer, Vec::new())), UserOutcome::Done(_)));
    accept(&state, login("s2", "bob", "1"));
    let foreign = ProviderLogin { issuer: "https://other".to_owned(), ..login("s2", "bob", "2") };
    for (login, expected) in [
        (login("s1", "ann", "3"), "the name ann belongs to another user"),
        (login("s1", "operator", "4"), "the name operator belongs to another user"),
        (login("s9", "bob", "5"), "the name bob belongs to another user"),
        (foreign, "the name bob belongs to another user"),
        (login("s1", "a b", "6"), "\"a b\" is not a valid name"),
        (ProviderLogin { name: None, ..login("s1", "", "7") }, "contains no name"),
    ] {
        let why = refuse(&state, login);
        assert!(why.contains(expected), "{why}");
    }
    let ann = wait(state.find_user("ann")).unwrap();
    assert_eq!((ann.source, ann.role), (IdentitySource::Token, UserRole::Viewer));
}

#[test]
fn disabled_users_and_users_without_a_role_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let token = accept(&state, login("s1", "ann", "1"));
    let disable = |is| UserChange { disabled: Some(is), ..UserChange::default() };
    assert!(matches!(wait(state.change_user("ann", disable(true))), UserOutcome::Done(_)));
    assert!(matches!(verify(&state, &token.secret), TokenVerdict::Refused { reason: "the user is disabled", .. }));
    assert_eq!(refuse(&state, login("s1", "ann", "2")), "the user is disabled");
    assert!(matches!(wait(state.change_user("ann", disable(false))), UserOutcome::Done(_)));
    assert!(matches!(verify(&state, &token.secret), TokenVerdict::Valid(_)));
    let without = |mark| ProviderLogin { access: None, ..login("s1", "ann", mark) };
    assert!(refuse(&state, without("3")).contains("no group of the user has a role"));
    assert_eq!(verify(&state, &token.secret), TokenVerdict::Unknown, "earlier logins also end");
    let unknown = ProviderLogin { access: None, ..login("s5", "eve", "4") };
    assert!(refuse(&state, unknown).contains("no group") && wait(state.find_user("eve")).is_none());
}

#[test]
fn administrator_cannot_change_role_of_oidc_user() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    accept(&state, login("s1", "ann", "1"));
    let promoted = UserChange { role: Some(UserRole::Admin), projects: Some(Vec::new()), ..UserChange::default() };
    for change in [promoted, UserChange { projects: Some(vec!["red".to_owned()]), ..UserChange::default() }] {
        let outcome = wait(state.change_user("ann", change));
        assert!(matches!(&outcome, UserOutcome::Refused(why) if why.contains("role of its groups")), "{outcome:?}");
    }
    let outcome = wait(state.create_user_token("ann", "long", None));
    assert!(matches!(&outcome, UserOutcome::Refused(why) if why.contains("logging in")), "{outcome:?}");
    assert!(matches!(wait(state.remove_user("ann")), UserOutcome::Done(_)));
    // After the user was removed, a login with the same identity adds a new user.
    assert_eq!(accept(&state, login("s1", "ann.b", "2")).identity.user, "ann.b");
}

#[test]
fn tokens_of_logins_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let logins: Vec<LoginToken> = (0..20)
        .map(|number| {
            let (mark, token_name) = (number.to_string(), format!("page@{number}"));
            accept(&state, ProviderLogin { token_name, ..login("s1", "ann", &mark) })
        })
        .collect();
    assert_eq!(wait(state.list_user_tokens("ann")).len(), 16);
    assert_eq!(verify(&state, &logins[3].secret), TokenVerdict::Unknown);
    assert!(matches!(verify(&state, &logins[19].secret), TokenVerdict::Valid(_)));
    accept(&state, ProviderLogin { validity: Duration::ZERO, token_name: "x".to_owned(), ..login("s1", "ann", "a") });
    accept(&state, ProviderLogin { token_name: "y".to_owned(), ..login("s1", "ann", "b") });
    let names: Vec<String> = wait(state.list_user_tokens("ann")).into_iter().map(|token| token.name).collect();
    assert!(!names.contains(&"x".to_owned()), "expired tokens are deleted: {names:?}");
}
