//! Which distribution the tree is of. What differs between them is a row of a table.

use crate::target::Root;

/// What a family of distributions has in common.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// In sentences.
    pub name: &'static str,
    /// `ID` of os-release, or a word of `ID_LIKE`.
    ids: &'static [&'static str],
    /// Files that only this family has.
    markers: &'static [&'static str],
    /// Where mdadm looks for its arrays.
    pub mdadm_conf: &'static str,
    /// Services that make SSH host keys at boot, where there are none. The packages of the others do it when they are installed.
    pub host_key_services: &'static [&'static str],
}

/// The first one is for what is unknown.
static FAMILIES: [Family; 6] = [
    Family { name: "generic", ids: &[], markers: &[], mdadm_conf: "/etc/mdadm.conf", host_key_services: &[] },
    Family {
        name: "Debian",
        ids: &["debian", "ubuntu"],
        markers: &["/etc/debian_version"],
        mdadm_conf: "/etc/mdadm/mdadm.conf",
        host_key_services: &[],
    },
    Family {
        name: "Red Hat",
        ids: &["rhel", "fedora", "centos", "almalinux", "rocky", "ol", "amzn"],
        markers: &["/etc/redhat-release"],
        mdadm_conf: "/etc/mdadm.conf",
        host_key_services: &["/usr/lib/systemd/system/sshd-keygen@.service"],
    },
    Family {
        name: "SUSE",
        ids: &["suse", "opensuse", "sles", "opensuse-leap", "opensuse-tumbleweed", "sle-micro"],
        markers: &["/etc/SuSE-release"],
        mdadm_conf: "/etc/mdadm.conf",
        host_key_services: &["/usr/sbin/sshd-gen-keys-start"],
    },
    Family {
        name: "Arch",
        ids: &["arch", "archarm", "manjaro"],
        markers: &["/etc/arch-release"],
        mdadm_conf: "/etc/mdadm.conf",
        host_key_services: &["/usr/lib/systemd/system/sshdgenkeys.service"],
    },
    Family {
        name: "Alpine",
        ids: &["alpine"],
        markers: &["/etc/alpine-release"],
        mdadm_conf: "/etc/mdadm.conf",
        host_key_services: &["/etc/init.d/sshd"],
    },
];

/// Where os-release lies (os-release(5)).
const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

/// A distribution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// `ID` of os-release; `linux` where there is none.
    pub id: String,
    /// `VERSION_ID`; empty where there is none.
    pub version: String,
    pub family: &'static Family,
    /// Why it is treated as an unknown one.
    pub doubt: Option<String>,
}

impl Distribution {
    /// As the image wants to be treated, where it says so.
    pub fn named(root: &Root, name: Option<&str>) -> Distribution {
        let found = Distribution::of(root);
        let Some(name) = name.filter(|name| *name != found.id) else { return found };
        match FAMILIES.iter().find(|family| family.ids.contains(&name)) {
            Some(family) => Distribution { id: name.to_owned(), family, doubt: None, ..found },
            None => {
                let doubt =
                    format!("the image wants to be treated as {name}, which is no distribution that drophammer knows");
                Distribution { doubt: Some(doubt), ..found }
            }
        }
    }

    pub fn of(root: &Root) -> Distribution {
        let text = OS_RELEASE.into_iter().find_map(|path| root.read(path).ok());
        let (id, version) = match &text {
            Some(text) => (value(text, "ID"), value(text, "VERSION_ID").unwrap_or_default()),
            None => (None, String::new()),
        };
        let unknown = || "linux".to_owned();
        let family = match &text {
            Some(text) => by_words(text).and_then(|said| by_markers(root, said)),
            None => Err(format!("neither {} can be read", OS_RELEASE.join(" nor "))),
        };
        let (family, doubt) = match family {
            Ok(family) => (family, None),
            Err(why) => (&FAMILIES[0], Some(format!("{why}: the image is treated as an unknown Linux"))),
        };
        let id = id.filter(|id| is_name(id)).unwrap_or_else(unknown);
        Distribution { id, version, family, doubt }
    }
}

