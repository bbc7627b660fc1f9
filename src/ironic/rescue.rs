//! Who may log in while a conductor has the machine in rescue: one user, by the password that the conductor's operator has set.

use super::wire::Fault;
use crate::error::{Context, Phase, Result};
use serde_json::{Map, Value};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// As Ironic's own agent calls it. It is root by another name: there is nothing to rescue otherwise.
const USER: &str = "rescue";

/// The kinds of hashes that the ramdisk's login knows, as crypt(5) marks them.
const KINDS: [&str; 2] = ["$5$", "$6$"];

/// A hash is not longer than this.
const LONGEST: usize = 255;

/// The password's hash, of `finalize_rescue`.
///
/// # Errors
/// It is none. A password that is not hashed is refused: it has come over the wire, and would lie in logs.
pub fn hash(params: &Map<String, Value>) -> Result<&str, Fault> {
    let refuse = |why: &str| Err(Fault::of_command(format!("{why}: nobody is let in")));
    if params.get("hashed") != Some(&Value::Bool(true)) {
        return refuse("the rescue password is not hashed");
    }
    let hash = params.get("rescue_password").and_then(Value::as_str).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"./$=".contains(&byte);
    let is_known = KINDS.iter().any(|kind| hash.starts_with(kind)) && hash.matches('$').count() >= 3;
    if is_known && hash.len() <= LONGEST && hash.bytes().all(is_plain) {
        return Ok(hash);
    }
    refuse("the rescue password is no hash of SHA-256 or SHA-512 as crypt(5) writes it")
}

/// Lets this user in, and nobody else: root has no password in the ramdisk otherwise.
///
/// There is no shadow(5): the login of the ramdisk takes the line of root there for everybody who has its number.
///
/// # Errors
/// The file cannot be written.
pub fn let_in(root: &Path, hash: &str) -> Result<()> {
    let (path, new) = (root.join("etc/passwd"), root.join("etc/passwd.new"));
    let passwd = format!("root:*:0:0:root:/root:/bin/sh\n{USER}:{hash}:0:0:{USER}:/root:/bin/sh\n");
    let write = || -> std::io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(passwd.as_bytes())?;
        fs::rename(&new, &path)
    };
    write().context(Phase::Control, || "let the rescue user in")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::MetadataExt;

    /// As Ironic 39 sends it.
    const HASH: &str = "$5$Xl0MbZMLvyuVXNZb$lc3L5j9I3lUnHJzjdbg.hY9rBq6kZNJlv61oVjhnFE6";

    #[test]
    fn only_a_hash_lets_somebody_in() {
        let given = |password: Value, hashed: Value| {
            let params = json!({"rescue_password": password, "hashed": hashed});
            hash(params.as_object().unwrap()).map(str::to_owned).map_err(|fault| fault.details)
        };
        assert_eq!(given(json!(HASH), json!(true)).unwrap(), HASH);
        assert!(given(json!(HASH), json!(false)).unwrap_err().contains("not hashed"));
        for wrong in
            [json!("secret"), json!(""), json!(7), json!("$5$a:b$c"), json!("$5$a$b\nroot::0"), json!("$1$a$b")]
        {
            assert!(given(wrong.clone(), json!(true)).unwrap_err().contains("nobody is let in"), "{wrong}");
        }
        assert!(hash(&Map::new()).is_err());
    }

    #[test]
    fn root_without_a_password_is_no_way_in_any_more() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/passwd"), "root::0:0:root:/root:/bin/sh\n").unwrap();
        let_in(dir.path(), HASH).unwrap();
        let passwd = fs::read_to_string(dir.path().join("etc/passwd")).unwrap();
        let expected = format!("root:*:0:0:root:/root:/bin/sh\nrescue:{HASH}:0:0:rescue:/root:/bin/sh\n");
        assert_eq!(passwd, expected);
        assert_eq!(fs::metadata(dir.path().join("etc/passwd")).unwrap().mode() & 0o777, 0o600);
    }
}
