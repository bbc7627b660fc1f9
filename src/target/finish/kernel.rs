//! Which kernel of the tree is booted, and with which initramfs.

use super::bls;
use super::places::{is_directory, is_file, matching};
use crate::error::{Context, Error, Phase, Result};
use crate::order;
use crate::target::Root;
use crate::text::by_numbers;

/// A kernel of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Name of its directory of modules: `6.1.0-31-amd64`.
    pub version: String,
    /// `/boot/vmlinuz-6.1.0-31-amd64`.
    pub image: String,
    /// Where it lies, or where it will be made.
    pub initrd: String,
    /// The options of the tree's own boot entry for it.
    pub words: Vec<String>,
    /// That entry, where there is one.
    pub entry: Option<String>,
}

/// Where the entries of the Boot Loader Specification lie.
const ENTRIES: [&str; 3] =
    ["/boot/loader/entries/*.conf", "/efi/loader/entries/*.conf", "/boot/efi/loader/entries/*.conf"];

/// Where kernels lie. What the star stands for names the kernel.
const IMAGES: [&str; 4] = ["/boot/vmlinuz-*", "/usr/lib/modules/*/vmlinuz", "/lib/modules/*/vmlinuz", "/boot/kernel-*"];

const MODULES: [&str; 2] = ["/usr/lib/modules", "/lib/modules"];

/// How distributions call the initramfs of a kernel: by its version or by its name (`linux` of Arch, `lts` of Alpine). The first
/// that is there is taken.
const INITRDS: [&str; 9] = [
    "/boot/initrd.img-{version}",
    "/boot/initramfs-{version}.img",
    "/boot/initrd-{version}",
    "/boot/initramfs-{name}.img",
    "/boot/initramfs-{name}",
    "/usr/lib/modules/{version}/initramfs.img",
    "/usr/lib/modules/{version}/initrd",
    "/lib/modules/{version}/initramfs.img",
    "/lib/modules/{version}/initrd",
];

/// What a tree with this file calls a new initramfs; the last one is for all others.
const NEW_INITRDS: [(&str, &str); 5] = [
    ("/var/lib/dpkg/status", "/boot/initrd.img-{version}"),
    ("/usr/bin/zypper", "/boot/initrd-{version}"),
    ("/usr/bin/pacman", "/boot/initramfs-{name}.img"),
    ("/sbin/apk", "/boot/initramfs-{name}"),
    ("/", "/boot/initramfs-{version}.img"),
];

const INITS: [&str; 5] = ["/sbin/init", "/usr/lib/systemd/systemd", "/lib/systemd/systemd", "/etc/init", "/bin/init"];

/// What the kernel starts first.
pub fn init(root: &Root) -> Option<&'static str> {
    INITS.into_iter().find(|init| is_file(root, init))
}

/// # Errors
/// Nothing in the tree would be the first process.
pub fn require_init(root: &Root) -> Result<()> {
    if init(root).is_some() {
        return Ok(());
    }
    let what = format!("the image has no init, so that it cannot start: looked at {}", INITS.join(", "));
    Err(Error::new(Phase::Target, what))
}

/// The only kernel of the tree, or the newest by its version, which is said then. It lies in `/boot` in the end.
///
/// # Errors
/// There is none, or it cannot be brought to `/boot`.
pub fn find(root: &Root, say: &dyn Fn(&str)) -> Result<Kernel> {
    let mut found = candidates(root);
    // Without its modules it starts on few machines, and a rescue kernel is for rescues.
    order::by(&mut found, |one, other| one.rank(root).cmp(&other.rank(root)));
    let newest = found.pop().ok_or_else(|| {
        let looked = [&ENTRIES[..], &IMAGES].concat().join(", ");
        Error::new(Phase::Target, format!("the image has no kernel, so that it cannot boot: looked at {looked}"))
    })?;
    found.retain(|other| other.version != newest.version);
    if !found.is_empty() {
        let others: Vec<&str> = found.iter().map(|other| other.version.as_str()).collect();
        say(&format!(
            "the image has several kernels: {} is booted, which is newer than {}",
            newest.version,
            others.join(", ")
        ));
    }
    let mut kernel = with_entry(root, newest.into_kernel(root));
    if !kernel.image.starts_with("/boot/") {
        // Boot loaders look for both in one place.
        let image = format!("/boot/vmlinuz-{}", kernel.version);
        copy(root, &kernel.image, &image)?;
        kernel.image = image;
    }
    Ok(kernel)
}

