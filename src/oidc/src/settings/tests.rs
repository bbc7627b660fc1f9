use super::*;

const GOOD: &str = "issuer: https://id.example.org/realms/lab
client_id: drophammer
roles:
  - {group: hall-admins, role: admin}
  - {group: shift, role: operator, projects: [blue]}
";

fn parse(text: &str) -> std::result::Result<OidcSettings, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("secret"), "hunter2\n").unwrap();
    std::fs::write(dir.path().join("empty"), "\n").unwrap();
    std::fs::copy(testing::http::tls_file("ca.pem"), dir.path().join("ca.pem")).unwrap();
    OidcSettings::parse_text(text, dir.path())
}

#[test]
fn omitted_settings_have_defaults() {
    let settings = parse(GOOD).unwrap();
    assert_eq!((settings.label.as_str(), settings.cli_client_id.as_str()), ("id.example.org", "drophammer"));
    assert_eq!(settings.user_claims, USER_CLAIMS);
    assert_eq!(settings.scope(), "openid profile email groups");
    assert_eq!(settings.validity, Duration::from_secs(12 * 3600));
    assert!(settings.client_secret.is_none() && settings.authorities.is_none());
    let shift = settings.assign_role(&["shift".to_owned()]);
    assert_eq!(shift, Some((UserRole::Operator, vec!["blue".to_owned()])));
}

#[test]
fn secrets_and_certificates_are_read_and_not_printed() {
    let more = "client_secret_file: secret\nca_file: ca.pem\nscopes: []\nuser_claim: upn\nsession_hours: 1\n\
                redirect_url: https://install.rack/oidc/callback\ncli_client_id: cli\nname: Lab\n";
    let settings = parse(&format!("{GOOD}{more}")).unwrap();
    assert_eq!(settings.client_secret.as_ref().map(SecretText::reveal), Some("hunter2"));
    assert_eq!((settings.scope().as_str(), settings.user_claims[0].as_str()), ("openid", "upn"));
    assert!(settings.authorities.is_some() && settings.readable_secrets.len() == 1);
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[test]
fn an_invalid_file_is_refused_with_position_and_remedy() {
    for (from, to, expected) in [
        (
            "https://id.example.org/realms/lab",
            "http://id.example.org",
            "1:9: issuer: \"http://id.example.org\" must begin with https://",
        ),
        ("https://id.example.org/realms/lab", "id.example.org", "1:9: issuer: \"id.example.org\" is not a URL"),
        ("/realms/lab", "?x=1", "contains a query or a fragment"),
        ("issuer: https", "issuers: https", "unknown field \"issuers\"; did you mean \"issuer\"?"),
        ("client_id: drophammer", "client_id: ''", "2:12: client_id: \"\" is empty"),
        ("client_id: drophammer\n", "", "client_id"),
        ("role: admin", "role: root", "role: \"root\" is not a role; specify viewer, operator or admin"),
        ("role: operator", "role: admin", "an admin cannot be restricted"),
        ("group: shift", "group: hall-admins", "group: \"hall-admins\" is empty, or is listed twice"),
        ("[blue]", "[b l]", "projects: \"b l\" is not a valid name"),
        ("roles:", "session_hours: 13\nroles:", "3:16: session_hours: 13 is not supported; specify 1 to 12"),
        ("roles:", "session_hours: 0\nroles:", "specify 1 to 12"),
        ("roles:", "scopes: ['a b']\nroles:", "scopes: \"a b\""),
        ("roles:", "client_secret_file: none\nroles:", "client_secret_file: "),
        ("roles:", "client_secret_file: empty\nroles:", "is empty; write the provider's client secret"),
        ("roles:", "ca_file: secret\nroles:", "contains no certificate in PEM format"),
        ("roles:", "redirect_url: https://h/x\nroles:", "must end with /oidc/callback"),
        ("roles:", "redirect_url: http://h/oidc/callback\nroles:", "must begin with https://"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let why = parse(&text).unwrap_err();
        assert!(why.contains(expected), "{text}\n{why}\nexpected: {expected}");
    }
    let why = parse("issuer: https://h\nclient_id: c\nroles: []\n").unwrap_err();
    assert!(why.contains("no group has a role"), "{why}");
}

#[test]
fn a_directory_without_the_file_has_no_provider() {
    let dir = tempfile::tempdir().unwrap();
    assert!(OidcSettings::read_file(dir.path()).unwrap().is_none());
    std::fs::write(dir.path().join(FILE), "issuer: 1").unwrap();
    let error = OidcSettings::read_file(dir.path()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::OidcSettings);
    assert!(error.to_string().starts_with(&format!("{}:", dir.path().join(FILE).display())), "{error}");
}
