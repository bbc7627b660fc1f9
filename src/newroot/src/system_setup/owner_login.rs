//! Login of the owner: SSH keys, and a hashed console password.

use crate::NewRoot;
use common::error::{Context, Error, Phase, Result};
use sha_crypt::{Sha512Params, sha512_crypt_b64};
use time::OffsetDateTime;
use uuid::Uuid;

pub(super) const PASSWD: &str = "/etc/passwd";
pub(super) const SHADOW: &str = "/etc/shadow";

/// Name and ID of the user that metal-stack's images create for the owner.
pub(super) const METAL: (&str, u32) = ("metal", 1000);

/// Name of a symlink `.ssh` after it was replaced by a directory.
const REPLACED_SSH: &str = ".ssh.replaced";

/// User in a line of passwd(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PasswdEntry {
    pub name: String,
    id: u32,
    group: u32,
    home: String,
}

/// Users that receive the owner's SSH keys and password. Keys and password are set for the user `metal` if this user
/// exists. Otherwise the password is set for root, and the keys are set for cloud-init's default user or, if the image
/// has no such user, for root.
pub(crate) struct LoginUsers {
    pub keys: PasswdEntry,
    pub password: PasswdEntry,
}

impl LoginUsers {
    /// Determines the users. `cloud_user` is the name of cloud-init's default user. This user never receives the
    /// password, because cloud-init locks the password of this user at the first boot.
    pub(crate) fn find_users(root: &NewRoot, cloud_user: Option<&str>) -> LoginUsers {
        let passwd = root.read_text(PASSWD).unwrap_or_default();
        let users: Vec<PasswdEntry> = passwd.lines().filter_map(parse_passwd_line).collect();
        let named = |name: &str| users.iter().find(|user| user.name == name).cloned();
        let root = || PasswdEntry { name: "root".to_owned(), id: 0, group: 0, home: "/root".to_owned() };
        let superuser = users.iter().find(|user| user.id == 0).cloned().unwrap_or_else(root);
        if let Some(metal) = named(METAL.0).filter(|user| user.id == METAL.1) {
            return LoginUsers { keys: metal.clone(), password: metal };
        }
        let keys = cloud_user.and_then(named).unwrap_or_else(|| superuser.clone());
        LoginUsers { keys, password: superuser }
    }
}

fn parse_passwd_line(line: &str) -> Option<PasswdEntry> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, id, group, _, home, _] = fields[..] else { return None };
    Some(PasswdEntry { name: name.to_owned(), id: id.parse().ok()?, group: group.parse().ok()?, home: home.to_owned() })
}

/// Sets the authorized SSH keys, replacing the image's keys for this user. If `.ssh` is a symlink, it is renamed: on a
/// preserved filesystem it may lead to a directory whose owner and content must stay unchanged.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn authorize_keys(root: &NewRoot, user: &PasswdEntry, keys: &[String]) -> Result<()> {
    let PasswdEntry { id, group, home, .. } = user;
    let home = home.trim_end_matches('/');
    let owner = (*id, *group);
    let ssh = format!("{home}/.ssh");
    if !home.is_empty() && !root.path_exists(home) {
        root.make_directory(home)?;
        root.change_owner(home, owner, 0o700)?;
    }
    if root.is_symlink(&ssh) {
        let renamed = root.rename_new_file(&ssh, REPLACED_SSH);
        renamed.context(Phase::Target, || format!("rename the symlink {ssh} to {REPLACED_SSH}"))?;
    }
    root.make_directory(&ssh)?;
    root.change_owner(&ssh, owner, 0o700)?;
    let lines: String = keys.iter().map(|key| format!("{}\n", key.trim())).collect();
    let file = format!("{ssh}/authorized_keys");
    root.write_file(&file, 0o600, lines.as_bytes())?;
    root.change_owner(&file, owner, 0o600)?;
    // The password is locked by `*` and not by `!`: without PAM, sshd rejects users whose password begins with `!`.
    edit_shadow(root, user, |fields| {
        if fields.get(1).is_some_and(|password| password.starts_with('!')) {
            fields[1] = "*".to_owned();
        }
    })
}

