//! Login during a rescue: one user, with the password that the operator set.

use super::command_result::CommandFault;
use common::error::{Context, Phase, Result};
use linux::atomic_file::replace_file;
use serde_json::{Map, Value};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// User name, as in Ironic's own agent. The user has uid 0, because a rescue requires root privileges.
const USER: &str = "rescue";

/// Hash algorithms that the ramdisk's login supports, as prefixes defined in crypt(5).
const HASH_PREFIXES: [&str; 2] = ["$5$", "$6$"];

/// Maximum length of a password hash, in characters.
const MAXIMUM_HASH_CHARACTERS: usize = 255;

/// Returns the password hash of `finalize_rescue`.
///
/// # Errors
/// Fails if the parameters do not contain a supported password hash. A plaintext password is rejected, because it was
/// sent over the network and would be logged.
pub(crate) fn parse_password_hash(params: &Map<String, Value>) -> Result<&str, CommandFault> {
    let refuse = |why: &str| Err(CommandFault::new_execution_fault(format!("{why}; logins stay disabled")));
    if params.get("hashed") != Some(&Value::Bool(true)) {
        return refuse("the rescue password is not hashed");
    }
    let hash = params.get("rescue_password").and_then(Value::as_str).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"./$=".contains(&byte);
    let is_known = HASH_PREFIXES.iter().any(|kind| hash.starts_with(kind)) && hash.matches('$').count() >= 3;
    if is_known && hash.len() <= MAXIMUM_HASH_CHARACTERS && hash.bytes().all(is_plain) {
        return Ok(hash);
    }
    refuse("the rescue password must be a SHA-256 or SHA-512 hash of crypt(5)")
}

/// Enables logins of the rescue user with this password hash, and locks root's password.
///
/// The password hash is written to passwd(5) and not to shadow(5), because the login program of the ramdisk uses the
/// line of root in passwd for all users with uid 0.
///
/// # Errors
/// Fails if the file cannot be written.
pub(crate) fn enable_login(root: &Path, hash: &str) -> Result<()> {
    let (path, new) = (root.join("etc/passwd"), root.join("etc/passwd.new"));
    let passwd = format!("root:*:0:0:root:/root:/bin/sh\n{USER}:{hash}:0:0:{USER}:/root:/bin/sh\n");
    let written = replace_file(&path, &new, passwd.as_bytes(), Permissions::from_mode(0o600));
    written.context(Phase::Control, || "enable logins of the rescue user")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    /// Password hash as Ironic 39 sends it.
    const HASH: &str = "$5$Xl0MbZMLvyuVXNZb$lc3L5j9I3lUnHJzjdbg.hY9rBq6kZNJlv61oVjhnFE6";

    #[test]
    fn rescue_login_requires_a_password_hash() {
        let given = |password: Value, hashed: Value| {
            let params = json!({"rescue_password": password, "hashed": hashed});
            parse_password_hash(params.as_object().unwrap()).map(str::to_owned).map_err(|fault| fault.details)
        };
        assert_eq!(given(json!(HASH), json!(true)).unwrap(), HASH);
        assert!(given(json!(HASH), json!(false)).unwrap_err().contains("not hashed"));
        for wrong in
            [json!("secret"), json!(""), json!(7), json!("$5$a:b$c"), json!("$5$a$b\nroot::0"), json!("$1$a$b")]
        {
            assert!(given(wrong.clone(), json!(true)).unwrap_err().contains("logins stay disabled"), "{wrong}");
        }
        assert!(parse_password_hash(&Map::new()).is_err());
    }

    #[test]
    fn root_without_password_is_disabled() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/passwd"), "root::0:0:root:/root:/bin/sh\n").unwrap();
        enable_login(dir.path(), HASH).unwrap();
        let passwd = fs::read_to_string(dir.path().join("etc/passwd")).unwrap();
        let expected = format!("root:*:0:0:root:/root:/bin/sh\nrescue:{HASH}:0:0:rescue:/root:/bin/sh\n");
        assert_eq!(passwd, expected);
        assert_eq!(fs::metadata(dir.path().join("etc/passwd")).unwrap().mode() & 0o777, 0o600);
    }
}
