//! Selection of the target's kernel and initramfs.

use super::bls_entry;
use super::file_search::{find_matching, is_directory, is_file};
use super::grub_config_reader::read_grub_variables;
use super::preserved_esps::PreservedEsps;
use crate::NewRoot;
use common::error::{Context, Error, Phase, Result};
use common::format::natural_sort_key;

/// Kernel of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BootKernel {
    /// Version of the kernel, which is the name of its modules directory: `6.1.0-31-amd64`.
    pub version: String,
    /// Path of the kernel, such as `/boot/vmlinuz-6.1.0-31-amd64`.
    pub image: String,
    /// Path of the existing initramfs, or the path at which an initramfs will be built.
    pub initrd: String,
    /// Options of the kernel's boot entry in the target; empty if there is no entry.
    pub words: Vec<String>,
    /// Path of the kernel's boot entry in the target, if any.
    pub entry: Option<String>,
}

/// Paths of Boot Loader Specification entries.
const ENTRIES: [&str; 3] =
    ["/boot/loader/entries/*.conf", "/efi/loader/entries/*.conf", "/boot/efi/loader/entries/*.conf"];

/// Patterns of kernel paths. The star matches the kernel's name.
const IMAGES: [&str; 4] = ["/boot/vmlinuz-*", "/usr/lib/modules/*/vmlinuz", "/lib/modules/*/vmlinuz", "/boot/kernel-*"];

pub(super) const MODULES: [&str; 2] = ["/usr/lib/modules", "/lib/modules"];

/// Paths at which distributions store the initramfs of a kernel. The file name contains the kernel's version or name
/// (`linux` on Arch, `lts` on Alpine). The first existing file is used.
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

/// Paths for a new initramfs. In each pair, the first path identifies a distribution; if it exists, the second path is
/// used. The last pair is the default.
const NEW_INITRDS: [(&str, &str); 5] = [
    ("/var/lib/dpkg/status", "/boot/initrd.img-{version}"),
    ("/usr/bin/zypper", "/boot/initrd-{version}"),
    ("/usr/bin/pacman", "/boot/initramfs-{name}.img"),
    ("/sbin/apk", "/boot/initramfs-{name}"),
    ("/", "/boot/initramfs-{version}.img"),
];

const INITS: [&str; 5] = ["/sbin/init", "/usr/lib/systemd/systemd", "/lib/systemd/systemd", "/etc/init", "/bin/init"];

/// Returns the init program of the target.
pub(crate) fn find_init(root: &NewRoot) -> Option<&'static str> {
    INITS.into_iter().find(|init| is_file(root, init))
}

/// Checks that the target contains an init program.
///
/// # Errors
/// Returns an error if the target does not contain an init program.
pub(crate) fn require_init(root: &NewRoot) -> Result<()> {
    if find_init(root).is_some() {
        return Ok(());
    }
    let what = format!(
        "the image cannot boot, because it does not contain an init program; paths searched: {paths}",
        paths = INITS.join(", ")
    );
    Err(Error::new(Phase::Target, what))
}

/// Returns the kernel to boot. If the target contains several kernels, logs which kernel is chosen: kernels with
/// modules are preferred, then kernels that are not rescue kernels, then the highest version. A kernel or initramfs
/// outside `/boot` is copied there.
///
/// # Errors
/// Returns an error if the target does not contain a kernel, or a file cannot be copied.
pub(crate) fn find_kernel(root: &NewRoot, preserved: &PreservedEsps, say: &dyn Fn(&str)) -> Result<BootKernel> {
    let mut found = find_candidates(root);
    // Kernels with modules are preferred, since few machines can boot without modules. Rescue kernels are chosen only
    // if there is no other kernel.
    found.sort_by(|one, other| one.sort_key(root).cmp(&other.sort_key(root)));
    let newest = found.pop().ok_or_else(|| {
        let looked = [&ENTRIES[..], &IMAGES].concat().join(", ");
        Error::new(
            Phase::Target,
            format!("the image cannot boot, because it does not contain a kernel; paths searched: {looked}"),
        )
    })?;
    found.retain(|other| other.version != newest.version);
    if !found.is_empty() {
        let others: Vec<&str> = found.iter().map(|other| other.version.as_str()).collect();
        say(&format!(
            "the image contains several kernels: {newest} will be booted, not {others}",
            newest = newest.version,
            others = others.join(", ")
        ));
    }
    let initrd = newest.new_initrd(root);
    let mut kernel = add_boot_entry(root, newest.into_kernel(root), preserved);
    let image = format!("/boot/vmlinuz-{}", kernel.version);
    copy_to_boot(root, &mut kernel.image, image, 0o644)?;
    copy_to_boot(root, &mut kernel.initrd, initrd, 0o600)?;
    Ok(kernel)
}

