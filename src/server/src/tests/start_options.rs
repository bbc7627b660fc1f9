//! Options with which the server refuses to start, and its note about an empty directory.

use super::*;
use crate::start_checks::{check_options, note_empty_directory};

#[test]
fn unusable_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let good = ServerConfig { url: Some("https://install.rack:8443/base".to_owned()), ..options(dir.path()) };
    assert!(check_options(&good).is_ok());
    let cases = [
        (ServerConfig { dir: dir.path().join("nothing"), ..good.clone() }, "drophammer serve --init /"),
        (ServerConfig { dir: "/dev/null".into(), ..good.clone() }, "/dev/null is not a directory; specify"),
        (ServerConfig { url: Some("install.rack".to_owned()), ..good.clone() }, "--url"),
        (ServerConfig { url: Some("http://h/a b".to_owned()), ..good.clone() }, "--url"),
        (ServerConfig { url: Some("http://".to_owned()), ..good.clone() }, "--url"),
        (ServerConfig { cmdline: "a && b".to_owned(), ..good.clone() }, "--cmdline"),
        (ServerConfig { cmdline: "a\nboot".to_owned(), ..good.clone() }, "--cmdline"),
    ];
    for (options, expected) in cases {
        let error = check_options(&options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let note = note_empty_directory(dir.path()).unwrap();
    assert!(note.contains(&format!("`drophammer serve --init {}`", dir.path().display())), "{note}");
    std::fs::create_dir(dir.path().join("machines")).unwrap();
    assert_eq!(note_empty_directory(dir.path()), None);
}
