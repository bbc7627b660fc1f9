use super::super::login::log_in;
use super::*;
use common::command_outcome::CommandOutcome;
use common::output_capture::recorded;
use model::secret_text::SecretText;
use std::cell::Cell;
use testing::http::{ResponseBehavior, Server};

/// Directory with files that contain tokens, and a configuration with two contexts.
struct ClientFiles {
    folder: tempfile::TempDir,
    config: ClientConfig,
}

impl ClientFiles {
    fn new() -> ClientFiles {
        let context = |server: &str, token: &str| ServerContext {
            server: server.to_owned(),
            token: Some(ContextToken::Text(SecretText::new(token))),
        };
        let contexts = [
            ("rack".to_owned(), context("https://install.rack:8443", "of rack")),
            ("bench".to_owned(), context("10.0.0.1", "of bench")),
        ];
        let config = ClientConfig { current: None, contexts: contexts.into() };
        ClientFiles { folder: tempfile::tempdir().unwrap(), config }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Returns the URL and the token of the selected server.
    fn select(&self, options: &ServerOptions, environment: &[(&str, &str)]) -> Result<(String, String)> {
        let value =
            |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let sources = ConnectionSources {
            environment: &value,
            config: self.config.clone(),
            local_token: self.folder.path().join("local"),
            package_token: self.folder.path().join("package"),
        };
        sources.select(options).map(|connection| (connection.url, connection.token))
    }
}

fn options(server: Option<&str>, context: Option<&str>, token_file: Option<&Path>) -> ServerOptions {
    ServerOptions {
        server: server.map(str::to_owned),
        context: context.map(str::to_owned),
        token_file: token_file.map(Path::to_owned),
        verbose: false,
    }
}

#[test]
fn options_precede_environment_and_current_context() {
    let mut files = ClientFiles::new();
    let file = files.write("file", "of file\n");
    files.write("package", "of package");
    let selected = |files: &ClientFiles, options: &ServerOptions, environment: &[(&str, &str)]| {
        let (url, token) = files.select(options, environment).unwrap_or_else(|error| panic!("{error}"));
        format!("{url} {token}")
    };
    let none = options(None, None, None);
    assert_eq!(selected(&files, &none, &[]), "http://127.0.0.1:8080 of package");
    files.config.current = Some("bench".to_owned());
    let (rack, bench) = ("https://install.rack:8443 of rack", "http://10.0.0.1:8080 of bench");
    assert_eq!(selected(&files, &none, &[]), bench);
    assert_eq!(selected(&files, &none, &[("DROPHAMMER_CONTEXT", "rack")]), rack);
    assert_eq!(selected(&files, &options(None, Some("rack"), None), &[("DROPHAMMER_CONTEXT", "bench")]), rack);
    assert_eq!(selected(&files, &options(None, Some("rack"), None), &[("DROPHAMMER_SERVER", "http://h")]), rack);
    // The token in the variable may belong to another server, so it is not used.
    let elsewhere = files.write("elsewhere", "of another server").display().to_string();
    assert_eq!(selected(&files, &options(None, Some("rack"), None), &[("DROPHAMMER_TOKEN_FILE", &elsewhere)]), rack);
    assert_eq!(selected(&files, &none, &[("DROPHAMMER_SERVER", "https://install.rack:8443/")]), rack);
    let (own, own_path) = (options(None, None, Some(&file)), file.display().to_string());
    assert_eq!(selected(&files, &own, &[]), "http://10.0.0.1:8080 of file");
    assert_eq!(selected(&files, &none, &[("DROPHAMMER_TOKEN_FILE", &own_path)]), "http://10.0.0.1:8080 of file");
    files.write("local", "of directory");
    assert_eq!(selected(&files, &none, &[]), bench);
    let other = options(Some("http://other:8080"), None, None);
    assert_eq!(selected(&files, &other, &[]), "http://other:8080 of directory");
}

#[test]
fn a_token_is_sent_only_to_its_own_server() {
    let mut files = ClientFiles::new();
    files.write("package", "of package");
    files.config.current = Some("rack".to_owned());
    for server in ["http://install.rack:8443", "https://install.rack", "other", "http://127.0.0.1.example.org"] {
        let error = files.select(&options(Some(server), None, None), &[]).unwrap_err().to_string();
        assert!(error.contains("is missing: run `drophammer login http"), "{server}: {error}");
    }
    for server in ["http://localhost:1", "127.0.0.2", "http://[::1]:8080"] {
        assert_eq!(files.select(&options(Some(server), None, None), &[]).unwrap().1, "of package", "{server}");
    }
}

#[test]
fn contradictory_or_unknown_selections_are_refused() {
    let files = ClientFiles::new();
    let (empty, missing) = (files.write("empty", " \n"), files.folder.path().join("missing"));
    for (options, environment, expected) in [
        (options(Some("h"), Some("rack"), None), &[][..], "--server and --context both select a server"),
        (options(None, Some("rock"), None), &[], "context \"rock\" does not exist; contexts: bench, rack"),
        (options(None, None, None), &[("DROPHAMMER_CONTEXT", "rock")], "context \"rock\" does not exist"),
        (options(None, None, None), &[], "the operator's token for http://127.0.0.1:8080 is missing"),
        (options(None, None, Some(&missing)), &[], "No such file or directory; run `drophammer login URL`"),
        (options(None, None, Some(&empty)), &[], "is empty: copy operator.token from the server's directory"),
        (options(Some("ftp://h"), None, None), &[], "the scheme must be http or https"),
    ] {
        let error = files.select(&options, environment).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn addresses_of_servers_are_completed() {
    for (text, expected) in [
        ("install.rack", "http://install.rack:8080"),
        ("install.rack:80", "http://install.rack:80"),
        ("install.rack:8443", "https://install.rack:8443"),
        ("10.0.0.1:9000/base/", "http://10.0.0.1:9000/base"),
        ("install.rack/base", "http://install.rack:8080/base"),
        ("[::1]", "http://[::1]:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        (" localhost ", "http://localhost:8080"),
        ("http://install.rack", "http://install.rack"),
        ("https://install.rack/", "https://install.rack"),
        ("http://install.rack:8443", "http://install.rack:8443"),
    ] {
        assert_eq!(parse_server_url(text).as_deref(), Ok(expected), "{text}");
    }
    for (text, why) in [
        ("http://", "the name or the address of the server is missing"),
        ("host name", "the URL must not contain spaces"),
        ("h:99999", "the port must be a number up to 65535"),
        ("http://[::1", "the name or the address of the server is invalid"),
    ] {
        assert!(parse_server_url(text).unwrap_err().contains(&format!(": {why}; example")), "{text}");
    }
    for text in ["", "ftp://h", "http://", "http://h h", "h:99999", "h?a=b", "http://h/#a", "://h"] {
        let error = parse_server_url(text).unwrap_err();
        assert!(error.ends_with("; example: http://install.rack:8080"), "{text}: {error}");
    }
}

#[test]
fn credentials_in_a_url_are_refused_without_printing_them() {
    let desk = ClientFiles::new();
    for url in ["http://admin:hunter2@install.rack:8080", "admin:hunter2@install.rack", "https://hunter2@install.rack/"]
    {
        let error = desk.select(&options(Some(url), None, None), &[]).unwrap_err();
        let text = error.to_coded_text();
        assert!(text.contains("credentials in the URL are not supported; use --token-file FILE"), "{text}");
        assert!(text.ends_with("(DH-102)") && !text.contains("hunter2") && error.is_refusal(), "{text}");
        assert!(!parse_server_url(url).unwrap_err().contains("hunter2"), "{url}");
    }
}

#[test]
fn a_login_stores_a_token_that_the_server_accepts() {
    let server = Server::start(Vec::new(), |request| match request.authorization.as_deref() {
        Some("Bearer right") => ResponseBehavior::respond(200, "[]"),
        _ => ResponseBehavior::respond(401, "{\"statuscode\": 401, \"message\": \"wrong token\"}"),
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    let url = server.url("").trim_end_matches('/').to_owned();
    let outcome = Cell::new(None);
    let run = |name: Option<&str>, token: &str| {
        recorded(|| {
            outcome.set(None);
            log_in(&path, &url, name, token).map(|done| outcome.set(Some(done)))
        })
    };
    let output = run(None, "wrong");
    assert!(output.contains("rejects the entered token: wrong token; run `drophammer login"), "{output}");
    assert!(outcome.get().is_none() && !path.exists());
    let output = run(None, "right");
    assert!(
        output.starts_with(&format!("Logged in to {url}. The token is stored as context 127.0.0.1 in ")),
        "{output}"
    );
    assert_eq!(outcome.get(), Some(CommandOutcome::Good));
    run(Some("bench"), "right");
    // If the context with the name of the host contains a server at another port, the context is not overwritten.
    let mut other = ClientConfig::read_file(&path).unwrap();
    other.contexts.get_mut("127.0.0.1").unwrap().server = "http://127.0.0.1:1".to_owned();
    other.write_file(&path).unwrap();
    assert!(run(None, "right").contains("add --name NAME"));
    let config = ClientConfig::read_file(&path).unwrap();
    assert_eq!(config.contexts.keys().collect::<Vec<_>>(), ["127.0.0.1", "bench"]);
    assert_eq!(config.current.as_deref(), Some("bench"));
    let token = Some(ContextToken::Text(SecretText::new("right")));
    assert_eq!(config.find_context("bench").unwrap(), &ServerContext { server: url.clone(), token });
}

#[test]
fn https_url_of_plain_http_port_is_reported() {
    let server = Server::start(Vec::new(), |_| ResponseBehavior::respond(200, "[]"));
    let folder = tempfile::tempdir().unwrap();
    let url = server.url("").trim_end_matches('/').replace("http:", "https:");
    let output = recorded(|| log_in(&folder.path().join("config.yaml"), &url, None, "token"));
    assert!(
        output.contains(&format!("{url} does not respond with TLS: use the port of `drophammer serve --tls-listen`")),
        "{output}"
    );
}
