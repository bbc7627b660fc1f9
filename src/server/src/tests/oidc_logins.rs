//! Logins with OpenID Connect at a provider on the loopback interface: on the web page, and with an ID token.

use super::*;
use oidc::testing::{SigningKey, TestProvider};
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;

fn with_provider(provider: &TestProvider) -> TempDir {
    let dir = directory();
    std::fs::write(dir.path().join("oidc.yaml"), provider.settings_file()).unwrap();
    dir
}

/// Response of a page: status, location, values of the cookies, and text.
struct PageAnswer {
    status: u16,
    location: String,
    cookies: Vec<String>,
    text: String,
}

impl Running {
    async fn browse(&self, path: &str, cookie: &str) -> PageAnswer {
        let client = reqwest::Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
        let request = client.get(format!("http://{}{path}", self.address)).header("Accept", "text/html");
        let response = request.header(COOKIE, cookie).send().await.unwrap();
        let text = |value: &reqwest::header::HeaderValue| value.to_str().unwrap().to_owned();
        let location = response.headers().get(LOCATION).map(text).unwrap_or_default();
        let cookies = response.headers().get_all(SET_COOKIE).iter().map(text).collect();
        PageAnswer { status: response.status().as_u16(), location, cookies, text: response.text().await.unwrap() }
    }

    /// Logs in at the provider. Returns the path and query of the callback, and the cookie that belongs to this login.
    async fn start_login(&self, provider: &TestProvider) -> (String, String) {
        let started = self.browse("/oidc/login", "").await;
        assert_eq!(started.status, 303, "{}", started.text);
        for word in ["; HttpOnly", "; SameSite=Lax", "; Path=/oidc", "; Max-Age=600"] {
            assert!(started.cookies[0].contains(word), "{:?}", started.cookies);
        }
        let cookie = started.cookies[0].split(';').next().unwrap().to_owned();
        (format!("/oidc/callback?{}", provider.authorize(&started.location)), cookie)
    }

    /// Logs in at the page.
    async fn log_in(&self, provider: &TestProvider) -> PageAnswer {
        let (callback, cookie) = self.start_login(provider).await;
        self.browse(&callback, &cookie).await
    }

    async fn exchange(&self, token: &str) -> Answer {
        self.ask("POST", "/v1/oidc/token", &[], &json!({"id_token": token, "host": "laptop"}).to_string()).await
    }

