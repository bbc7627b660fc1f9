//! User `metal`, which metal-stack's os-installer creates for the owner of a machine.

use super::owner_login::{METAL, PASSWD, SHADOW, append_line};
use crate::NewRoot;
use common::error::Result;
use time::OffsetDateTime;

const GROUP: &str = "/etc/group";

/// Groups whose members may become root: on Debian and similar distributions, and on Red Hat and similar distributions.
const SUPERUSERS: [&str; 2] = ["sudo", "wheel"];

/// Creates the user with a home directory and without a valid password, if the user does not exist yet. Logs a warning
/// if the user cannot be created.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn create_metal_user(root: &NewRoot, now: OffsetDateTime, say: &dyn Fn(&str)) -> Result<()> {
    let (name, id) = METAL;
    let Ok(passwd) = root.read_text(PASSWD) else {
        say(&format!("WARNING: user {name} was not created: the image does not contain {PASSWD}"));
        return Ok(());
    };
    if let Some(line) =
        passwd.lines().find(|line| passwd_field(line, 0) == name || passwd_field(line, 2) == id.to_string())
    {
        if passwd_field(line, 0) != name {
            say(&format!(
                "WARNING: user {name} was not created: its UID {id} belongs to {owner}",
                owner = passwd_field(line, 0)
            ));
        }
        return Ok(());
    }
    let groups = root.read_text(GROUP).unwrap_or_default();
    let group = SUPERUSERS.iter().find_map(|group| groups.lines().find(|line| passwd_field(line, 0) == *group));
    let Some(group) = group else {
        say(&format!(
            "WARNING: user {name} was not created: the image does not contain any of the groups {groups}",
            groups = SUPERUSERS.join(", ")
        ));
        return Ok(());
    };
    let user = format!("{name}:x:{id}:{}:metal:/home/{name}:/bin/bash\n", passwd_field(group, 2));
    root.rewrite_file(PASSWD, 0o644, append_line(&passwd, &user).as_bytes())?;
    let shadow = root.read_text(SHADOW).unwrap_or_default();
    if !shadow.lines().any(|line| passwd_field(line, 0) == name) {
        let day = now.unix_timestamp() / (24 * 60 * 60);
        root.rewrite_file(SHADOW, 0o600, append_line(&shadow, &format!("{name}:!:{day}:0:99999:7:::\n")).as_bytes())?;
    }
    let home = format!("/home/{name}");
    if !root.path_exists(&home) {
        root.make_directory(&home)?;
        root.change_owner(&home, (id, passwd_field(group, 2).parse().unwrap_or(id)), 0o755)?;
    }
    say(&format!("user {name} was created with group {group}", group = passwd_field(group, 0)));
    Ok(())
}

fn passwd_field(line: &str, number: usize) -> &str {
    line.split(':').nth(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{capture_log, tree};
    use super::*;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-11-21 01:02:03 UTC);
    const ROOT: &str = "root:x:0:0:root:/root:/bin/bash";

    fn made(passwd: &str, group: &str) -> (String, Vec<String>) {
        let (_dir, root) = tree(&[("etc/passwd", passwd), ("etc/group", group), ("etc/shadow", "root:*:1:::::::\n")]);
        // The home directory already exists, because an unprivileged test cannot change the owner of a new one.
        root.make_directory("/home/metal").unwrap();
        let (done, lines) = capture_log(|say| create_metal_user(&root, NOW, say));
        done.unwrap();
        (root.read_text("/etc/passwd").unwrap() + &root.read_text("/etc/shadow").unwrap(), lines)
    }

    #[test]
    fn metal_user_is_created_once_in_the_sudo_group() {
        for (group, number) in [("root:x:0:\nsudo:x:27:\n", 27), ("wheel:x:10:\n", 10)] {
            let (files, lines) = made(ROOT, group);
            let user = format!("{ROOT}\nmetal:x:1000:{number}:metal:/home/metal:/bin/bash\n");
            assert_eq!(files, format!("{user}root:*:1:::::::\nmetal:!:20778:0:99999:7:::\n"));
            assert!(lines[0].starts_with("user metal was created with group "), "{lines:?}");
        }
        let there = "metal:x:1000:27::/home/metal:/bin/bash\n";
        let (files, lines) = made(there, "sudo:x:27:\n");
        assert!(files.starts_with(there) && !files.contains("metal:!") && lines.is_empty(), "{files}");
    }

    #[test]
    fn uncreatable_user_causes_a_warning() {
        for (passwd, group, says) in [
            ("ubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n", "sudo:x:27:\n", "its UID 1000 belongs to ubuntu"),
            (ROOT, "root:x:0:\n", "the image does not contain any of the groups sudo, wheel"),
        ] {
            let (files, lines) = made(passwd, group);
            assert!(files.starts_with(passwd) && !files.contains("metal"), "{files}");
            assert!(lines.len() == 1 && lines[0].starts_with("WARNING: ") && lines[0].ends_with(says), "{lines:?}");
        }
    }
}
