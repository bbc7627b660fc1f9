//! `/etc/metal/boot-info.yaml`: kernel, initrd and command line of the installed system, as specified by the image's
//! installer.

use crate::NewRoot;
use common::error::{Context, Error, Phase, Result};
use common::yaml;
use marked_yaml::LoaderOptions;
use model::install_report::BootInfo;
use serde_json::json;

pub(super) const PATH: &str = "/etc/metal/boot-info.yaml";

/// Reads boot-info.yaml.
///
/// # Errors
/// Fails if the installer did not write the file, or wrote an incomplete file.
pub fn read_boot_info(root: &NewRoot) -> Result<BootInfo> {
    let text =
        root.read_text(PATH).context(Phase::Boot, || format!("read {PATH}, which the image's installer must write"))?;
    parse_boot_info(&text)
}

/// Writes boot-info.yaml, as an installer would.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write_boot_info(info: &BootInfo, root: &NewRoot) -> Result<()> {
    let BootInfo { kernel, initrd, cmdline, bootloader_id } = info;
    let lines = [("kernel", kernel), ("initrd", initrd), ("cmdline", cmdline), ("bootloader_id", bootloader_id)];
    // The values are written as JSON, which is also valid YAML.
    let text: String = lines.into_iter().map(|(key, value)| format!("{key}: {}\n", json!(value))).collect();
    root.write_file(PATH, 0o644, text.as_bytes())
}

/// Removes boot-info.yaml, which an image may have kept from the machine on which it was built. Called before the
/// image's installer runs: otherwise, an installer that does not write the file would make this machine boot with the
/// arguments of that machine.
///
/// # Errors
/// Fails if the file cannot be removed.
pub(crate) fn remove_boot_info(root: &NewRoot) -> Result<()> {
    root.remove(PATH)
}

/// Parses boot-info.yaml. Ignores keys that [`BootInfo`] does not contain.
fn parse_boot_info(text: &str) -> Result<BootInfo> {
    let yaml = yaml::read_document(text, LoaderOptions::default());
    let yaml = yaml.context(Phase::Boot, || format!("{PATH} is not a YAML mapping"))?;
    let value = |key: &str| {
        let found = yaml.as_mapping().and_then(|mapping| mapping.get_scalar(key));
        found.map(|scalar| scalar.as_str().to_owned()).ok_or_else(|| {
            Error::new(Phase::Boot, format!("{PATH}: `{key}:` is missing: the image's installer did not write it"))
        })
    };
    let info = BootInfo {
        kernel: value("kernel")?,
        initrd: value("initrd")?,
        cmdline: value("cmdline")?,
        bootloader_id: value("bootloader_id")?,
    };
    if info.kernel.is_empty() {
        return Err(Error::new(Phase::Boot, format!("{PATH}: `kernel:` is empty")));
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_info_of_installers_is_parsed() {
        let expected = BootInfo {
            kernel: "/boot/vmlinuz-6.1".into(),
            initrd: "/boot/initrd.img-6.1".into(),
            cmdline: "console=ttyS0 root=UUID=1 init=/sbin/init".into(),
            bootloader_id: "metal-debian".into(),
        };
        for text in [
            "initrd: /boot/initrd.img-6.1\ncmdline: console=ttyS0 root=UUID=1 init=/sbin/init\nkernel: /boot/vmlinuz-6.1\n\
             bootloader_id: metal-debian\n",
            "---\n# by the installer\nkernel: \"/boot/vmlinuz-6.1\"\ninitrd: '/boot/initrd.img-6.1'\nextra: [1, 2]\n\
             cmdline: \"console=ttyS0 root=UUID=1 init=/sbin/init\"\nbootloader_id: metal-debian\n",
        ] {
            assert_eq!(parse_boot_info(text).unwrap(), expected);
        }
        let without = parse_boot_info("kernel: /k\ninitrd: ''\ncmdline: ''\nbootloader_id:\n").unwrap();
        assert_eq!((without.initrd.as_str(), without.bootloader_id.as_str()), ("", ""));
    }

    #[test]
    fn missing_fields_are_named() {
        let cases = [
            ("", "`kernel:` is missing"),
            ("- kernel: /k", "not a YAML mapping"),
            ("kernel: [", "not a YAML mapping"),
            (&"- ".repeat(100_000), "nested more than"),
            ("initrd: /i\ncmdline: c\nbootloader_id: b\n", "`kernel:` is missing"),
            ("kernel: /k\ncmdline: c\nbootloader_id: b\n", "`initrd:` is missing"),
            ("kernel: /k\ninitrd: /i\nbootloader_id: b\n", "`cmdline:` is missing"),
            ("kernel: /k\ninitrd: /i\ncmdline: c\n", "`bootloader_id:` is missing"),
            ("kernel: ''\ninitrd: /i\ncmdline: c\nbootloader_id: b\n", "`kernel:` is empty"),
            ("kernel: [/k]\ninitrd: /i\ncmdline: c\nbootloader_id: b\n", "`kernel:` is missing"),
        ];
        for (text, expected) in cases {
            let error = parse_boot_info(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let error = read_boot_info(&NewRoot::open(dir.path()).unwrap()).unwrap_err().to_string();
        assert!(
            error.starts_with("read /etc/metal/boot-info.yaml, which the image's installer must write: "),
            "{error}"
        );
        assert!(error.contains("No such file"), "{error}");
    }
}
