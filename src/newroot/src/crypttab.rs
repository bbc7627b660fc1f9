//! `/etc/crypttab` of the installed system, and the key files to which crypttab refers.

use super::NewRoot;
use common::error::{Context, Error, Phase, Result};
use operations::CrypttabEntry;
use std::fmt::Write;
use std::io::ErrorKind;

const PATH: &str = "/etc/crypttab";

/// Directory in which systemd searches for the key of a mapping (crypttab(5)).
const KEY_DIRECTORY: &str = "/etc/cryptsetup-keys.d";

/// Paths of cryptsetup, with which Debian's scripts open LUKS containers.
const OPENERS: [&str; 3] = ["/usr/sbin/cryptsetup", "/sbin/cryptsetup", "/usr/bin/cryptsetup"];
/// Paths of systemd-cryptsetup, with which systemd opens LUKS containers.
const SYSTEMD_CRYPTSETUP_PATHS: [&str; 3] =
    ["/usr/lib/systemd/systemd-cryptsetup", "/lib/systemd/systemd-cryptsetup", "/usr/bin/systemd-cryptsetup"];

/// Libraries that systemd loads to access a TPM 2 (`dlopen_tpm2`). Only systemd can open containers whose key is sealed
/// to a TPM.
const LIBRARIES: [&str; 4] = ["libtss2-esys.so.0", "libtss2-mu.so.0", "libtss2-rc.so.0", "libtss2-tcti-device.so.0"];
const LIBRARY_FOLDERS: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// Returns the programs or libraries that are required to open these containers but missing in the image; `None` if the
/// image contains all of them.
fn find_missing_programs(root: &NewRoot, entries: &[CrypttabEntry]) -> Option<String> {
    let has = |one: &[&str]| one.iter().any(|path| root.path_exists(path));
    let by_tpm = entries.iter().any(CrypttabEntry::is_by_tpm);
    if !has(&SYSTEMD_CRYPTSETUP_PATHS) && (by_tpm || !has(&OPENERS)) {
        let other = if by_tpm { "" } else { "cryptsetup or " };
        return Some(format!("{other}systemd-cryptsetup (since Debian 13 in the package systemd-cryptsetup)"));
    }
    let is_there =
        |library: &&str| LIBRARY_FOLDERS.iter().any(|folder| root.path_exists(&format!("{folder}/{library}")));
    let lacking: Vec<&str> = LIBRARIES.into_iter().filter(|library| by_tpm && !is_there(library)).collect();
    let packages = "packages of Debian: libtss2-esys-3.0.2-0 and libtss2-rc0, with the suffix t64 since Debian 13; package of Fedora and its derivatives: tpm2-tss";
    (!lacking.is_empty()).then(|| {
        format!("{libraries}, which systemd requires to access a TPM 2 ({packages})", libraries = lacking.join(", "))
    })
}

/// Returns the programs of the target that open containers.
pub(crate) fn find_openers(root: &NewRoot) -> impl Iterator<Item = &'static str> {
    OPENERS.into_iter().chain(SYSTEMD_CRYPTSETUP_PATHS).filter(|opener| root.path_exists(opener))
}

