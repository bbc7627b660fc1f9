//! What GRUB needs whatever the firmware: its directory, its menu, and where both lie.

use super::super::boot::{Filesystem, Start};
use super::super::places::{first, is_directory, program};
use super::super::{bls, command_line};
use crate::error::Result;
use crate::target::Root;

/// Programs of GRUB, whose names have a 2 in some distributions.
pub const MKIMAGE: [&str; 2] = ["grub-mkimage", "grub2-mkimage"];
const MKCONFIG: [&str; 2] = ["grub2-mkconfig", "grub-mkconfig"];

/// What an image of GRUB has in it, as far as the tree has it. The menu may ask for more, from the directory of modules.
pub const MODULES: [&str; 28] = [
    "part_gpt",
    "part_msdos",
    "ext2",
    "xfs",
    "btrfs",
    "fat",
    "diskfilter",
    "mdraid09",
    "mdraid1x",
    "raid5rec",
    "raid6rec",
    "lvm",
    "search",
    "search_fs_uuid",
    "normal",
    "configfile",
    "linux",
    "echo",
    "test",
    "true",
    "ls",
    "cat",
    "minicmd",
    "gzio",
    "loadenv",
    "blscfg",
    "serial",
    "terminal",
];

/// Where the menu lies, and what GRUB finds it by.
pub struct Home<'a> {
    /// In the tree: `/boot/grub`.
    pub directory: String,
    /// The filesystem with `/boot`.
    pub filesystem: &'a Filesystem,
    /// What of a path GRUB does not see: `/boot` where that is a filesystem of its own.
    hidden: &'static str,
}

impl Home<'_> {
    pub fn of<'a>(start: &Start<'a>) -> Home<'a> {
        let is_two = program(start.root, &[MKCONFIG[0]]).is_some() || is_directory(start.root, "/boot/grub2");
        Home {
            directory: if is_two { "/boot/grub2" } else { "/boot/grub" }.to_owned(),
            filesystem: start.wants.boot.as_ref().unwrap_or(&start.wants.root),
            hidden: if start.wants.boot.is_some() { "/boot" } else { "" },
        }
    }

    /// A path of the tree, as GRUB sees it.
    pub fn seen<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(self.hidden).unwrap_or(path)
    }

    /// Lines that make GRUB's own directory known.
    pub fn search(&self) -> String {
        let directory = self.seen(&self.directory).to_owned();
        format!("search --no-floppy --fs-uuid --set=root {}\nset prefix=($root){directory}\n", self.filesystem.uuid)
    }
}

/// Writes the menu, and settings with which the image's own tool makes it anew for later kernels. That tool is not run here:
/// it takes half a minute, and names the root filesystem by a device where no udev has made links.
///
/// # Errors
/// Something cannot be written.
pub fn write_menu(start: &Start, home: &Home, terminal: &str) -> Result<()> {
    command_line::keep_for_grub(start.root, start.own)?;
    command_line::keep_for_kernel_install(start.root, start.line)?;
    // What is generated here by a package of the image would replace our menu.
    let maker = program(start.root, &MKCONFIG).map_or("grub-mkconfig".to_owned(), |path| name(&path).to_owned());
    let reads_entries = own_entry(start, home)?;
    let menu = menu(start, home, terminal, &maker, reads_entries);
    start.root.write(&format!("{}/grub.cfg", home.directory), 0o600, menu.as_bytes())
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn menu(start: &Start, home: &Home, terminal: &str, maker: &str, reads_entries: bool) -> String {
    let (kernel, initrd) = (home.seen(&start.kernel.image), home.seen(&start.kernel.initrd));
    let line: Vec<String> = start.line.split(' ').map(quoted).collect();
    // The image's boot entries come first, so that a later kernel is booted without another menu.
    let blscfg = if reads_entries { "insmod blscfg\nblscfg\n" } else { "" };
    let system = &start.wants.system;
    format!(
        "# written by drophammer; {maker} replaces it\nset default=0\nset timeout=2\n{terminal}\
         search --no-floppy --fs-uuid --set=root {}\n{blscfg}\
         menuentry {} {{\n\tlinux {kernel} {}\n\tinitrd {initrd}\n}}\n",
        home.filesystem.uuid,
        quoted(&format!("{system} {}", start.kernel.version)),
        line.join(" ")
    )
}

/// The image's own boot entry gets this machine's command line. Does GRUB read such entries? Of later kernels nothing else tells it.
fn own_entry(start: &Start, home: &Home) -> Result<bool> {
    let reads_entries =
        first(start.root, &["/usr/lib/grub/*/blscfg.mod", "/usr/lib/grub2/*/blscfg.mod", "/etc/grub.d/10_linux"]);
    let reads_entries = reads_entries.is_some_and(|path| {
        !path.ends_with("10_linux") || start.root.read(&path).is_ok_and(|text| text.contains("blscfg"))
    });
    let own = start.kernel.entry.as_deref().filter(|path| path.starts_with("/boot/loader/"));
    let Some(path) = own.filter(|_| reads_entries) else { return Ok(reads_entries) };
    let (kernel, initrd) = (home.seen(&start.kernel.image), home.seen(&start.kernel.initrd));
    let version = &start.kernel.version;
    let entry = bls::write(&format!("{} {version}", start.wants.system), version, kernel, initrd, start.line);
    start.root.write(path, 0o644, entry.as_bytes()).map(|()| true)
}

/// A word as GRUB's shell has it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "=-_.,:/@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// The modules of the list that this directory has.
pub fn modules<'a>(root: &Root, directory: &str, wanted: &[&'a str]) -> Vec<&'a str> {
    let names = root.names(directory).unwrap_or_default();
    wanted.iter().filter(|module| names.contains(&format!("{module}.mod"))).copied().collect()
}
