//! Unusual trees: every packed tree is unpacked unchanged.

use super::*;
use proptest::prelude::*;
use proptest::{collection, option};

#[derive(Debug, Clone)]
enum Node {
    /// Content, mode, and length of a hole before the content.
    File(Vec<u8>, u32, Option<u64>),
    Directory(u32),
    Symlink(String),
    HardLink(usize),
}

#[derive(Debug, Clone)]
struct Named {
    path: Vec<u8>,
    node: Node,
    time: (i64, i64),
    xattr: Option<(String, Vec<u8>)>,
}

fn names() -> impl Strategy<Value = Vec<Named>> {
    let bytes = || collection::vec(any::<u8>(), 0..3000);
    let node = prop_oneof![
        3 => (bytes(), 0o400..0o1000_u32, option::of(1..300_000_u64)).prop_map(|(c, m, h)| Node::File(c, m, h)),
        1 => (0o700..0o1000_u32).prop_map(Node::Directory),
        1 => "[a-z./]{1,150}".prop_map(Node::Symlink),
        1 => any::<usize>().prop_map(Node::HardLink),
    ];
    let name = prop_oneof![
        4 => "[a-c]{1,2}".prop_map(String::into_bytes),
        1 => "[a-c]{90,200}".prop_map(String::into_bytes),
        1 => collection::vec(any::<u8>().prop_filter("in a name", |byte| ![0, b'/', b'.'].contains(byte)), 1..120),
    ];
    let path = collection::vec(name, 1..4).prop_map(|names| names.join(&b'/'));
    let time = (-2_000_000_000..5_000_000_000_i64, prop_oneof![Just(0), 0..1_000_000_000_i64]);
    let xattr = option::of(("[a-z=%. ]{1,20}", collection::vec(any::<u8>(), 0..100)));
    let named = (path, node, time, xattr).prop_map(|(path, node, time, xattr)| Named { path, node, time, xattr });
    collection::vec(named, 1..25)
}

/// Creates the files. Names that conflict with earlier ones are omitted.
fn make(root: &Path, names: &[Named]) {
    use nix::sys::stat::{UtimensatFlags, utimensat};
    use nix::sys::time::TimeSpec;
    let mut made: Vec<(PathBuf, &Named)> = Vec::new();
    for named in names {
        let path = root.join(std::ffi::OsStr::from_bytes(&named.path));
        if path.symlink_metadata().is_ok() || fs::create_dir_all(path.parent().unwrap()).is_err() {
            continue;
        }
        let mode = |mode: u32| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        match &named.node {
            Node::File(content, bits, hole) => {
                let file = File::create(&path).unwrap();
                file.write_all_at(content, hole.unwrap_or(0)).unwrap();
                file.set_len(content.len() as u64 + 2 * hole.unwrap_or(0)).unwrap();
                mode(*bits);
            }
            Node::Directory(bits) => {
                fs::create_dir(&path).unwrap();
                mode(*bits);
            }
            Node::Symlink(target) => symlink(target, &path).unwrap(),
            Node::HardLink(number) => match made.get(number % made.len().max(1)) {
                Some((other, _)) if !other.is_dir() => fs::hard_link(other, &path).unwrap(),
                _ => continue,
            },
        }
        if let (Some((name, value)), Node::File(..) | Node::Directory(_)) = (&named.xattr, &named.node) {
            // Not every filesystem for temporary files supports xattrs.
            let _ = xattr::set(&path, format!("user.{name}"), value);
        }
        made.push((path, named));
    }
    for (path, Named { time, .. }) in made.iter().rev() {
        let time = TimeSpec::new(time.0, time.1);
        utimensat(nix::fcntl::AT_FDCWD, path, &time, &time, UtimensatFlags::NoFollowSymlink).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_tree_is_packed_and_burned_unchanged(names in names()) {
        let (tree, out, root) = (tempfile::tempdir()?, tempfile::tempdir()?, tempfile::tempdir()?);
        make(tree.path(), &names);
        // `pack_image` rejects an empty directory, because its path is probably wrong.
        prop_assume!(fs::read_dir(tree.path())?.next().is_some());
        pack_image(&with_key(options(tree.path(), &out.path().join("image.tar.zst")), "one.key")).unwrap();
        burn(&serve(out.path()), "one.pub", root.path()).unwrap();
        assert_same(&look(tree.path(), true), &look(root.path(), true), "burned");
    }
}