/// Appends the entries to the image's crypttab, and writes a key file readable only by root for each entry with a key.
///
/// # Errors
/// Returns an error if a container that is required at boot cannot be opened with the programs of the image, or if a
/// file cannot be read or written.
pub fn extend_crypttab(root: &NewRoot, entries: &[CrypttabEntry], say: &dyn Fn(&str)) -> Result<()> {
    if let Some(what) = find_missing_programs(root, entries) {
        let what = format!("the image does not contain {what}");
        if let Some(path) = entries.iter().find_map(|entry| entry.needed_at.as_ref()) {
            let why = format!(
                "{what}, so the installed system cannot mount {path}: add the missing files to the image, or add \
                 nofail to the mountoptions of {path}"
            );
            return Err(Error::new(Phase::Target, why));
        }
        say(&format!("WARNING: {what}: encrypted devices stay locked in the installed system"));
    }
    let mut text = match root.read_text(PATH) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        own => own.context(Phase::Target, || format!("read the image's {PATH}"))?,
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if entries.iter().any(|entry| !entry.key.is_empty()) {
        root.make_directory(KEY_DIRECTORY)?;
        root.change_owner(KEY_DIRECTORY, (0, 0), 0o700)?;
    }
    for CrypttabEntry { uuid, options, key, .. } in entries {
        let mut file = "none".to_owned();
        if !key.is_empty() {
            file = format!("{KEY_DIRECTORY}/luks-{uuid}.key");
            root.write_file(&file, 0o400, key.reveal().as_bytes())?;
        }
        let _ = writeln!(text, "luks-{uuid} UUID={uuid} {file} {}", options.join(","));
    }
    root.write_file(PATH, 0o600, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::secret_text::SecretText;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use uuid::Uuid;

    fn entry(needed_at: Option<&str>) -> CrypttabEntry {
        let options = vec!["luks".to_owned(), "nofail".to_owned()];
        CrypttabEntry {
            uuid: Uuid::from_u128(7),
            options,
            needed_at: needed_at.map(str::to_owned),
            key: SecretText::new("hunter2"),
        }
    }

    #[test]
    fn crypttab_line_and_key_file_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("usr/sbin")).unwrap();
        fs::create_dir_all(at("etc")).unwrap();
        fs::write(at("usr/sbin/cryptsetup"), "").unwrap();
        fs::write(at("etc/crypttab"), "# <target> <source>").unwrap();
        let root = NewRoot::open(dir.path()).unwrap();
        extend_crypttab(&root, &[entry(Some("/data"))], &|line| panic!("{line}")).unwrap();
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
    fn passphrase_is_not_written_to_any_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc")).unwrap();
        fs::create_dir_all(dir.path().join("usr/sbin")).unwrap();
        fs::write(dir.path().join("usr/sbin/cryptsetup"), "").unwrap();
        let root = NewRoot::open(dir.path()).unwrap();
        extend_crypttab(&root, &[CrypttabEntry { key: SecretText::default(), ..entry(None) }], &|line| {
            panic!("{line}")
        })
        .unwrap();
        let uuid = Uuid::from_u128(7);
        assert_eq!(root.read_text(PATH).unwrap(), format!("luks-{uuid} UUID={uuid} none luks,nofail\n"));
        assert!(!root.path_exists(KEY_DIRECTORY));
    }

    #[test]
    fn image_without_cryptsetup_is_refused_or_warned_about() {
        let dir = tempfile::tempdir().unwrap();
        let root = NewRoot::open(dir.path()).unwrap();
        let refused = extend_crypttab(&root, &[entry(Some("/data"))], &|_| ()).unwrap_err().to_string();
        assert!(refused.contains("cannot mount /data") && !refused.contains("hunter2"), "{refused}");
        assert!(!root.path_exists("/etc/crypttab"));
        let said = std::sync::Mutex::new(Vec::new());
        extend_crypttab(&root, &[entry(None)], &|line| said.lock().unwrap().push(line.to_owned())).unwrap();
        assert!(said.lock().unwrap()[0].starts_with("WARNING: the image does not contain cryptsetup"));
        assert!(root.path_exists("/etc/crypttab"));
    }

    fn sealed() -> CrypttabEntry {
        let options = vec!["luks".to_owned(), CrypttabEntry::BY_TPM.to_owned()];
        CrypttabEntry { options, key: SecretText::default(), ..entry(Some("/data")) }
    }

    #[test]
    fn tpm_container_gets_a_crypttab_line_without_key() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["usr/lib/systemd/systemd-cryptsetup"]
            .into_iter()
            .map(str::to_owned)
            .chain(LIBRARIES.map(|name| format!("usr/lib64/{name}")))
        {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let root = NewRoot::open(dir.path()).unwrap();
        fs::create_dir_all(dir.path().join("etc")).unwrap();
        extend_crypttab(&root, &[sealed()], &|line| panic!("{line}")).unwrap();
        let uuid = Uuid::from_u128(7);
        let expected = format!("luks-{uuid} UUID={uuid} none luks,tpm2-device=auto\n");
        assert_eq!(fs::read_to_string(dir.path().join("etc/crypttab")).unwrap(), expected);
        assert!(!root.path_exists(KEY_DIRECTORY));
    }

    #[test]
    fn image_without_tpm_libraries_is_refused_with_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let root = NewRoot::open(dir.path()).unwrap();
        let put = |path: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        // cryptsetup without systemd can open containers only with keys, not with a TPM.
        put("usr/sbin/cryptsetup");
        let refused = |root: &NewRoot| extend_crypttab(root, &[sealed()], &|_| ()).unwrap_err().to_string();
        let said = refused(&root);
        assert!(
            said.contains("the image does not contain systemd-cryptsetup") && said.contains("cannot mount /data"),
            "{said}"
        );
        put("usr/lib/systemd/systemd-cryptsetup");
        put("usr/lib/x86_64-linux-gnu/libtss2-mu.so.0");
        let said = refused(&root);
        assert!(said.contains("contain libtss2-esys.so.0, libtss2-rc.so.0, libtss2-tcti-device.so.0, which"), "{said}");
        assert!(said.contains("libtss2-esys-3.0.2-0 and libtss2-rc0"), "{said}");
        assert!(!root.path_exists("/etc/crypttab"), "nothing was written");
    }
}