fn copy(root: &Root, from: &str, to: &str) -> Result<()> {
    let mut file = root.open_file(from).context(Phase::Target, || format!("read {from} of the image"))?;
    root.write_from(to, 0o644, &mut file)
}

/// All kernels of the tree.
pub fn images(root: &Root) -> Vec<String> {
    candidates(root).into_iter().map(|candidate| candidate.image).collect()
}

#[derive(Debug)]
struct Candidate {
    image: String,
    /// What the star stood for.
    name: String,
    version: String,
}

fn candidates(root: &Root) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for pattern in IMAGES {
        for image in matching(root, pattern) {
            let (begin, end) = pattern.split_once('*').unwrap_or((pattern, ""));
            let name = image.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end)).unwrap_or_default().to_owned();
            let version = version(root, &name);
            // The same one at a second place.
            if !name.ends_with(".old") && !found.iter().any(|other| other.version == version) {
                found.push(Candidate { image, name, version });
            }
        }
    }
    found
}

/// Of a kernel that is called so: by its modules.
fn version(root: &Root, name: &str) -> String {
    let is_its = |(dir, version): &(&str, String)| {
        let package = root.read(&format!("{dir}/{version}/pkgbase")).unwrap_or_default();
        package.trim() == name || version.ends_with(&format!("-{name}"))
    };
    let all =
        || MODULES.iter().flat_map(|dir| root.names(dir).unwrap_or_default().into_iter().map(move |name| (*dir, name)));
    let has_its_modules = all().any(|(_, version)| version == name);
    let found = (!has_its_modules).then(|| all().filter(is_its).max_by(|one, other| newer(&one.1, &other.1)));
    found.flatten().map_or_else(|| name.to_owned(), |(_, version)| version)
}

fn newer(one: &str, other: &str) -> std::cmp::Ordering {
    by_numbers(one).cmp(&by_numbers(other))
}

impl Candidate {
    /// The greatest one is booted.
    fn rank<'a>(&'a self, root: &Root) -> (bool, bool, Vec<(usize, &'a [u8])>) {
        let has_modules = MODULES.iter().any(|dir| is_directory(root, &format!("{dir}/{}", self.version)));
        (has_modules, !self.name.contains("rescue"), by_numbers(&self.version))
    }

    fn into_kernel(self, root: &Root) -> Kernel {
        let Candidate { image, name, version } = self;
        let path = |form: &str| form.replace("{version}", &version).replace("{name}", &name);
        let there = INITRDS.iter().map(|form| path(form)).find(|path| is_file(root, path));
        let is_there = |marker: &str| is_file(root, marker) || is_directory(root, marker);
        let new = || NEW_INITRDS.iter().find(|(marker, _)| is_there(marker)).map(|(_, form)| path(form));
        let initrd = there.or_else(new).unwrap_or_default();
        Kernel { image, initrd, words: Vec::new(), entry: None, version }
    }
}

/// With what the tree's own entry says of it.
fn with_entry(root: &Root, kernel: Kernel) -> Kernel {
    let name = kernel.image.rsplit('/').next().unwrap_or_default().to_owned();
    for path in ENTRIES.iter().flat_map(|pattern| matching(root, pattern)) {
        let Some(entry) = root.read(&path).ok().and_then(|text| bls::read(&text)) else { continue };
        let is_its =
            entry.kernel.ends_with(&format!("/{name}")) || entry.kernel.contains(&format!("/{}/", kernel.version));
        if is_its {
            return Kernel { words: entry.words, entry: Some(path), ..kernel };
        }
    }
    kernel
}

#[cfg(test)]
mod tests {
    use super::super::places::tests::tree;
    use super::*;
    use std::cell::RefCell;

