//! Detection of the target's distribution, and a table of the properties in which distributions differ.

use crate::NewRoot;

/// Family of distributions with common properties.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DistributionFamily {
    /// Name of the family, for messages.
    pub name: &'static str,
    /// Values of `ID` in os-release, or words in `ID_LIKE`, that identify the family.
    ids: &'static [&'static str],
    /// Files that exist only in distributions of this family.
    markers: &'static [&'static str],
    /// Path of mdadm's configuration.
    pub mdadm_conf: &'static str,
    /// Services that create missing SSH host keys at boot. Empty for families without such a service: there, packages
    /// create the host keys when they are installed.
    pub host_key_services: &'static [&'static str],
}

/// Known families; the first family is the fallback.
static FAMILIES: [DistributionFamily; 6] = [
    DistributionFamily {
        name: "generic",
        ids: &[],
        markers: &[],
        mdadm_conf: "/etc/mdadm.conf",
        host_key_services: &[],
    },
    DistributionFamily {
        name: "Debian",
        ids: &["debian", "ubuntu"],
        markers: &["/etc/debian_version"],
        mdadm_conf: "/etc/mdadm/mdadm.conf",
        host_key_services: &[],
    },
    DistributionFamily {
        name: "Red Hat",
        ids: &["rhel", "fedora", "centos", "almalinux", "rocky", "ol", "amzn"],
        markers: &["/etc/redhat-release"],
        mdadm_conf: "/etc/mdadm.conf",
        host_key_services: &["/usr/lib/systemd/system/sshd-keygen@.service"],
    },
    DistributionFamily {
        name: "SUSE",
        ids: &["suse", "opensuse", "sles", "opensuse-leap", "opensuse-tumbleweed", "sle-micro"],
        markers: &["/etc/SuSE-release"],
        mdadm_conf: "/etc/mdadm.conf",
        host_key_services: &["/usr/sbin/sshd-gen-keys-start"],
    },
    DistributionFamily {
        name: "Arch",
        ids: &["arch", "archarm", "manjaro"],
        markers: &["/etc/arch-release"],
        mdadm_conf: "/etc/mdadm.conf",
        host_key_services: &["/usr/lib/systemd/system/sshdgenkeys.service"],
    },
    DistributionFamily {
        name: "Alpine",
        ids: &["alpine"],
        markers: &["/etc/alpine-release"],
        mdadm_conf: "/etc/mdadm.conf",
        host_key_services: &["/etc/init.d/sshd"],
    },
];

/// Paths of os-release (os-release(5)).
const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

/// Distribution of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Distribution {
    /// Name of the distribution, from `ID` of os-release; `linux` if unknown.
    pub id: String,
    /// Version, from `VERSION_ID` of os-release; empty if os-release does not contain it.
    pub version: String,
    pub family: &'static DistributionFamily,
    /// Reason why the distribution is treated as unknown, or why the configured name is ignored; `None` if there is no
    /// such reason.
    pub doubt: Option<String>,
}

impl Distribution {
    /// Returns the distribution called `name`. Returns the detected distribution if `name` is `None` or not supported.
    pub(crate) fn detect_or_named(root: &NewRoot, name: Option<&str>) -> Distribution {
        let found = Distribution::detect(root);
        let Some(name) = name.filter(|name| *name != found.id) else { return found };
        match FAMILIES.iter().find(|family| family.ids.contains(&name)) {
            Some(family) => Distribution { id: name.to_owned(), family, doubt: None, ..found },
            None => {
                let doubt = format!("the image is configured as {name}, which is not a supported distribution");
                Distribution { doubt: Some(doubt), ..found }
            }
        }
    }

    pub(crate) fn detect(root: &NewRoot) -> Distribution {
        let text = OS_RELEASE.into_iter().find_map(|path| root.read_text(path).ok());
        let (id, version) = match &text {
            Some(text) => (read_assignment(text, "ID"), read_assignment(text, "VERSION_ID").unwrap_or_default()),
            None => (None, String::new()),
        };
        let unknown = || "linux".to_owned();
        let family = match &text {
            Some(text) => detect_by_os_release(text).and_then(|said| check_marker_files(root, said)),
            None => Err(format!("cannot read {}", OS_RELEASE.join(" or "))),
        };
        let (family, doubt) = match family {
            Ok(family) => (family, None),
            Err(why) => (&FAMILIES[0], Some(format!("{why}: the image is treated as an unknown Linux distribution"))),
        };
        let id = id.filter(|id| is_valid_id(id)).unwrap_or_else(unknown);
        Distribution { id, version, family, doubt }
    }
}

