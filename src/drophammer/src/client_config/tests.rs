use super::*;

#[test]
fn written_configuration_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/config.yaml");
    let context = |server: &str, token| ServerContext { server: server.to_owned(), token };
    let contexts = [
        ("rack".to_owned(), context("https://install.rack:8443", Some(ContextToken::Text(SecretText::new("0123: #"))))),
        ("bench".to_owned(), context("http://10.0.0.1:8080", Some(ContextToken::File("/a b/token".into())))),
        ("open".to_owned(), context("http://127.0.0.1:8080", None)),
    ];
    let config = ClientConfig { current: Some("rack".to_owned()), contexts: contexts.into() };
    for config in [config, ClientConfig::default()] {
        config.write_file(&path).unwrap();
        assert_eq!(ClientConfig::read_file(&path).unwrap(), config);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1, "no temporary file");
    }
}

#[test]
fn a_missing_or_empty_file_is_an_empty_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    assert_eq!(ClientConfig::read_file(&path).unwrap(), ClientConfig::default());
    fs::write(&path, "\n").unwrap();
    assert_eq!(ClientConfig::read_file(&path).unwrap(), ClientConfig::default());
}

#[test]
fn invalid_configurations_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    for (text, expected) in [
        ("- a\n", "1:1: the document must be a mapping"),
        ("contexts: [a]\n", "contexts: must be a mapping of names to contexts"),
        ("currant: a\n", "unknown field \"currant\"; known fields: current, contexts"),
        ("current: {a: b}\n", "current: must be text"),
        ("contexts: {a: {token: t}}\n", "contexts.a.server: is missing"),
        (
            "contexts: {a: {server: s, token: t, token_file: f}}\n",
            "contexts.a: `token` and `token_file` cannot be combined: remove one of them",
        ),
        ("contexts: {a: {server: s, url: t}}\n", "contexts.a: unknown field \"url\""),
        ("contexts: {a: {server: [s]}}\n", "contexts.a.server: must be text"),
    ] {
        fs::write(&path, text).unwrap();
        let error = ClientConfig::read_file(&path).unwrap_err();
        assert!(error.is_refusal(), "{text}");
        let expected = format!("{}: {expected}", path.display());
        assert!(error.to_string().starts_with(&expected), "{text}: {error}");
    }
    fs::write(&path, "a: [\n").unwrap();
    assert!(ClientConfig::read_file(&path).is_err());
}

#[test]
fn a_token_that_other_users_can_read_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    for (text, mode, is_reported) in [
        ("contexts: {a: {server: s, token: t}}\n", 0o640, true),
        ("contexts: {a: {server: s, token: t}}\n", 0o600, false),
        ("contexts: {a: {server: s, token_file: /t}}\n", 0o644, false),
    ] {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let output = common::output_capture::recorded(|| ClientConfig::read_file(&path));
        assert_eq!(output.contains("chmod 600"), is_reported, "{text} {mode:o}: {output}");
    }
}

#[test]
fn the_path_follows_the_xdg_base_directories() {
    let path = |variables: &[(&str, &str)]| {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        config_path(value).map(|path| path.display().to_string())
    };
    let (in_xdg, in_home) = (Some("/x/drophammer/config.yaml"), Some("/h/.config/drophammer/config.yaml"));
    assert_eq!(path(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]).as_deref(), in_xdg);
    assert_eq!(path(&[("XDG_CONFIG_HOME", ""), ("HOME", "/h")]).as_deref(), in_home);
    assert_eq!(path(&[("XDG_CONFIG_HOME", "relative"), ("HOME", "/h")]).as_deref(), in_home);
    assert_eq!(path(&[("HOME", "")]), None);
    assert_eq!(path(&[]), None);
}

#[test]
fn a_missing_context_is_refused_with_the_list_of_contexts() {
    let mut config = ClientConfig::default();
    assert!(config.find_context("a").unwrap_err().ends_with("`drophammer login URL` creates a context"));
    config.contexts.insert("b".to_owned(), ServerContext { server: "http://h".to_owned(), token: None });
    assert!(config.find_context("b").is_ok());
    assert_eq!(config.find_context("a").unwrap_err(), "context \"a\" does not exist; contexts: b");
}

#[test]
fn a_symbolic_link_to_the_configuration_is_preserved() {
    let folder = tempfile::tempdir().unwrap();
    let [link, target] = ["config.yaml", "dotfiles/drophammer.yaml"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink("dotfiles/drophammer.yaml", &link).unwrap();
    for current in ["a", "b"] {
        let config = ClientConfig { current: Some(current.to_owned()), ..ClientConfig::default() };
        config.write_file(&link).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(ClientConfig::read_file(&target).unwrap(), config);
        assert_eq!(fs::read_dir(target.parent().unwrap()).unwrap().count(), 1, "no temporary file");
    }
}

/// The last link leads to a file that does not exist yet, as in a new checkout of the operator's files.
#[test]
fn a_chain_of_symbolic_links_is_preserved() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, target] =
        ["config.yaml", "a/second.yaml", "a/b/target.yaml"].map(|name| folder.path().join(name));
    fs::create_dir(folder.path().join("a")).unwrap();
    std::os::unix::fs::symlink("a/second.yaml", &first).unwrap();
    std::os::unix::fs::symlink("b/target.yaml", &second).unwrap();
    for current in ["a", "b"] {
        let config = ClientConfig { current: Some(current.to_owned()), ..ClientConfig::default() };
        config.write_file(&first).unwrap();
        assert!([&first, &second].iter().all(|link| fs::symlink_metadata(link).unwrap().is_symlink()));
        assert!(fs::symlink_metadata(&target).unwrap().is_file());
        assert_eq!(ClientConfig::read_file(&target).unwrap(), config);
    }
}

#[test]
fn a_cycle_of_symbolic_links_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["config.yaml", "second.yaml"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink("second.yaml", &first).unwrap();
    std::os::unix::fs::symlink("config.yaml", &second).unwrap();
    let error = ClientConfig::default().write_file(&first).unwrap_err().to_string();
    assert!(error.contains("more than 40 symbolic links"), "{error}");
    assert!(fs::symlink_metadata(&first).unwrap().is_symlink());
}
