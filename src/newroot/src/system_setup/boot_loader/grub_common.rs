//! Parts of GRUB's configuration that are common to BIOS and UEFI: directory, menu, and search commands.

use super::super::machine_boot_requirements::FilesystemByUuid;

use super::super::file_search::{find_first, find_program, is_directory};
use super::super::grub_config_reader::{self, format_grub_line};
use super::super::loader_context::LoaderContext;
use super::super::{bls_entry, kernel_command_line};
use crate::NewRoot;
use common::error::Result;

/// Names of GRUB's programs; some distributions call them grub2-….
pub(crate) const MKIMAGE: [&str; 2] = ["grub-mkimage", "grub2-mkimage"];
const MKCONFIG: [&str; 2] = ["grub2-mkconfig", "grub-mkconfig"];

/// Modules that are built into GRUB's core image if the target contains them. The menu can load other modules from the
/// modules directory.
pub(crate) const MODULES: [&str; 28] = [
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

/// Variable that contains the kernel command line. The boot entries of EL 8's packages refer to this variable. EL 8's
/// tools store the variable in GRUB's environment block, which takes precedence over the menu. The value in the
/// environment block of an image belongs to the machine on which the image was built.
const KERNEL_OPTIONS: &str = "kernelopts";

/// Location of the menu.
pub(crate) struct GrubDirectory<'a> {
    /// Directory in the target: `/boot/grub`.
    pub directory: String,
    /// Filesystem that contains `/boot`.
    pub filesystem: &'a FilesystemByUuid,
    /// Prefix that is removed from paths for GRUB: `/boot` if `/boot` is a separate filesystem; otherwise empty.
    hidden: &'static str,
}

impl GrubDirectory<'_> {
    pub(crate) fn locate<'a>(start: &LoaderContext<'a>) -> GrubDirectory<'a> {
        let is_two = find_program(start.root, &[MKCONFIG[0]]).is_some() || is_directory(start.root, "/boot/grub2");
        GrubDirectory {
            directory: if is_two { "/boot/grub2" } else { "/boot/grub" }.to_owned(),
            filesystem: start.wants.boot.as_ref().unwrap_or(&start.wants.root),
            hidden: if start.wants.boot.is_some() { "/boot" } else { "" },
        }
    }

    /// Converts a path of the target to a path in the filesystem that GRUB reads.
    pub(crate) fn to_grub_path<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(self.hidden).unwrap_or(path)
    }

    /// Returns commands that set GRUB's `root` and `prefix` to the directory of the menu.
    pub(crate) fn search_commands(&self) -> String {
        let directory = self.to_grub_path(&self.directory).to_owned();
        format!("search --no-floppy --fs-uuid --set=root {}\nset prefix=($root){directory}\n", self.filesystem.uuid)
    }
}

/// Writes the menu, and the settings with which grub-mkconfig regenerates it for later kernels. grub-mkconfig is not
/// run here, because it takes half a minute, and identifies the root filesystem by its device name if udev's links are
/// missing.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn write_menu(start: &LoaderContext, home: &GrubDirectory, terminal: &str) -> Result<()> {
    kernel_command_line::persist_for_grub(start.root, start.own)?;
    kernel_command_line::persist_for_kernel_install(start.root, start.line)?;
    // Name of the program that packages run to regenerate the menu. The program replaces this menu.
    let maker =
        find_program(start.root, &MKCONFIG).map_or("grub-mkconfig".to_owned(), |path| file_name(&path).to_owned());
    let reads_entries = update_boot_entry(start, home)?;
    grub_config_reader::remove_from_environment(start.root, KERNEL_OPTIONS, &start.wants.preserved_esps)?;
    let menu = format_menu(start, home, terminal, &maker, reads_entries);
    start.root.write_file(&format!("{}/grub.cfg", home.directory), 0o600, menu.as_bytes())
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn format_menu(
    start: &LoaderContext,
    home: &GrubDirectory,
    terminal: &str,
    maker: &str,
    reads_entries: bool,
) -> String {
    let (kernel, initrd) = (home.to_grub_path(&start.kernel.image), home.to_grub_path(&start.kernel.initrd));
    let line = format_grub_line(start.line);
    // The entries that `blscfg` adds precede this menu entry. GRUB therefore boots a kernel that is installed later,
    // even if the menu is not regenerated.
    let blscfg = if reads_entries {
        format!(
            "if [ -s $prefix/grubenv ]; then\n  load_env {KERNEL_OPTIONS}\nfi\nif [ -z \"${KERNEL_OPTIONS}\" ]; then\n  \
             set {KERNEL_OPTIONS}={}\nfi\ninsmod blscfg\nblscfg\n",
            quote_word(&line)
        )
    } else {
        String::new()
    };
    let system = &start.wants.system;
    format!(
        "# written by drophammer; {maker} replaces it\nset default=0\nset timeout=2\n{terminal}\
         search --no-floppy --fs-uuid --set=root {}\n{blscfg}\
         menuentry {} {{\n\tlinux {kernel} {}\n\tinitrd {initrd}\n}}\n",
        home.filesystem.uuid,
        quote_word(&format!("{system} {}", start.kernel.version)),
        line
    )
}

/// Writes this machine's command line to the image's Boot Loader Specification entry. Returns whether GRUB reads Boot
/// Loader Specification entries. If GRUB reads such entries, packages add later kernels only as entries, not to the
/// menu.
fn update_boot_entry(start: &LoaderContext, home: &GrubDirectory) -> Result<bool> {
    let reads_entries =
        find_first(start.root, &["/usr/lib/grub/*/blscfg.mod", "/usr/lib/grub2/*/blscfg.mod", "/etc/grub.d/10_linux"]);
    let reads_entries = reads_entries.is_some_and(|path| {
        !path.ends_with("10_linux") || start.root.read_text(&path).is_ok_and(|text| text.contains("blscfg"))
    });
    let own = start.kernel.entry.as_deref().filter(|path| path.starts_with("/boot/loader/"));
    let Some(path) = own.filter(|_| reads_entries) else { return Ok(reads_entries) };
    let (kernel, initrd) = (home.to_grub_path(&start.kernel.image), home.to_grub_path(&start.kernel.initrd));
    let version = &start.kernel.version;
    let entry = bls_entry::format_entry(
        &format!("{} {version}", start.wants.system),
        version,
        kernel,
        initrd,
        &format_grub_line(start.line),
    );
    start.root.write_file(path, 0o644, entry.as_bytes()).map(|()| true)
}

/// Quotes a word for GRUB's shell.
pub(crate) fn quote_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "=-_.,:/@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Returns the modules of the list that exist in this directory.
pub(crate) fn available_modules<'a>(root: &NewRoot, directory: &str, wanted: &[&'a str]) -> Vec<&'a str> {
    let names = root.list_names(directory).unwrap_or_default();
    wanted.iter().filter(|module| names.contains(&format!("{module}.mod"))).copied().collect()
}