/// Returns whether the ID is valid (os-release(5)). Invalid IDs must not be used in directory names or boot entries.
fn is_valid_id(id: &str) -> bool {
    id.len() <= 64
        && !id.starts_with('.')
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Determines the family by `ID`, or for an unknown ID by `ID_LIKE`.
fn detect_by_os_release(text: &str) -> Result<&'static DistributionFamily, String> {
    let known = |word: &str| FAMILIES.iter().find(|family| family.ids.contains(&word));
    let id = read_assignment(text, "ID").unwrap_or_default();
    if let Some(family) = known(&id) {
        return Ok(family);
    }
    let like = read_assignment(text, "ID_LIKE").unwrap_or_default();
    let mut families: Vec<&DistributionFamily> = like.split_whitespace().filter_map(known).collect();
    families.dedup();
    match families[..] {
        [family] => Ok(family),
        [] if id.is_empty() => Err("the image's os-release does not contain ID".to_owned()),
        [] => Err(format!("{id} is not a supported distribution")),
        _ => Err(format!(
            "{id} cannot be assigned to a family of distributions: its ID_LIKE={like} lists several families"
        )),
    }
}

/// Returns the family, unless the target contains a file that exists only in another family.
fn check_marker_files(
    root: &NewRoot,
    said: &'static DistributionFamily,
) -> Result<&'static DistributionFamily, String> {
    let others = FAMILIES.iter().filter(|family| *family != said).flat_map(|family| family.markers);
    match others.into_iter().find(|marker| root.path_exists(marker)) {
        Some(marker) => Err(format!(
            "the image's os-release indicates {distribution}, but the file {marker} indicates another distribution",
            distribution = said.name
        )),
        None => Ok(said),
    }
}

/// Returns the value of a shell assignment without quotes.
fn read_assignment(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::testing::tree;

    #[test]
    fn distribution_families_are_found_by_os_release() {
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
            let found = Distribution::detect(&root);
            assert_eq!((found.family.name, found.id.as_str(), found.doubt.as_deref()), (family, id, None), "{text}");
        }
    }

    #[test]
    fn unknown_or_ambiguous_distribution_is_generic_with_a_reason() {
        for (files, id, why) in [
            (&[][..], "linux", "cannot read /etc/os-release or /usr/lib/os-release: "),
            (&[("etc/os-release", "ID=nixos\n")], "nixos", "nixos is not a supported distribution: "),
            (&[("etc/os-release", "ID=../x\n")], "linux", "../x is not a supported distribution: "),
            (&[("etc/os-release", "NAME=x\n")], "linux", "the image's os-release does not contain ID: "),
            (
                &[("etc/os-release", "ID=x\nID_LIKE=\"debian fedora\"\n")],
                "x",
                "x cannot be assigned to a family of distributions: its ID_LIKE=debian fedora lists several families: ",
            ),
            (
                &[("etc/os-release", "ID=debian\n"), ("etc/redhat-release", "Fedora\n")],
                "debian",
                "the image's os-release indicates Debian, but the file /etc/redhat-release indicates another distribution: ",
            ),
        ] {
            let (_dir, root) = tree(files);
            let found = Distribution::detect(&root);
            assert_eq!((found.family.name, found.id.as_str()), ("generic", id));
            let doubt = found.doubt.unwrap();
            assert!(doubt.starts_with(why) && doubt.ends_with("treated as an unknown Linux distribution"), "{doubt}");
        }
        let (dir, root) = tree(&[]);
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("../usr/lib/os-release", dir.path().join("etc/os-release")).unwrap();
        assert!(Distribution::detect(&root).doubt.is_some());
        root.write_file("/usr/lib/os-release", 0o644, b"ID=debian\nVERSION_ID=\"12\"\n").unwrap();
        let found = Distribution::detect(&root);
        assert_eq!((found.family.name, found.version.as_str()), ("Debian", "12"));
    }
}
