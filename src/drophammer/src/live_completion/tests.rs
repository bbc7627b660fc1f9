use super::*;
use std::net::TcpListener;

#[test]
fn positions_of_names_are_recognized() {
    use NamedObject::{
        Context, Filter, Image, Layout, Machine, OsDefinition, Rollout, Size, Template, Token, User, Volume,
    };
    for (line, expected) in [
        ("drophammer machine show ", Some((Machine, ""))),
        ("drophammer machine show sto", Some((Machine, "sto"))),
        ("/usr/bin/drophammer machine logs -f sto", Some((Machine, "sto"))),
        ("drophammer machine power cycle ", Some((Machine, ""))),
        ("drophammer machine confirm a b ", Some((Machine, ""))),
        ("drophammer machine reinstall a --image deb", Some((Image, "deb"))),
        ("drophammer machine add --name a --layout ", Some((Layout, ""))),
        ("drophammer machine --server http://h:1 show ", Some((Machine, ""))),
        ("drophammer plan --machine ", Some((Machine, ""))),
        ("drophammer machine allocate a ", Some((Machine, ""))),
        ("drophammer machine events sto", Some((Machine, "sto"))),
        ("drophammer audit --machine sto", Some((Machine, "sto"))),
        ("drophammer volume delete ", Some((Machine, ""))),
        ("drophammer volume delete web-1 db", Some((Volume, "db"))),
        ("drophammer volume show ", Some((Volume, ""))),
        ("drophammer machine list --filter phase=f", Some((Filter, "phase=f"))),
        ("drophammer machine reinstall --filter ima", Some((Filter, "ima"))),
        ("drophammer volume ls --filter ", Some((Filter, ""))),
        ("drophammer machine events a --filter ", None),
        ("drophammer user token list ann --filter ", None),
        ("drophammer layout show ", Some((Layout, ""))),
        ("drophammer image show ", Some((Image, ""))),
        ("drophammer rollout show ", Some((Rollout, ""))),
        ("drophammer rollout halt 1", Some((Rollout, "1"))),
        ("drophammer size delete ", Some((Size, ""))),
        ("drophammer template show ", Some((Template, ""))),
        ("drophammer os modify we", Some((OsDefinition, "we"))),
        ("drophammer user show ", Some((User, ""))),
        ("drophammer user token list ", Some((User, ""))),
        ("drophammer user token create ", Some((User, ""))),
        ("drophammer user token create ann ", None),
        ("drophammer user token revoke ann la", Some((Token, "la"))),
        ("drophammer user add ", None),
        ("drophammer size apply ", None),
        ("drophammer rollout list ", None),
        ("drophammer config use ", Some((Context, ""))),
        ("drophammer machine list --context ", Some((Context, ""))),
        ("drophammer machine ", None),
        ("drophammer machine power ", None),
        ("drophammer machine show a ", None),
        ("drophammer machine show --js", None),
        ("drophammer plan --layout ", None),
        ("drophammer machine plan a --out ", None),
        ("drophammer machine nothing ", None),
        ("drophammer", None),
        ("", None),
    ] {
        let found = find_position(line);
        let found = found.as_ref().map(|position| (position.object, position.prefix.as_str()));
        assert_eq!(found, expected, "{line:?}");
    }
}

#[test]
fn completion_uses_server_of_the_command_line() {
    let line = "drophammer machine --server http://h:1 --context=c show --token-file /t ";
    let server = find_position(line).unwrap().server;
    assert_eq!((server.server.as_deref(), server.context.as_deref()), (Some("http://h:1"), Some("c")));
    assert_eq!(server.token_file, Some(PathBuf::from("/t")));
}

#[test]
fn tokens_and_filters_are_requested_from_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "t").unwrap();
    let server = testing::http::Server::start(Vec::new(), |request| {
        let body = match request.line().as_str() {
            "GET /v1/users/ann/tokens" => r#"[{"name": "laptop"}, {"name": "$(reboot)"}]"#,
            "GET /v1/size" => r#"[{"id": "c1-small"}, {"id": "c1-large"}, {"id": "$(reboot)"}]"#,
            _ => "[]",
        };
        testing::http::ResponseBehavior::respond(200, body)
    });
    let url = server.url("");
    let options = format!("--server {} --token-file {}", url.trim_end_matches('/'), token.display());
    for (command, typed, expected) in [
        ("user token", "revoke ann ", &["laptop"][..]),
        ("size", "list --filter id=c1-s", &["id=c1-small"]),
        ("size", "list --filter i", &["id="]),
    ] {
        assert_eq!(complete_line(&format!("drophammer {command} {options} {typed}")).unwrap(), expected, "{typed}");
    }
}

#[test]
fn names_that_a_shell_could_interpret_are_omitted() {
    for (name, expected) in [
        ("storage-7", true),
        ("debian-12.0.20261101", true),
        ("4c4c4544-0051-3010-8052-b4c04f4d0001", true),
        ("$(reboot)", false),
        ("a b", false),
        ("a;b", false),
        ("a\u{1b}[2J", false),
        ("-rf", false),
        ("ä", false),
    ] {
        assert_eq!(is_plain_name(name), expected, "{name:?}");
    }
}

/// The server accepts connections, but does not respond.
#[test]
fn a_server_that_does_not_respond_is_abandoned() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "t").unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let line =
        |server: String| format!("drophammer machine --server http://{server} --token-file {} show ", token.display());
    let address = silent.local_addr().unwrap().to_string();
    for server in [address, "127.0.0.1:1".to_owned()] {
        complete_line(&line(server.clone())).unwrap_err();
        let began = std::time::Instant::now();
        assert_eq!(print_names(&line(server)).unwrap(), CommandOutcome::Good);
        assert!(began.elapsed() < 10 * RESPONSE_TIMEOUT);
    }
}
