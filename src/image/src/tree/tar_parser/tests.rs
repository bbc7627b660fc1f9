//! Parses handmade tars, both valid and invalid.

use super::super::tar_member::MemberKind;
use super::*;
use crate::testing::{Tar, reader};

fn list(tar: &[u8]) -> io::Result<Vec<(String, MemberKind, MemberAttributes)>> {
    let mut members = TarParser::new(reader(tar, 700));
    let mut seen = Vec::new();
    while let Some(member) = members.next_member()? {
        seen.push((String::from_utf8_lossy(&member.path).into_owned(), member.kind, member.attributes));
    }
    Ok(seen)
}

fn error(tar: &[u8]) -> String {
    list(tar).unwrap_err().to_string()
}

#[test]
fn pax_records_and_gnu_names_override_the_header() {
    let tar = Tar::new()
        .raw("", b'L', b"gnu-name\0", |_| ())
        .raw("", b'K', b"gnu-link\0", |_| ())
        .symlink("header", "header-link")
        .raw("", b'L', b"pax-name\0", |_| ())
        .pax(b'x', &[b"path=pax-name", b"uid=70000", b"mtime=5.25", b"SCHILY.xattr.user.a=1\n2"])
        .file("header", b"x")
        .file("plain", b"")
        .end();
    let seen = list(&tar).unwrap();
    assert_eq!((seen[0].0.as_str(), &seen[0].1), ("gnu-name", &MemberKind::Symlink(b"gnu-link".to_vec())));
    let (name, _, attributes) = &seen[1];
    assert_eq!((name.as_str(), attributes.uid, attributes.mtime), ("pax-name", 70000, (5, 250_000_000)));
    assert_eq!(attributes.xattrs, [("user.a".into(), b"1\n2".to_vec())]);
    assert_eq!((seen[2].0.as_str(), seen[2].2.mtime), ("plain", (1_000_000_000, 0)));
}

#[test]
fn size_record_within_a_value_is_ignored() {
    let tar = Tar::new()
        .pax(b'x', &[b"SCHILY.xattr.user.a=\n10 size=0\n\n", b"size=3"])
        .raw("a", b'0', b"abc", |header| header.set_size(3))
        .file("b", b"")
        .end();
    let seen = list(&tar).unwrap();
    assert_eq!((&seen[0].1, seen[1].0.as_str()), (&MemberKind::File { size: 3 }, "b"));
}

#[test]
fn global_records_apply_until_replaced() {
    let tar = Tar::new()
        .pax(b'g', &[b"uid=5", b"gid=6"])
        .file("a", b"")
        .pax(b'x', &[b"uid=7"])
        .file("b", b"")
        .pax(b'g', &[b"uid=8"])
        .file("c", b"")
        .end();
    let ids: Vec<_> = list(&tar).unwrap().into_iter().map(|(_, _, has)| (has.uid, has.gid)).collect();
    assert_eq!(ids, [(5, 6), (7, 6), (8, 6)]);
}

#[test]
fn times_before_1970_are_negative_binary_numbers() {
    let tar = Tar::new().raw("a", b'0', b"", |header| header.set_mtime((-86400_i64).cast_unsigned())).end();
    let mut binary = tar;
    // set_mtime pads with zeros, but GNU tar pads with the sign.
    binary[136..140].fill(0xff);
    let sum: u32 =
        binary[..512].iter().enumerate().map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) }).sum();
    binary[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert_eq!(list(&binary).unwrap()[0].2.mtime, (-86400, 0));
}

#[test]
fn old_file_member_with_a_slash_is_a_directory() {
    let tar = Tar::new().raw("etc/", b'0', b"", |header| header.as_mut_bytes()[156] = 0).end();
    assert_eq!(list(&tar).unwrap()[0].1, MemberKind::Directory);
}

#[test]
fn truncation_is_detected_at_every_block() {
    let content = Tar::new().pax(b'x', &[b"uid=5"]).file("a", &[1; 700]).directory("b").0;
    let whole = [&content[..], &[0; 1024]].concat();
    assert_eq!(list(&whole).unwrap().len(), 2);
    for length in (0..whole.len()).step_by(128) {
        let error = error(&whole[..length]);
        assert!(error.contains("without end-of-archive blocks"), "{length}: {error}");
    }
}

#[test]
fn only_zeros_may_follow_the_end() {
    let tar = || Tar::new().file("a", b"");
    let padded = [tar().end(), vec![0; 10240]].concat();
    assert_eq!(list(&padded).unwrap().len(), 1);
    for tail in [&b"x"[..], &[&[0; 600][..], b"x"].concat(), &tar().end()] {
        assert!(error(&[&tar().end()[..], tail].concat()).contains("unexpected data after the end"));
    }
    let one_zero_block = [tar().0, vec![0; 512], tar().end()].concat();
    assert!(error(&one_zero_block).contains("unexpected data after the end"));
}

