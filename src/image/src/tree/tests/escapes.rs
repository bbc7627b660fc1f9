//! Tars that try to escape from the root, with each type of member and each field that can contain a name.

use super::fuzz::outside;
use super::*;

/// Adds a member with this name.
type Make = fn(Tar, &str) -> Tar;

const MAKES: [(&str, Make); 9] = [
    ("file", |tar, name| tar.file(name, b"x")),
    ("directory", |tar, name| tar.raw(name, b'5', b"", |header| header.set_mode(0o777))),
    ("symlink", |tar, name| tar.symlink(name, "x")),
    ("hard link", |tar, name| tar.file("mine", b"x").hard_link(name, "mine")),
    ("FIFO", |tar, name| tar.raw(name, b'6', b"", |_| ())),
    ("PAX", |tar, name| tar.pax(b'x', &[format!("path={name}").as_bytes()]).file("x", b"x")),
    ("global", |tar, name| tar.pax(b'g', &[format!("path={name}").as_bytes()]).file("x", b"x")),
    ("long name", |tar, name| tar.raw("", b'L', format!("{name}\0").as_bytes(), |_| ()).file("x", b"x")),
    ("sparse", |tar, name| {
        let name = format!("GNU.sparse.name={name}");
        let map: [&[u8]; 4] = [b"comment=a", b"GNU.sparse.numblocks=1", b"GNU.sparse.size=1", b"GNU.sparse.map=0,1"];
        tar.pax(b'x', &[&map[..], &[name.as_bytes()]].concat()).file("x", b"x")
    }),
];

/// Hard links inside the root to a target outside.
const LINKS: [(&str, Make); 4] = [
    ("hard link", |tar, target| tar.hard_link("mine", target)),
    ("hard link, PAX", |tar, target| {
        tar.pax(b'x', &[format!("linkpath={target}").as_bytes()]).raw("mine", b'1', b"", |_| ())
    }),
    ("hard link, long", |tar, target| {
        tar.raw("", b'K', format!("{target}\0").as_bytes(), |_| ()).raw("mine", b'1', b"", |_| ())
    }),
    ("hard link, through", |tar, target| tar.symlink("s", target).hard_link("mine", "s").file("mine", b"x")),
];

/// Returns tars that first create symlinks leading out of the root. Then each tar creates a member whose name or link
/// target leads out of the root, or applies a whiteout there.
fn attacks(outside: &str) -> Vec<(String, Tar)> {
    let led = || {
        let tar = Tar::new().symlink("out", outside).symlink("up", "../outside").symlink("chain", "out");
        tar.symlink("abs", &format!("{outside}/deep/../..")).directory("d").symlink("d/up", "../../outside")
    };
    let names = |absolute: &str| {
        let relative = ["../escaped", "a/../../outside/escaped", "d/up/escaped", "out/escaped", "chain/escaped"];
        let more = ["up/secret", "out/secret", "abs/outside/secret", "out/deep", ".."];
        [&relative[..], &more, &[absolute]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut attacks = Vec::new();
    for (kind, make) in MAKES {
        let name = |name: String| (format!("{kind} {name}"), make(led(), &name));
        attacks.extend(names(&format!("{outside}/escaped")).into_iter().map(name));
    }
    for (kind, make) in LINKS {
        let targets = ["../outside/secret", "out/secret", "chain/secret", &format!("{outside}/secret")];
        attacks.extend(targets.map(|target| (format!("{kind} {target}"), make(led(), target))));
    }
    for whiteout in [".wh...", ".wh..", "../.wh.outside", "out/.wh.secret", "out/.wh..wh..opq", "up/.wh.deep"] {
        attacks.push((whiteout.to_owned(), led().file(whiteout, b"")));
    }
    attacks
}

#[test]
fn no_member_escapes_the_root() {
    let directory = tempfile::tempdir().unwrap();
    let (root, beside) = (directory.path().join("root"), directory.path().join("outside"));
    fs::create_dir_all(beside.join("deep")).unwrap();
    fs::write(beside.join("secret"), "secret").unwrap();
    let mut count = 0;
    for layered in [false, true] {
        for (name, tar) in attacks(beside.to_str().unwrap()) {
            fs::create_dir(&root).unwrap();
            let before = outside(directory.path());
            let unpacked = unpack_into(&root, &tar.end(), 700, layered);
            assert_eq!(outside(directory.path()), before, "{name}: {unpacked:?}");
            let seen = look(&root, false);
            assert!(seen.values().all(|seen| seen.content.as_deref() != Some(&b"secret"[..])), "{name}");
            fs::remove_dir_all(&root).unwrap();
            count += 1;
        }
    }
    assert!(count > 200, "{count}");
}
