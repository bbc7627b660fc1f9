use super::*;
use ::oidc::testing::{CLIENT, TestProvider};
use serde_json::json;

fn info(provider: &TestProvider) -> OidcLoginInfo {
    OidcLoginInfo {
        available: true,
        name: Some("Lab ID".to_owned()),
        client_id: Some(CLIENT.to_owned()),
        token_endpoint: Some(format!("{}/token", provider.issuer())),
        ..OidcLoginInfo::default()
    }
}

fn authorization(expires_in: u64) -> DeviceAuthorization {
    DeviceAuthorization {
        device_code: SecretText::new("device"),
        user_code: "WDJB-MJHT".to_owned(),
        verification_uri: "https://id.example.org/device".to_owned(),
        verification_uri_complete: Some("https://id.example.org/device?user_code=WDJB-MJHT".to_owned()),
        expires_in,
        interval: Some(1),
    }
}

fn poll(provider: &TestProvider, expires_in: u64) -> Result<SecretText> {
    let (info, client) = (info(provider), http::new_login_client().unwrap());
    let endpoint = info.token_endpoint.clone().unwrap();
    poll_token(&client, &endpoint, CLIENT, &authorization(expires_in), &info)
}

#[test]
fn provider_is_polled_until_login_completes() {
    let provider = TestProvider::start();
    provider.behavior().polls = vec![json!({"error": "authorization_pending"}); 2];
    assert!(!poll(&provider, 60).unwrap().is_empty());
    assert_eq!(provider.requests("/token").len(), 3);
}

#[test]
fn slow_down_increases_the_pause() {
    let provider = TestProvider::start();
    provider.behavior().polls = vec![json!({"error": "slow_down"})];
    let began = Instant::now();
    poll(&provider, 60).unwrap();
    assert!(began.elapsed() >= DEFAULT_POLL_INTERVAL + Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn refused_and_expired_logins_end_the_polls() {
    for (poll_response, expires_in, expected) in [
        (
            json!({"error": "access_denied", "error_description": "no\u{1b}[31m"}),
            60,
            "Lab ID refuses the login: access_denied: no",
        ),
        (json!({"error": "expired_token"}), 60, "the code has expired; run the command again"),
        (json!({"error": "authorization_pending"}), 2, "the code has expired"),
        (json!({}), 60, "Lab ID refuses the login: status 400"),
    ] {
        let provider = TestProvider::start();
        provider.behavior().polls = vec![poll_response; 5];
        let error = poll(&provider, expires_in).unwrap_err();
        assert_eq!(error.code(), ErrorCode::OidcProvider);
        let text = error.to_string();
        assert!(text.contains(expected) && !text.contains('\u{1b}'), "{text}");
    }
}

#[test]
fn the_texts_of_the_provider_cannot_change_the_terminal() {
    let text = describe_authorization(&authorization(600)).unwrap();
    assert!(
        text.starts_with(
            "Open https://id.example.org/device in a browser, and enter the code WDJB-MJHT within 10 min."
        )
    );
    let with = |change: fn(&mut DeviceAuthorization)| {
        let mut changed = authorization(600);
        change(&mut changed);
        describe_authorization(&changed).unwrap_err().to_string()
    };
    assert!(with(|one| one.user_code = "A\u{1b}[2J".to_owned()).contains("not permitted"));
    assert!(with(|one| one.user_code = String::new()).contains("not permitted"));
    assert!(with(|one| one.verification_uri = "http://id.example.org".to_owned()).contains("must begin with https://"));
    assert!(
        with(|one| one.verification_uri_complete = Some("javascript:x".to_owned())).contains("must begin with https")
    );
}

#[test]
fn a_server_without_the_device_flow_is_reported() {
    let provider = TestProvider::start();
    let connection = super::super::connection::ServerConnection {
        url: provider.issuer(),
        token: String::new(),
        token_origin: String::new(),
        context: None,
    };
    let server = OperatorClient::with_connection(connection).unwrap();
    let error = log_in_at_provider(&server, &info(&provider)).err().unwrap();
    assert!(error.to_string().contains("Lab ID does not support logins on the command line"), "{error}");
}
