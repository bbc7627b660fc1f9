//! Architecture of an image, as recognized from its programs and kernels.

use super::boot_kernel;
use super::file_search::find_first;
use crate::NewRoot;
use common::bounded_read::read_prefix;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::architecture::{Architecture, RECOGNIZED_BYTES};

/// Programs that every operating system executes when it boots, in the order in which they are read. An init program
/// may be a script, which has no architecture; its interpreter is then the shell.
const PROGRAMS: [&str; 7] = [
    "/sbin/init",
    "/usr/lib/systemd/systemd",
    "/lib/systemd/systemd",
    "/bin/sh",
    "/usr/bin/sh",
    "/bin/busybox",
    "/usr/bin/bash",
];

/// Returns the architecture of the first program whose architecture is recognized, otherwise that of a kernel. Returns
/// `None` if neither is recognized.
pub(crate) fn recognize_architecture(root: &NewRoot) -> Option<Architecture> {
    recognize_program(root)
        .or_else(|| boot_kernel::list_kernel_images(root).iter().find_map(|kernel| recognize_file(root, kernel)))
}

fn recognize_program(root: &NewRoot) -> Option<Architecture> {
    PROGRAMS.iter().find_map(|path| recognize_file(root, path))
}

fn recognize_file(root: &NewRoot, path: &str) -> Option<Architecture> {
    Architecture::recognize(&read_prefix(root.open_file(path).ok()?, RECOGNIZED_BYTES).ok()?)
}

/// Checks that the programs of the target, the kernel and the programs that will be copied to the ESPs are for the
/// machine's architecture. Files whose architecture is not recognized are accepted.
///
/// # Errors
/// Returns an error that names the file, its architecture and the architecture of the machine.
pub(crate) fn require_architecture(root: &NewRoot, machine: Architecture, files: &[&str]) -> Result<()> {
    let program = find_first(root, &PROGRAMS).into_iter();
    for path in program.chain(files.iter().map(|path| (*path).to_owned())) {
        if let Some(found) = recognize_file(root, &path).filter(|found| *found != machine) {
            let what = format!("the image is for {found} according to {path}, but this machine is {machine}");
            return Err(Error::new(Phase::Target, what).with_code(ErrorCode::ArchitectureMismatch));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    /// Returns the beginning of a 64-bit ELF file with this machine number, below 128.
    fn elf(machine: char) -> String {
        format!("\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0{machine}\0")
    }

    #[test]
    fn programs_precede_kernels() {
        let amd64 = elf('\u{3e}');
        let arm64_kernel = format!("{}ARM\x64", "\0".repeat(0x38));
        let script = "#!/bin/sh\n".to_owned();
        let (amd, arm) = (Some(Architecture::Amd64), Some(Architecture::Arm64));
        for (files, expected) in [
            (vec![("usr/lib/systemd/systemd", &amd64), ("boot/vmlinuz-6.1", &arm64_kernel)], amd),
            (vec![("sbin/init", &script), ("bin/sh", &amd64)], amd),
            (vec![("sbin/init", &script), ("boot/vmlinuz-6.1", &arm64_kernel)], arm),
            (vec![("etc/hostname", &script)], None),
        ] {
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
            let (_dir, root) = tree(&files);
            assert_eq!(recognize_architecture(&root), expected, "{files:?}");
        }
    }

    #[test]
    fn target_of_another_architecture_is_refused() {
        let (amd64, arm64_kernel) = (elf('\u{3e}'), format!("{}ARM\x64", "\0".repeat(0x38)));
        let (_dir, root) = tree(&[("bin/sh", &amd64), ("boot/vmlinuz-6.1", &arm64_kernel), ("etc/hostname", "a")]);
        assert!(require_architecture(&root, Architecture::Amd64, &["/etc/hostname", "/none"]).is_ok());
        for (machine, files, says) in [
            (Architecture::Arm64, &[][..], "is for amd64 according to /bin/sh, but this machine is arm64"),
            (Architecture::Amd64, &["/boot/vmlinuz-6.1"], "is for arm64 according to /boot/vmlinuz-6.1"),
        ] {
            let error = require_architecture(&root, machine, files).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.code(), ErrorCode::ArchitectureMismatch);
        }
    }
}