#[test]
fn refuses_malformed_archives() {
    let huge = vec![b'x'; (EXTENSION_BYTES + 1) as usize];
    let half = [b"comment=".to_vec(), vec![b'x'; 40_000]].concat();
    let other_half = [b"other=".to_vec(), vec![b'x'; 40_000]].concat();
    let as_type = |kind| Tar::new().raw("a", kind, b"", |_| ());
    let cases: Vec<(Tar, &str)> = vec![
        (Tar::new().file("a", b"").raw("b", b'0', b"", |_| ()), ""),
        (Tar(vec![b'x'; 512]), "wrong checksum"),
        (Tar::new().raw("", b'L', &huge, |_| ()).file("a", b""), "at most 1 MiB"),
        (Tar::new().raw("", b'x', &huge, |_| ()).file("a", b""), "at most 1 MiB"),
        (Tar::new().pax(b'g', &[&half]).pax(b'g', &[&other_half]).file("a", b""), "larger than 64 KiB"),
        (Tar::new().raw("", b'x', b"junk", |_| ()).file("a", b""), "malformed record"),
        (Tar::new().pax(b'x', &[b"uid=1"]).pax(b'x', &[b"uid=2"]).file("a", b""), "two extended headers"),
        (Tar::new().raw("", b'L', b"a", |_| ()).raw("", b'L', b"b", |_| ()).file("a", b""), "two extended"),
        (Tar::new().pax(b'x', &[b"uid=1"]), "not followed by a member"),
        (Tar::new().pax(b'x', &[b"uid=-1"]).file("a", b""), "a: the PAX header contains uid"),
        (Tar::new().pax(b'x', &[b"uid=4294967295"]).file("a", b""), "a: the member's uid 4294967295 is larger"),
        (Tar::new().pax(b'x', &[b"mtime=x"]).file("a", b""), "which is not a time"),
        (Tar::new().pax(b'x', &[b"size=18446744073709551615"]).file("a", b""), "exceeds the maximum size of a file"),
        (Tar::new().pax(b'x', &[b"GNU.sparse.major=2", b"GNU.sparse.realsize=9"]).file("a", b""), "not supported"),
        (Tar::new().pax(b'x', &[b"GNU.sparse.major=1", b"GNU.sparse.minor=0"]).file("a", b""), "not supported"),
        (as_type(b'N'), "a: the tar archive is malformed before byte 512: the member's type 'N' is not supported"),
        (Tar::new().raw("a", b'V', b"content", |_| ()), "the member's type 'V' is not supported"),
        (as_type(b'M'), "the member's type 'M' is not supported"),
        (Tar::new().raw("a", b'2', b"content", |_| ()), "not a regular file, but has 7 bytes"),
        (Tar::new().raw("a", b'1', b"content", |_| ()), "not a regular file, but has 7 bytes"),
        (Tar::new().raw("a", b'5', b"content", |_| ()), "not a regular file, but has 7 bytes"),
        (Tar::new().raw("a", b'0', b"", |header| header.as_old_mut().mode = *b"rw-r--r-"), "in different ways"),
    ];
    for (tar, says) in cases {
        match list(&tar.end()) {
            Ok(_) => assert_eq!(says, ""),
            Err(error) => assert!(!says.is_empty() && error.to_string().contains(says), "{says}: {error}"),
        }
    }
}

#[test]
fn refuses_sizes_that_other_readers_would_interpret_differently() {
    let with_size = |size: [u8; 12]| {
        let tar = Tar::new().raw("a", b'0', b"", |header| header.as_old_mut().size = size).end();
        error(&tar)
    };
    // In base 256: 2^63, 2^64 (whose last eight bytes are zero), and a negative number.
    for size in [
        [0x80, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0],
        [0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        [0xff; 12],
        [0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert!(
            with_size(size).contains("the member's size exceeds the maximum size of a file"),
            "{size:?}: {}",
            with_size(size)
        );
    }
    for record in ["size=+1", "size=-1", "size= 1", "size=0x1"] {
        let tar = Tar::new().pax(b'x', &[record.as_bytes()]).raw("a", b'0', b"x", |_| ()).end();
        assert!(error(&tar).contains("which is not a number"), "{record}: {}", error(&tar));
    }
    let tar = Tar::new().raw("a", b'x', b"+13 size=100\n", |_| ()).file("b", b"").end();
    assert!(error(&tar).contains("malformed record"), "{}", error(&tar));
}

#[test]
fn empty_numbers_are_zero() {
    let nul = |header: &mut Header| {
        let fields = header.as_old_mut();
        (fields.uid, fields.gid, fields.mode, fields.mtime) = ([0; 8], [0; 8], [0; 8], [0; 12]);
    };
    let blank = |header: &mut Header| {
        let fields = header.as_old_mut();
        (fields.uid, fields.gid, fields.mtime) = (*b"       \0", *b"        ", [b' '; 12]);
    };
    let empty_size = |header: &mut Header| header.as_old_mut().size = [0; 12];
    let tar = Tar::new().raw("label", b'V', b"", nul).raw("d/", b'5', b"", empty_size).raw("a", b'0', b"x", nul);
    let tar = tar.raw("l", b'2', b"", nul).raw("b", b'0', b"y", blank).raw("empty", b'0', b"", empty_size);
    let members = list(&tar.end()).unwrap();
    let names: Vec<&str> = members.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["d/", "a", "l", "b", "empty"]);
    for (name, _, MemberAttributes { uid, gid, mtime, .. }) in &members[1..4] {
        assert_eq!((*uid, *gid, *mtime), (0, 0, (0, 0)), "{name}");
    }
    assert_eq!(members[1].2.mode, 0);
    let no_device = |header: &mut Header| header.as_mut_bytes()[329..345].fill(0);
    let device = list(&Tar::new().raw("null", b'3', b"", no_device).end()).unwrap();
    assert!(matches!(device[0].1, MemberKind::CharacterDevice { major: 0, minor: 0 }));
    // Readers differ in how they parse a size field of blanks.
    let blank_size = Tar::new().raw("a", b'0', b"", |header| header.as_old_mut().size = [b' '; 12]).end();
    assert!(error(&blank_size).contains("in different ways"), "{}", error(&blank_size));
}