/// Sets the password as a salted hash.
///
/// # Errors
/// Returns an error if the password cannot be hashed, or a file cannot be written.
pub(crate) fn set_password(root: &NewRoot, user: &PasswdEntry, password: &str, now: OffsetDateTime) -> Result<()> {
    let random = Uuid::new_v4().simple().to_string();
    let hash = hash_password(password, &random[16..])?;
    let day = (now.unix_timestamp() / (24 * 60 * 60)).to_string();
    let shadow = root.read_text(SHADOW).unwrap_or_default();
    if !shadow.lines().any(|line| line.split(':').next() == Some(&user.name)) {
        let line = format!("{}:!:{day}:0:99999:7:::\n", user.name);
        root.rewrite_file(SHADOW, 0o600, append_line(&shadow, &line).as_bytes())?;
    }
    edit_shadow(root, user, |fields| {
        fields[1].clone_from(&hash);
        if let Some(changed) = fields.get_mut(2) {
            changed.clone_from(&day);
        }
    })?;
    // A password in passwd takes precedence over the one in shadow, and an empty password in passwd permits login
    // without a password.
    edit_user_line(root, PASSWD, user, |fields| fields[1] = "x".to_owned())
}

/// Hashes a password with crypt(5)'s `sha512crypt`, with its default of 5000 rounds.
fn hash_password(password: &str, salt: &str) -> Result<String> {
    let refuse = |_| Error::new(Phase::Target, "cannot hash the console password");
    let params = Sha512Params::default();
    let hash = sha512_crypt_b64(password.as_bytes(), salt.as_bytes(), &params).map_err(refuse)?;
    Ok(format!("$6${salt}${hash}"))
}

fn edit_shadow(root: &NewRoot, user: &PasswdEntry, change: impl Fn(&mut Vec<String>)) -> Result<()> {
    if root.path_exists(SHADOW) { edit_user_line(root, SHADOW, user, change) } else { Ok(()) }
}

/// Changes the fields in the line of this user in passwd(5) or shadow(5).
fn edit_user_line(root: &NewRoot, path: &str, user: &PasswdEntry, change: impl Fn(&mut Vec<String>)) -> Result<()> {
    let text = root.read_text(path).context(Phase::Target, || format!("read the image's {path}"))?;
    let changed = text.lines().map(|line| {
        let mut fields: Vec<String> = line.split(':').map(str::to_owned).collect();
        if fields.len() > 1 && fields[0] == user.name {
            change(&mut fields);
        }
        format!("{}\n", fields.join(":"))
    });
    let changed: String = changed.collect();
    if changed == text { Ok(()) } else { root.rewrite_file(path, 0o600, changed.as_bytes()) }
}

