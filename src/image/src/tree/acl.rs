//! ACLs of members. ACLs in text form are converted to the extended attributes of the kernel. ACLs that a new file
//! inherits from the default ACL of its directory are removed, because the image does not contain them.

use super::pax::PaxRecords;
use super::tar_member::MemberAttributes;
use nix::errno::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Returns whether these attributes of a directory contain a default ACL, which new files in the directory would
/// inherit.
pub(crate) fn has_default_acl(attributes: &MemberAttributes) -> bool {
    attributes.xattrs.iter().any(|(name, _)| name == DEFAULT)
}

/// Returns whether the directory has a default ACL, which new files in the directory inherit.
///
/// # Errors
/// Returns the error of the filesystem.
pub(crate) fn inherits_acl(directory: impl AsFd) -> io::Result<bool> {
    match xattr::get(proc_path(directory, OsStr::new(".")), DEFAULT) {
        Ok(acl) => Ok(acl.is_some()),
        Err(error) if is_none(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the ACLs that a new file in `directory` has inherited.
///
/// # Errors
/// Returns the error of the filesystem.
pub(crate) fn remove_inherited(directory: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    let path = proc_path(directory, name);
    [ACCESS, DEFAULT].into_iter().try_for_each(|acl| match xattr::remove(&path, acl) {
        Err(error) if !is_none(&error) => Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
        _ => Ok(()),
    })
}

/// Returns a path in /proc for a name in an open directory. Such a path is needed because Linux before 6.13 does not
/// have getxattrat(2). The magic link in /proc refers to exactly this directory.
fn proc_path(directory: impl AsFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())).join(name)
}

/// Entry of an ACL: tag (`ACL_USER_OBJ` and so on in linux/posix_acl.h), id and permissions. Sorted entries are in the
/// order that the kernel requires.
type AclEntry = (u16, u32, u16);

const UNDEFINED_ID: u32 = u32::MAX;

/// Adds the ACLs that `tar --acls` and bsdtar store as text in separate records. If the member also has an ACL as an
/// extended attribute, that attribute is used instead. Returns a message for each ACL that is not supported. ACLs with
/// user names instead of ids are not supported, because the image's user list is not available here.
pub(crate) fn add_text_acls(records: &PaxRecords, attributes: &mut MemberAttributes) -> Vec<String> {
    let mut lost = Vec::new();
    if records.get("SCHILY.acl.ace").is_some() {
        lost.push("Linux does not support NFSv4 ACLs".to_owned());
    }
    for (key, name) in [("SCHILY.acl.access", ACCESS), ("SCHILY.acl.default", DEFAULT)] {
        let is_there = attributes.xattrs.iter().any(|(there, _)| there == name);
        let Some(text) = records.get(key).filter(|_| !is_there) else { continue };
        match parse_entries(&String::from_utf8_lossy(text)) {
            // An access ACL with only the entries of owner, group and others is equivalent to the mode. It is skipped,
            // because the kernel would store only the mode.
            Ok(entries) if name == ACCESS && entries.iter().all(|(tag, ..)| [1, 4, 32].contains(tag)) => {}
            Ok(entries) => {
                if name == ACCESS {
                    attributes.mode = attributes.mode & 0o7000 | mode_with_acl(&entries);
                }
                attributes.xattrs.push((name.into(), encode_acl(&entries)));
            }
            Err(entry) => {
                if name == ACCESS {
                    attributes.mode &= !0o070 | group_permissions(text) << 3;
                }
                lost.push(format!(
                    "{key} contains the unsupported entry `{entry}`; expected a numeric id and permissions"
                ));
            }
        }
    }
    lost
}

/// Returns the permission bits that stat(2) shows for a file with this ACL: the group bits contain the permissions of
/// the mask. The mode in headers written by bsdtar differs: its group bits contain the permissions of the owning group.
fn mode_with_acl(entries: &[AclEntry]) -> u32 {
    let may = |tag| entries.iter().find(|entry| entry.0 == tag).map(|entry| u32::from(entry.2));
    may(1).unwrap_or(0) << 6 | may(16).or(may(4)).unwrap_or(0) << 3 | may(32).unwrap_or(0)
}

/// Returns the owning group's permissions in an ACL that cannot be restored. The mode of the member contains the mask
/// of the ACL instead of these permissions. The mask may grant more permissions, which the group must not obtain if
/// the ACL is not restored.
fn group_permissions(text: &[u8]) -> u32 {
    let text = String::from_utf8_lossy(text);
    let group = split_entries(&text).filter_map(parse_entry).find(|(tag, ..)| *tag == 4);
    group.map_or(0, |(_, _, rights)| rights.into())
}

/// Splits an ACL in text form into entries, which bsdtar separates by commas, and GNU tar by newlines.
fn split_entries(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty())
}

/// Parses all entries of an ACL. The error is the text of the first invalid entry.
fn parse_entries(text: &str) -> Result<Vec<AclEntry>, String> {
    let mut entries = split_entries(text)
        .map(|part| parse_entry(part).ok_or_else(|| part.to_owned()))
        .collect::<Result<Vec<_>, _>>()?;
    entries.sort();
    Ok(entries)
}

