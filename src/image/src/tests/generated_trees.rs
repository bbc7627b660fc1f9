//! Generated trees are unpacked unchanged.

use super::*;
use proptest::prelude::*;

/// Entry of a generated tree.
#[derive(Debug, Clone)]
enum Node {
    File(Vec<u8>, u32),
    Symlink(String),
    Directory(u32),
}

fn nodes() -> impl Strategy<Value = BTreeMap<String, Node>> {
    let node = prop_oneof![
        (proptest::collection::vec(any::<u8>(), 0..3000), 0o400..0o1000_u32).prop_map(|(c, m)| Node::File(c, m)),
        "[a-z./]{1,150}".prop_map(Node::Symlink),
        (0o700..0o1000_u32).prop_map(Node::Directory),
    ];
    let path = "[a-c]{1,2}(/[a-c]{1,2}){0,3}|[a-c]{90,120}(/[a-c]{100,150}){0,2}";
    proptest::collection::btree_map(path, node, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_tree_of_the_tar_crate_is_unpacked_unchanged(nodes in nodes(), mtime in 0..2_000_000_000_u64) {
        let mut builder = tar::Builder::new(Vec::new());
        let header = |kind, mode: u32, size: usize| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_mtime(mtime);
            header.set_uid(nix::unistd::getuid().as_raw().into());
            header.set_gid(nix::unistd::getgid().as_raw().into());
            header.set_size(size as u64);
            header
        };
        let mut expected = BTreeMap::new();
        let mut directories = std::collections::BTreeSet::new();
        for (path, node) in &nodes {
            // Skip paths that are already directories, and paths below a file or symlink.
            let above_a_file = Path::new(path).ancestors().skip(1).any(|parent| expected.contains_key(parent));
            if above_a_file || directories.contains(Path::new(path)) {
                continue;
            }
            match node {
                Node::File(content, mode) => {
                    builder.append_data(&mut header(tar::EntryType::Regular, *mode, content.len()), path, &content[..])?;
                }
                Node::Symlink(target) => {
                    builder.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), path, target)?;
                }
                Node::Directory(mode) => {
                    builder.append_data(&mut header(tar::EntryType::Directory, *mode, 0), path, &b""[..])?;
                    directories.insert(PathBuf::from(path));
                }
            }
            directories.extend(Path::new(path).ancestors().skip(1).map(Path::to_owned));
            if !matches!(node, Node::Directory(_)) {
                expected.insert(PathBuf::from(path), node.clone());
            }
        }
        let root = burn_tar(&builder.into_inner()?, "zstd");
        let seen = look(root.path(), true);
        for (path, node) in &expected {
            let is = &seen[path];
            prop_assert_eq!(is.mtime, (mtime as i64, 0));
            match node {
                Node::File(content, mode) => {
                    prop_assert_eq!(is.content.as_ref(), Some(content));
                    prop_assert_eq!(is.mode & 0o7777, *mode);
                }
                Node::Symlink(target) => prop_assert_eq!(is.target.as_deref(), Some(Path::new(target))),
                Node::Directory(_) => {}
            }
        }
        let files = seen.values().filter(|seen| seen.content.is_some() || seen.target.is_some()).count();
        prop_assert_eq!(files, expected.len());
    }
}