pub(super) fn append_line(text: &str, line: &str) -> String {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}{line}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::testing::tree;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-11-21 01:02:03 UTC);
    const ROOT: &str = "root:x:0:0:root:/root:/bin/bash\n";

    /// Returns an entry with the ids of the user who runs the test, because only root can give a file to another user.
    fn me() -> PasswdEntry {
        let (id, group) = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
        PasswdEntry { name: "me".into(), id, group, home: "/home/me/".into() }
    }

    #[test]
    fn owner_is_metal_cloud_init_user_or_root() {
        let metal = "metal:x:1000:1000::/home/metal:/bin/bash\n";
        let debian = "debian:x:1001:1001::/home/debian:/bin/bash\n";
        for (passwd, cloud, keys, password) in [
            (format!("{ROOT}{metal}"), None, "metal", "metal"),
            (format!("{ROOT}{metal}{debian}"), Some("debian"), "metal", "metal"),
            (format!("{ROOT}{debian}"), Some("debian"), "debian", "root"),
            (format!("{ROOT}{debian}"), None, "root", "root"),
            (ROOT.to_owned(), Some("debian"), "root", "root"),
            (format!("{ROOT}{}", metal.replace("1000", "999")), None, "root", "root"),
            ("toor:x:0:0::/toor:/bin/sh\n".to_owned(), None, "toor", "toor"),
            ("garbage\n".to_owned(), None, "root", "root"),
            (String::new(), None, "root", "root"),
        ] {
            let (_dir, root) = tree(&[("etc/passwd", &passwd)]);
            let owners = LoginUsers::find_users(&root, cloud);
            assert_eq!((owners.keys.name.as_str(), owners.password.name.as_str()), (keys, password), "{passwd}");
        }
    }

    #[test]
    fn only_keys_of_the_allocation_are_authorized() {
        let (dir, root) = tree(&[
            ("home/me/.ssh/authorized_keys", "ssh-rsa BUILDER\n"),
            ("etc/shadow", "root:*:1:0:99999:7:::\nme:!:1:0:99999:7:::\n"),
        ]);
        let keys = ["ssh-ed25519 AAAA a\n".to_owned(), "ssh-ed25519 BBBB b".to_owned()];
        authorize_keys(&root, &me(), &keys).unwrap();
        let text = root.read_text("/home/me/.ssh/authorized_keys").unwrap();
        assert_eq!(text, "ssh-ed25519 AAAA a\nssh-ed25519 BBBB b\n");
        let file = std::fs::metadata(dir.path().join("home/me/.ssh/authorized_keys")).unwrap();
        let ssh = std::fs::metadata(dir.path().join("home/me/.ssh")).unwrap();
        assert_eq!((file.permissions().mode() & 0o7777, ssh.permissions().mode() & 0o7777), (0o600, 0o700));
        assert_eq!((file.uid(), file.gid()), (me().id, me().group));
        assert_eq!(root.read_text(SHADOW).unwrap(), "root:*:1:0:99999:7:::\nme:*:1:0:99999:7:::\n");
        // The home directory does not exist yet, and the tree has no shadow file.
        let (_dir, root) = tree(&[]);
        authorize_keys(&root, &me(), &keys).unwrap();
        assert!(root.path_exists("/home/me/.ssh/authorized_keys") && !root.path_exists(SHADOW));
    }

    #[test]
    fn symlink_to_preserved_data_is_not_followed() {
        let (dir, root) = tree(&[("home/me/keep", ""), ("data/precious", "")]);
        std::os::unix::fs::symlink("/data", dir.path().join("home/me/.ssh")).unwrap();
        let mode = || std::fs::metadata(dir.path().join("data")).unwrap().permissions().mode() & 0o7777;
        let before = mode();
        authorize_keys(&root, &me(), &["ssh-ed25519 AAAA".to_owned()]).unwrap();
        assert_eq!((mode(), root.list_names("/data").unwrap()), (before, vec!["precious".to_owned()]));
        assert_eq!(root.read_text("/home/me/.ssh/authorized_keys").unwrap(), "ssh-ed25519 AAAA\n");
        let link = std::fs::read_link(dir.path().join("home/me/.ssh.replaced")).unwrap();
        assert_eq!(link, std::path::Path::new("/data"));
    }

    /// The expected hash is the output of `openssl passwd -6 -salt saltstring`.
    #[test]
    fn password_hash_matches_crypt() {
        let expected =
            "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1";
        assert_eq!(hash_password("Hello world!", "saltstring").unwrap(), expected);
    }

    #[test]
    fn password_is_stored_only_as_a_uniquely_salted_hash() {
        let day = NOW.unix_timestamp() / 86_400;
        let mut hashes = Vec::new();
        for (passwd, shadow) in [
            (ROOT, "root:*:0:0:99999:7:::\ndaemon:*:1:0:99999:7:::\n"),
            (ROOT, "daemon:*:1:0:99999:7:::"),
            ("root::0:0:root:/root:/bin/sh\n", ""),
        ] {
            let (dir, root) = tree(&[("etc/passwd", passwd), ("etc/shadow", shadow)]);
            std::fs::set_permissions(dir.path().join("etc/shadow"), PermissionsExt::from_mode(0o640)).unwrap();
            let owner = LoginUsers::find_users(&root, None).password;
            set_password(&root, &owner, "secret:1", NOW).unwrap();
            let written = root.read_text(SHADOW).unwrap();
            let line = written.lines().find(|line| line.starts_with("root:")).unwrap();
            let fields: Vec<&str> = line.split(':').collect();
            assert!(fields[1].starts_with("$6$") && fields[1].len() == 106, "{line}");
            assert_eq!((fields.len(), fields[2]), (9, day.to_string().as_str()), "{line}");
            assert_eq!(written.contains("daemon:*:1:"), shadow.contains("daemon"), "{written}");
            assert_eq!(root.read_text(PASSWD).unwrap(), passwd.replace("root::", "root:x:"));
            let mode = std::fs::metadata(dir.path().join("etc/shadow")).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o640);
            assert!(!written.contains("secret"));
            hashes.push(fields[1].to_owned());
        }
        hashes.dedup();
        assert_eq!(hashes.len(), 3);
        let (dir, root) = tree(&[("etc/passwd", ROOT)]);
        set_password(&root, &LoginUsers::find_users(&root, None).password, "x", NOW).unwrap();
        let mode = std::fs::metadata(dir.path().join("etc/shadow")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }
}