    fn found(files: &[&str]) -> (Result<Kernel>, Vec<String>) {
        let files: Vec<(&str, &str)> =
            files.iter().map(|path| (*path, if path.ends_with("pkgbase") { "linux\n" } else { "" })).collect();
        let (_dir, root) = tree(&files);
        let said = RefCell::new(Vec::new());
        (find(&root, &|line| said.borrow_mut().push(line.to_owned())), said.into_inner())
    }

    /// How the distributions' packages lay them out.
    #[test]
    fn kernels_and_their_initramfs_are_found_in_every_distribution() {
        let cases: [(&str, &[&str], [&str; 3]); 9] = [
            (
                "Debian",
                &[
                    "boot/vmlinuz-6.1.0-9-amd64",
                    "boot/initrd.img-6.1.0-9-amd64",
                    "usr/lib/modules/6.1.0-9-amd64/modules.dep",
                ],
                ["6.1.0-9-amd64", "/boot/vmlinuz-6.1.0-9-amd64", "/boot/initrd.img-6.1.0-9-amd64"],
            ),
            (
                "Debian, no initramfs yet",
                &["boot/vmlinuz-6.1", "usr/lib/modules/6.1/modules.dep", "var/lib/dpkg/status"],
                ["6.1", "/boot/vmlinuz-6.1", "/boot/initrd.img-6.1"],
            ),
            (
                "Red Hat",
                &[
                    "boot/vmlinuz-0-rescue-aa",
                    "boot/vmlinuz-5.14.el9",
                    "boot/initramfs-5.14.el9.img",
                    "lib/modules/5.14.el9/vmlinuz",
                    "boot/.vmlinuz-5.14.el9.hmac",
                ],
                ["5.14.el9", "/boot/vmlinuz-5.14.el9", "/boot/initramfs-5.14.el9.img"],
            ),
            (
                "Fedora with its kernel in /usr",
                &["usr/lib/modules/6.9.fc40/vmlinuz", "usr/lib/modules/6.9.fc40/initramfs.img"],
                ["6.9.fc40", "/boot/vmlinuz-6.9.fc40", "/usr/lib/modules/6.9.fc40/initramfs.img"],
            ),
            (
                "SUSE",
                &["boot/vmlinuz-6.4-default", "boot/initrd-6.4-default", "usr/lib/modules/6.4-default/vmlinuz"],
                ["6.4-default", "/boot/vmlinuz-6.4-default", "/boot/initrd-6.4-default"],
            ),
            (
                "Arch",
                &[
                    "boot/vmlinuz-linux",
                    "boot/initramfs-linux.img",
                    "boot/initramfs-linux-fallback.img",
                    "usr/lib/modules/6.10-arch1-1/pkgbase",
                    "usr/lib/modules/6.10-arch1-1/vmlinuz",
                ],
                ["6.10-arch1-1", "/boot/vmlinuz-linux", "/boot/initramfs-linux.img"],
            ),
            (
                "Alpine",
                &["boot/vmlinuz-lts", "boot/initramfs-lts", "lib/modules/6.6.30-0-lts/modules.dep"],
                ["6.6.30-0-lts", "/boot/vmlinuz-lts", "/boot/initramfs-lts"],
            ),
            (
                "two, one without modules",
                &[
                    "boot/vmlinuz-6.9",
                    "boot/vmlinuz-6.10",
                    "boot/vmlinuz-7.0",
                    "boot/initrd.img-6.10",
                    "usr/lib/modules/6.9/x",
                    "usr/lib/modules/6.10/x",
                ],
                ["6.10", "/boot/vmlinuz-6.10", "/boot/initrd.img-6.10"],
            ),
            (
                "alone without modules",
                &["boot/vmlinuz-6.9", "boot/initrd.img-6.9"],
                ["6.9", "/boot/vmlinuz-6.9", "/boot/initrd.img-6.9"],
            ),
        ];
        for (what, files, [version, image, initrd]) in cases {
            let (kernel, said) = found(files);
            let kernel = kernel.unwrap();
            assert_eq!([&kernel.version, &kernel.image, &kernel.initrd], [version, image, initrd], "{what}");
            assert_eq!(said.is_empty(), !what.contains("two") && what != "Red Hat", "{what}: {said:?}");
        }
    }
}
