//! `/etc/crypttab` of the installed system, and the files with the keys that it names.

use super::Root;
use crate::error::{Context, Error, Phase, Result};
use crate::plan::CrypttabEntry;
use std::fmt::Write;
use std::io::ErrorKind;

const PATH: &str = "/etc/crypttab";

/// Where systemd looks for the key of a mapping too (crypttab(5)).
const KEYS: &str = "/etc/cryptsetup-keys.d";

/// What opens containers in an installed system: Debian's scripts, or systemd.
const OPENERS: [&str; 5] = [
    "/usr/sbin/cryptsetup",
    "/sbin/cryptsetup",
    "/usr/bin/cryptsetup",
    "/usr/lib/systemd/systemd-cryptsetup",
    "/lib/systemd/systemd-cryptsetup",
];

/// Adds lines to what the image has, and writes a file with the key of each, which root alone can read.
///
/// # Errors
/// The image has nothing that opens them, and cannot do without; or a file cannot be read or written.
pub fn write(root: &Root, entries: &[CrypttabEntry], say: &dyn Fn(&str)) -> Result<()> {
    if !OPENERS.iter().any(|opener| root.has(opener)) {
        let what = "the image has no cryptsetup and no systemd-cryptsetup";
        if let Some(path) = entries.iter().find_map(|entry| entry.needed_at.as_ref()) {
            let why =
                format!("{what}, so that it could not mount {path}: install one, or say nofail in its mountoptions");
            return Err(Error::new(Phase::Target, why));
        }
        say(&format!("WARNING: {what}: what is encrypted stays closed in the installed system"));
    }
    let mut text = match root.read(PATH) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        own => own.context(Phase::Target, || format!("{PATH} of the image"))?,
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    root.make_directory(KEYS)?;
    root.give(KEYS, (0, 0), 0o700)?;
    for CrypttabEntry { uuid, options, key, .. } in entries {
        let file = format!("{KEYS}/luks-{uuid}.key");
        root.write(&file, 0o400, key.reveal().as_bytes())?;
        let _ = writeln!(text, "luks-{uuid} UUID={uuid} {file} {}", options.join(","));
    }
    root.write(PATH, 0o600, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::Secret;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use uuid::Uuid;

    fn entry(needed_at: Option<&str>) -> CrypttabEntry {
        let options = vec!["luks".to_owned(), "nofail".to_owned()];
        CrypttabEntry {
            uuid: Uuid::from_u128(7),
            options,
            needed_at: needed_at.map(str::to_owned),
            key: Secret::new("hunter2"),
        }
    }

    #[test]
    fn a_line_and_a_key_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("usr/sbin")).unwrap();
        fs::create_dir_all(at("etc")).unwrap();
        fs::write(at("usr/sbin/cryptsetup"), "").unwrap();
        fs::write(at("etc/crypttab"), "# <target> <source>").unwrap();
        let root = Root::open(dir.path()).unwrap();
        write(&root, &[entry(Some("/data"))], &|line| panic!("{line}")).unwrap();
        let uuid = Uuid::from_u128(7);
        let expected = format!(
            "# <target> <source>\nluks-{uuid} UUID={uuid} /etc/cryptsetup-keys.d/luks-{uuid}.key luks,nofail\n"
        );
        assert_eq!(fs::read_to_string(at("etc/crypttab")).unwrap(), expected);
        let key = at(&format!("etc/cryptsetup-keys.d/luks-{uuid}.key"));
        assert_eq!(fs::read_to_string(&key).unwrap(), "hunter2");
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&key), mode(key.parent().unwrap()), mode(&at("etc/crypttab"))), (0o400, 0o700, 0o600));
    }

    #[test]
    fn an_image_that_cannot_open_it_is_refused_or_warned_of() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let refused = write(&root, &[entry(Some("/data"))], &|_| ()).unwrap_err().to_string();
        assert!(refused.contains("could not mount /data") && !refused.contains("hunter2"), "{refused}");
        assert!(!root.has("/etc/crypttab"));
        let said = std::sync::Mutex::new(Vec::new());
        write(&root, &[entry(None)], &|line| said.lock().unwrap().push(line.to_owned())).unwrap();
        assert!(said.lock().unwrap()[0].starts_with("WARNING: the image has no cryptsetup"));
        assert!(root.has("/etc/crypttab"));
    }
}