/// Copies a file to the path `to` in `/boot`, and changes `path` accordingly, unless the file is already in `/boot`.
/// The boot loader reads kernel and initramfs only from the filesystem that contains `/boot`.
fn copy_to_boot(root: &NewRoot, path: &mut String, to: String, mode: u32) -> Result<()> {
    if !path.starts_with("/boot/") {
        let mut file = root.open_file(path).context(Phase::Target, || format!("read the image's {path}"))?;
        root.write_file_from(&to, mode, &mut file)?;
        *path = to;
    }
    Ok(())
}

/// Returns the paths of all kernels of the target.
pub(crate) fn list_kernel_images(root: &NewRoot) -> Vec<String> {
    find_candidates(root).into_iter().map(|candidate| candidate.image).collect()
}

#[derive(Debug)]
struct KernelCandidate {
    image: String,
    /// Part of the kernel's path that matches the `*` in a pattern of [`IMAGES`].
    name: String,
    version: String,
}

fn find_candidates(root: &NewRoot) -> Vec<KernelCandidate> {
    let mut found: Vec<KernelCandidate> = Vec::new();
    for pattern in IMAGES {
        for image in find_matching(root, pattern) {
            let (begin, end) = pattern.split_once('*').unwrap_or((pattern, ""));
            let name = image.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end)).unwrap_or_default().to_owned();
            let version = find_version(root, &name);
            // Skips backups of kernels (`.old`), and further copies of a kernel that was already found.
            if !name.ends_with(".old") && !found.iter().any(|other| other.version == version) {
                found.push(KernelCandidate { image, name, version });
            }
        }
    }
    found
}

/// Returns the version of the kernel with this name. The version is the name of the modules directory of the kernel. If
/// the kernel has no modules, returns the name of the kernel.
fn find_version(root: &NewRoot, name: &str) -> String {
    let is_its = |(dir, version): &(&str, String)| {
        let package = root.read_text(&format!("{dir}/{version}/pkgbase")).unwrap_or_default();
        package.trim() == name || version.ends_with(&format!("-{name}"))
    };
    let all = || {
        MODULES
            .iter()
            .flat_map(|dir| root.list_names(dir).unwrap_or_default().into_iter().map(move |name| (*dir, name)))
    };
    let has_its_modules = all().any(|(_, version)| version == name);
    let found =
        (!has_its_modules).then(|| all().filter(is_its).max_by(|one, other| compare_versions(&one.1, &other.1)));
    found.flatten().map_or_else(|| name.to_owned(), |(_, version)| version)
}

fn compare_versions(one: &str, other: &str) -> std::cmp::Ordering {
    natural_sort_key(one).cmp(&natural_sort_key(other))
}

impl KernelCandidate {
    /// Returns the sort key of a kernel. The kernel with the highest key is booted.
    fn sort_key<'a>(&'a self, root: &NewRoot) -> (bool, bool, Vec<(usize, &'a [u8])>) {
        let has_modules = MODULES.iter().any(|dir| is_directory(root, &format!("{dir}/{}", self.version)));
        (has_modules, !self.name.contains("rescue"), natural_sort_key(&self.version))
    }

    fn into_kernel(self, root: &NewRoot) -> BootKernel {
        let there = INITRDS.iter().map(|form| self.fill_path(form)).find(|path| is_file(root, path));
        let initrd = there.unwrap_or_else(|| self.new_initrd(root));
        let KernelCandidate { image, version, .. } = self;
        BootKernel { image, initrd, words: Vec::new(), entry: None, version }
    }

    /// Returns the path in `/boot` for a new initramfs.
    fn new_initrd(&self, root: &NewRoot) -> String {
        let is_there = |marker: &str| is_file(root, marker) || is_directory(root, marker);
        let form = NEW_INITRDS.iter().find(|(marker, _)| is_there(marker));
        form.map(|(_, form)| self.fill_path(form)).unwrap_or_default()
    }

    fn fill_path(&self, form: &str) -> String {
        form.replace("{version}", &self.version).replace("{name}", &self.name)
    }
}