/// Parses an entry: `user::rwx`, `user:7:r--`, `group:staff:r-x:50`, `mask:r-x`; acl_to_text(3) may append the
/// effective permissions after a `#`.
fn parse_entry(text: &str) -> Option<AclEntry> {
    let fields: Vec<&str> = text.split('#').next()?.trim_end().split(':').collect();
    let (tag, id, rights) = match fields[..] {
        ["user", "", rights] => (1, UNDEFINED_ID, rights),
        ["user", id, rights] | ["user", _, rights, id] => (2, parse_id(id)?, rights),
        ["group", "", rights] => (4, UNDEFINED_ID, rights),
        ["group", id, rights] | ["group", _, rights, id] => (8, parse_id(id)?, rights),
        ["mask", rights] | ["mask", "", rights] => (16, UNDEFINED_ID, rights),
        ["other", rights] | ["other", "", rights] => (32, UNDEFINED_ID, rights),
        _ => return None,
    };
    let &[read, write, execute] = rights.as_bytes() else { return None };
    let bit = |byte, letter, bit| if byte == letter { Some(bit) } else { (byte == b'-').then_some(0) };
    Some((tag, id, bit(read, b'r', 4)? | bit(write, b'w', 2)? | bit(execute, b'x', 1)?))
}

fn parse_id(id: &str) -> Option<u32> {
    id.parse().ok().filter(|id| *id != UNDEFINED_ID)
}

/// Encodes an ACL (linux/posix_acl_xattr.h): version 2, then tag, permissions and id of each entry.
fn encode_acl(entries: &[AclEntry]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, id, rights) in entries {
        value.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
    }
    value
}

/// Returns whether the error means that the file has no such ACL, or the filesystem does not support ACLs.
fn is_none(error: &io::Error) -> bool {
    [Errno::ENODATA, Errno::EOPNOTSUPP].map(|errno| Some(errno as i32)).contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pax_record;
    use std::ffi::OsString;

    #[test]
    fn acl_entries_are_parsed_in_every_form_and_sorted() {
        let all = vec![
            (1, UNDEFINED_ID, 6),
            (2, 1, 4),
            (2, 1234, 6),
            (4, UNDEFINED_ID, 4),
            (8, 77, 1),
            (16, UNDEFINED_ID, 7),
            (32, UNDEFINED_ID, 0),
        ];
        for text in [
            "user::rw-,group::r--,other::---,user:daemon:r--:1,user:1234:rw-,group:77:--x,mask::rwx",
            "user::rw-\nuser:1:r--\nuser:1234:rw-\t#effective:r--\ngroup::r--\ngroup:77:--x\nmask:rwx\nother:---\n",
            " user::rw-, user:1234:rw-:1234,user:1:r--,group::r--,group:lp:--x:77,mask::rwx,other::---,",
        ] {
            assert_eq!(parse_entries(text), Ok(all.clone()), "{text}");
        }
    }

    #[test]
    fn acl_entry_without_number_or_permissions_is_named() {
        for part in [
            "user:lisa:rw-",
            "group:staff:r-x:many",
            "user:4294967295:r--",
            "user:-1:r--",
            "user:7:rx",
            "user:7:rwxt",
            "user:7:wrx",
            "user:7",
            "owner@:rwx::allow",
            "mask:7:rwx",
            "user:7:rwx:8:9",
            "rwx",
        ] {
            assert_eq!(parse_entries(&format!("user::rwx,{part},other::r--")), Err(part.to_owned()));
        }
    }

    fn added(records: &[(&str, &str)], xattrs: Vec<(OsString, Vec<u8>)>) -> (u32, Vec<OsString>, Vec<String>) {
        let record = |(key, value): &(&str, &str)| pax_record(format!("{key}={value}").as_bytes());
        let text: Vec<u8> = records.iter().flat_map(record).collect();
        let mut attributes = MemberAttributes { mode: 0o4700, uid: 0, gid: 0, mtime: (0, 0), xattrs };
        let lost = add_text_acls(&PaxRecords::parse(&text).unwrap(), &mut attributes);
        (attributes.mode, attributes.xattrs.into_iter().map(|(name, _)| name).collect(), lost)
    }

    #[test]
    fn only_acls_that_the_member_lacks_are_added() {
        let three = "user::rwx,group::r-x,other::r-x";
        let five = "user::rwx,user:7:r--,group::r-x,mask::rwx,other::r-x";
        let names = |names: &[&str]| names.iter().map(OsString::from).collect::<Vec<_>>();
        let (access, default) = (("SCHILY.acl.access", five), ("SCHILY.acl.default", three));
        assert_eq!(added(&[access, default], vec![]), (0o4775, names(&[ACCESS, DEFAULT]), vec![]));
        assert_eq!(added(&[("SCHILY.acl.access", three), default], vec![]), (0o4700, names(&[DEFAULT]), vec![]));
        assert_eq!(added(&[access], vec![(ACCESS.into(), vec![1])]), (0o4700, names(&[ACCESS]), vec![]));
        let bad =
            "SCHILY.acl.default contains the unsupported entry `user:lisa:rwx`; expected a numeric id and permissions"
                .to_owned();
        assert_eq!(added(&[("SCHILY.acl.default", "user:lisa:rwx")], vec![]), (0o4700, names(&[]), vec![bad]));
        let named = "user::rwx,user:lisa:rwx,group::r--,mask::rwx,other::---";
        for (text, mode) in [(named, 0o4700), (&named.replace("group::r--", ""), 0o4700)] {
            assert_eq!(added(&[("SCHILY.acl.access", text)], vec![]).0, mode, "{text}");
        }
        assert_eq!(added(&[("SCHILY.acl.ace", "owner@:r::allow")], vec![]).2.len(), 1);
    }
}