/// It becomes a name of directories, and a word of boot entries (os-release(5) says what may be in it).
fn is_name(id: &str) -> bool {
    id.len() <= 64
        && !id.starts_with('.')
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// By `ID`; of a distribution that is unknown, by what it says that it is like.
fn by_words(text: &str) -> Result<&'static Family, String> {
    let known = |word: &str| FAMILIES.iter().find(|family| family.ids.contains(&word));
    let id = value(text, "ID").unwrap_or_default();
    if let Some(family) = known(&id) {
        return Ok(family);
    }
    let like = value(text, "ID_LIKE").unwrap_or_default();
    let mut families: Vec<&Family> = like.split_whitespace().filter_map(known).collect();
    families.dedup();
    match families[..] {
        [family] => Ok(family),
        [] if id.is_empty() => Err("os-release of the image has no ID".to_owned()),
        [] => Err(format!("{id} is no distribution that drophammer knows")),
        _ => Err(format!("{id} says that it is like {like}, which are of several families")),
    }
}

/// A file that only another family has makes a doubt.
fn by_markers(root: &Root, said: &'static Family) -> Result<&'static Family, String> {
    let others = FAMILIES.iter().filter(|family| *family != said).flat_map(|family| family.markers);
    match others.into_iter().find(|marker| root.has(marker)) {
        Some(marker) => Err(format!("os-release of the image is of {}, but there is {marker} too", said.name)),
        None => Ok(said),
    }
}

/// The value of a shell assignment, without its quotes.
fn value(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::finish::testing::tree;

    #[test]
    fn families_are_found_by_their_words() {
        for (text, family, id) in [
            ("ID=debian\nVERSION_ID=\"13\"\n", "Debian", "debian"),
            ("NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n", "Debian", "ubuntu"),
            ("ID=\"almalinux\"\nID_LIKE=\"rhel centos fedora\"\n", "Red Hat", "almalinux"),
            ("ID=\"rhel\"\nID_LIKE=\"fedora\"\n", "Red Hat", "rhel"),
            ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", "SUSE", "opensuse-leap"),
            ("ID='garuda'\nID_LIKE=arch\n", "Arch", "garuda"),
            ("ID=alpine\n", "Alpine", "alpine"),
            ("ID=raspbian\nID_LIKE=debian\n", "Debian", "raspbian"),
        ] {
            let (_dir, root) = tree(&[("etc/os-release", text)]);
            let found = Distribution::of(&root);
            assert_eq!((found.family.name, found.id.as_str(), found.doubt.as_deref()), (family, id, None), "{text}");
        }
    }

    #[test]
    fn what_is_unknown_or_of_two_kinds_is_generic_with_a_sentence() {
        for (files, id, why) in [
            (&[][..], "linux", "neither /etc/os-release nor /usr/lib/os-release can be read: "),
            (&[("etc/os-release", "ID=nixos\n")], "nixos", "nixos is no distribution that drophammer knows: "),
            (&[("etc/os-release", "ID=../x\n")], "linux", "../x is no distribution that drophammer knows: "),
            (&[("etc/os-release", "NAME=x\n")], "linux", "os-release of the image has no ID: "),
            (&[("etc/os-release", "ID=x\nID_LIKE=\"debian fedora\"\n")], "x", "x says that it is like debian fedora, "),
            (
                &[("etc/os-release", "ID=debian\n"), ("etc/redhat-release", "Fedora\n")],
                "debian",
                "os-release of the image is of Debian, but there is /etc/redhat-release too: ",
            ),
        ] {
            let (_dir, root) = tree(files);
            let found = Distribution::of(&root);
            assert_eq!((found.family.name, found.id.as_str()), ("generic", id));
            let doubt = found.doubt.unwrap();
            assert!(doubt.starts_with(why) && doubt.ends_with("treated as an unknown Linux"), "{doubt}");
        }
        let (dir, root) = tree(&[]);
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("../usr/lib/os-release", dir.path().join("etc/os-release")).unwrap();
        assert!(Distribution::of(&root).doubt.is_some());
        root.write("/usr/lib/os-release", 0o644, b"ID=debian\nVERSION_ID=\"12\"\n").unwrap();
        let found = Distribution::of(&root);
        assert_eq!((found.family.name, found.version.as_str()), ("Debian", "12"));
    }
}