/// Adds path and options of the kernel's boot entry in the target, if there is one. An entry on a preserved EFI system
/// partition may belong to another system, and is skipped.
fn add_boot_entry(root: &NewRoot, kernel: BootKernel, preserved: &PreservedEsps) -> BootKernel {
    let name = kernel.image.rsplit('/').next().unwrap_or_default().to_owned();
    let variables = read_grub_variables(root, preserved);
    let entries = ENTRIES.iter().flat_map(|pattern| find_matching(root, pattern));
    for path in entries.filter(|path| !preserved.contains(path)) {
        let Some(entry) = root.read_text(&path).ok().and_then(|text| bls_entry::parse_entry(&text, &variables)) else {
            continue;
        };
        let is_its =
            entry.kernel.ends_with(&format!("/{name}")) || entry.kernel.contains(&format!("/{}/", kernel.version));
        if is_its {
            return BootKernel { words: entry.words, entry: Some(path), ..kernel };
        }
    }
    kernel
}

#[cfg(test)]
mod tests {
    use super::super::file_search::tests::tree;
    use super::*;
    use std::cell::RefCell;

    fn found(files: &[&str]) -> (Result<BootKernel>, Vec<String>) {
        let files: Vec<(&str, &str)> =
            files.iter().map(|path| (*path, if path.ends_with("pkgbase") { "linux\n" } else { "" })).collect();
        let (_dir, root) = tree(&files);
        let said = RefCell::new(Vec::new());
        let say = |line: &str| said.borrow_mut().push(line.to_owned());
        let kernel = find_kernel(&root, &PreservedEsps::default(), &say);
        (kernel, said.into_inner())
    }

    /// If `/boot` is a separate filesystem, the boot loader cannot read `/usr`.
    #[test]
    fn kernel_and_initramfs_outside_of_boot_are_copied_there() {
        let directory = "usr/lib/modules/6.9";
        let [kernel, initrd] = ["vmlinuz", "initramfs.img"].map(|name| format!("{directory}/{name}"));
        let (_dir, root) = tree(&[(&kernel, "k"), (&initrd, "i"), ("usr/bin/pacman", "")]);
        let kernel = find_kernel(&root, &PreservedEsps::default(), &|_| ()).unwrap();
        assert_eq!((kernel.image.as_str(), kernel.initrd.as_str()), ("/boot/vmlinuz-6.9", "/boot/initramfs-6.9.img"));
        assert_eq!(root.read_text(&kernel.image).unwrap() + &root.read_text(&kernel.initrd).unwrap(), "ki");
    }

    #[test]
    fn boot_entry_of_another_system_on_a_preserved_esp_is_skipped() {
        let entry = "linux /vmlinuz-6.1\noptions root=UUID=2 other=1\n";
        let (_dir, root) = tree(&[("boot/vmlinuz-6.1", ""), ("boot/efi/loader/entries/other.conf", entry)]);
        let preserved = super::super::preserved_esps::tests::at_boot_efi();
        let kernel = find_kernel(&root, &preserved, &|_| ()).unwrap();
        assert_eq!((kernel.words.len(), kernel.entry), (0, None));
        let kernel = find_kernel(&root, &PreservedEsps::default(), &|_| ()).unwrap();
        assert_eq!(kernel.entry.as_deref(), Some("/boot/efi/loader/entries/other.conf"));
    }

    /// Paths as in the packages of the distributions.
    #[test]
    fn kernels_and_initramfs_are_found_in_every_distribution() {
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
                ["6.9.fc40", "/boot/vmlinuz-6.9.fc40", "/boot/initramfs-6.9.fc40.img"],
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