    async fn oidc_audit(&self) -> Vec<Value> {
        self.v1("GET", "/v1/audit?action=oidc", &Value::Null).await.json().as_array().unwrap().clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_logs_in_at_the_page() {
    let provider = TestProvider::start();
    let server = Running::start_in(with_provider(&provider)).await;
    assert!(server.browse("/login", "").await.text.contains("Log in with Lab ID"));
    let (callback, cookie) = server.start_login(&provider).await;
    let answer = server.browse(&callback, &cookie).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.text.contains("Logged in as ann") && answer.text.contains("0;url=/"), "{}", answer.text);
    let session = answer.cookies[0].split(';').next().unwrap().to_owned();
    assert!(answer.cookies[0].contains("SameSite=Strict") && answer.cookies[1].contains("Max-Age=0"));
    let list = server.browse("/", &session).await;
    assert!(list.status == 200 && list.text.contains("ann"), "{}", list.text);
    let user = server.v1("GET", "/v1/users/ann", &Value::Null).await.json();
    assert_eq!(
        (&user["source"], &user["role"], &user["projects"]),
        (&json!("oidc"), &json!("operator"), &json!(["blue"]))
    );
    assert_eq!(user["provider_identity"]["subject"], "subject-1");
    assert!(
        user["tokens"][0]["name"].as_str().unwrap().starts_with("page@") && user["tokens"][0]["expires"].is_string()
    );
    // The callback can be used once, and only by the browser that has started the login.
    assert_eq!(server.browse(&callback, &cookie).await.status, 403);
    assert_eq!(server.browse(&callback, "").await.status, 403);
    let entries = server.oidc_audit().await;
    let done = entries.iter().find(|entry| entry["outcome"] == "done").unwrap();
    assert_eq!(
        (&done["user"], &done["role"], &done["action"]),
        (&json!("ann"), &json!("operator"), &json!("GET /oidc/callback"))
    );
    assert!(
        entries.iter().any(|entry| entry["outcome"] == "refused" && entry["reason"].as_str().unwrap().contains("code"))
    );
    // An administrator disables the user, and the sessions of the user end.
    assert_eq!(server.v1("POST", "/v1/users/ann", &json!({"disabled": true})).await.status, 200);
    assert_eq!(server.browse("/", &session).await.location, "/login");
    let refused = server.log_in(&provider).await;
    assert!(
        refused.status == 403 && refused.text.contains("user ann cannot log in: the user is disabled"),
        "{}",
        refused.text
    );
    let last = &server.oidc_audit().await[0];
    assert_eq!((&last["user"], &last["outcome"]), (&json!("ann"), &json!("refused")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_logins_at_the_page_name_the_reason() {
    let provider = TestProvider::start();
    let server = Running::start_in(with_provider(&provider)).await;
    server.user("local", "admin", &[]).await;
    for (claims, expected) in [
        (json!({"groups": ["others"]}), "no group of the user has a role"),
        (json!({"groups": null}), "no group of the user has a role"),
        (json!({"preferred_username": "local", "groups": ["admins"]}), "the name local belongs to another user"),
        (json!({"preferred_username": "operator"}), "the name operator belongs to another user"),
        (json!({"nonce": "other"}), "the token's nonce is not that of this login"),
        (json!({"aud": "grafana"}), "the token was issued to another client"),
        (json!({"exp": 1}), "the token has expired"),
    ] {
        provider.behavior().claims = claims;
        let answer = server.log_in(&provider).await;
        assert!(answer.status == 403 && answer.text.contains(expected), "{expected}: {}", answer.text);
        assert!(answer.cookies.iter().all(|cookie| cookie.starts_with("drophammer_oidc=;")), "{:?}", answer.cookies);
    }
    let (callback, cookie) = server.start_login(&provider).await;
    let (_, other) = server.start_login(&provider).await;
    assert!(server.browse(&callback, &other).await.text.contains("belongs to another login"));
    assert!(server.browse("/oidc/callback", &cookie).await.text.contains("belongs to another login"));
    let users = server.v1("GET", "/v1/users", &Value::Null).await.json();
    assert_eq!(users.as_array().unwrap().len(), 2, "no refused login adds a user: {users}");
    let local = users.as_array().unwrap().iter().find(|user| user["name"] == "local").unwrap();
    assert_eq!(local["source"], "token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_token_is_exchanged_once() {
    let provider = TestProvider::start();
    let server = Running::start_in(with_provider(&provider)).await;
    let info = server.ask("GET", "/v1/oidc", &[], "").await;
    assert_eq!((info.status, &info.json()["available"]), (200, &json!(true)));
    assert_eq!(info.json()["device_authorization_endpoint"], format!("{}/device", provider.issuer()));
    let token = provider.issue_token(None);
    let exchanged = server.exchange(&token).await;
    assert_eq!(exchanged.status, 201, "{}", exchanged.text());
    let own = exchanged.json()["token"].as_str().unwrap().to_owned();
    let me = server.call(&own, "GET", "/v1/whoami", &Value::Null).await.json();
    assert_eq!((&me["user"], &me["source"], &me["token"]), (&json!("ann"), &json!("oidc"), &json!("cli@laptop")));
    let replayed = server.exchange(&token).await;
    assert!(replayed.status == 403 && replayed.text().contains("used before"), "{}", replayed.text());
    assert_eq!(replayed.json()["error_code"], "DH-731");
    // The role follows the user's groups at the next login. The API refuses to change the role, or to add a token.
    provider.behavior().claims = json!({"groups": ["admins"]});
    assert_eq!(server.exchange(&provider.issue_token(None)).await.json()["identity"]["role"], "admin");
    assert_eq!(server.v1("POST", "/v1/users/ann", &json!({"role": "viewer"})).await.status, 409);
    assert_eq!(server.v1("POST", "/v1/users/ann/tokens", &json!({"name": "long"})).await.status, 409);
    provider.behavior().claims = json!({"groups": []});
    assert_eq!(server.exchange(&provider.issue_token(None)).await.status, 403);
    assert!(server.v1("GET", "/v1/users/ann", &Value::Null).await.json()["tokens"].as_array().unwrap().is_empty());
    let text = server.v1("GET", "/v1/audit", &Value::Null).await.text();
    assert!(!text.contains(&own) && !text.contains(&token) && !server.heard.text().contains(&token));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_id_tokens_are_refused_and_recorded() {
    let provider = TestProvider::start();
    let server = Running::start_in(with_provider(&provider)).await;
    let good = provider.issue_token(None);
    let unsigned = format!("{}.", good.rsplit_once('.').unwrap().0);
    let mut all = vec![(unsigned, "the token's signature is invalid")];
    for (claims, header, expected) in [
        (json!({"exp": 1}), Value::Null, "the token has expired"),
        (json!({"iss": "https://evil"}), Value::Null, "another identity provider"),
        (json!({"aud": "grafana"}), Value::Null, "another client"),
        (json!({"nonce": "n"}), Value::Null, "a login at a web page"),
        (Value::Null, json!({"alg": "none"}), "the token's algorithm is not accepted"),
        (Value::Null, json!({"alg": "HS256"}), "the token's algorithm HS256 is not accepted"),
    ] {
        let mut behavior = provider.behavior();
        (behavior.claims, behavior.header) = (claims, header);
        drop(behavior);
        all.push((provider.issue_token(None), expected));
    }
    {
        let mut behavior = provider.behavior();
        (behavior.claims, behavior.header) = (Value::Null, Value::Null);
        behavior.foreign_key = Some(SigningKey::rsa("rsa", "foreign"));
    }
    all.push((provider.issue_token(None), "the token's signature is invalid"));
    for (token, expected) in &all {
        let answer = server.exchange(token).await;
        assert!(answer.status == 403 && answer.text().contains(expected), "{expected}: {}", answer.text());
    }
    let entries = server.oidc_audit().await;
    assert_eq!(entries.iter().filter(|entry| entry["outcome"] == "refused").count(), all.len());
    // The server limits the rate of further attempts from this address.
    for _ in 0..3 {
        server.exchange(&all[0].0).await;
    }
    assert_eq!(server.exchange(&all[0].0).await.status, 429);
    assert_eq!(server.v1("GET", "/v1/users", &Value::Null).await.json().as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unavailable_provider_does_not_affect_local_logins() {
    let provider = TestProvider::start();
    provider.behavior().status = Some(500);
    let server = Running::start_in(with_provider(&provider)).await;
    let local = server.user("local", "viewer", &[]).await;
    for answer in [server.ask("GET", "/v1/oidc", &[], "").await, server.exchange("a.b.c").await] {
        assert_eq!((answer.status, &answer.json()["error_code"]), (503, &json!("DH-732")), "{}", answer.text());
        assert!(answer.text().contains("the provider responded 500"), "{}", answer.text());
    }
    let page = server.browse("/oidc/login", "").await;
    assert!(page.status == 503 && page.text.contains("the identity provider cannot be used"), "{}", page.text);
    assert_eq!(server.call(&local, "GET", "/v1/machines", &Value::Null).await.status, 200);
    server.browser_with(&local).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_requires_valid_oidc_settings() {
    let server = Running::start().await;
    assert_eq!(server.ask("GET", "/v1/oidc", &[], "").await.json(), json!({"available": false}));
    let refused = server.exchange("a.b.c").await;
    assert!(refused.status == 409 && refused.text().contains("does not contain oidc.yaml"), "{}", refused.text());
    assert!(!server.browse("/login", "").await.text.contains("Log in with"));
    assert_eq!(server.browse("/oidc/login", "").await.status, 409);
    let dir = server.stop().await;
    std::fs::write(dir.path().join("oidc.yaml"), "issuer: http://id.example.org\nclient_id: c\nroles: []\n").unwrap();
    let error = bind(&dir, &CapturedLog::default()).await.err().unwrap();
    assert!(
        error.to_coded_text().contains("oidc.yaml:1:9: issuer: ") && error.to_coded_text().contains("DH-730"),
        "{error}"
    );
    let checked = options(dir.path());
    let found = tokio::task::spawn_blocking(move || site_check::find_problems(&checked)).await.unwrap().unwrap();
    let problem = found.problems.iter().find(|problem| problem.file.as_deref() == Some("oidc.yaml")).unwrap();
    assert_eq!((problem.line, problem.column, problem.code.as_deref()), (Some(1), Some(9), Some("DH-730")));
}
