//! Bootable contents of an image, as listed in its manifest. With this list, an image that cannot boot is refused
//! before anything is written.

use crate::architecture::{self, Architecture};
use common::type_errors::locate_json_error;
use serde::{Deserialize, Serialize};

/// Bootable contents that `drophammer image pack` has found in the directory tree of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct BootContents {
    /// Architecture of the image: `amd64` or `arm64`, as recognized from its init program, its shell or its kernel.
    /// `None` if it was not recognized, or if the manifest was written by a version that did not recognize it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "architecture::deserialize_known")]
    pub architecture: Option<Architecture>,
    /// Paths of kernels, such as `/boot/vmlinuz-6.12.48+deb13-amd64`.
    #[serde(default)]
    pub kernels: Vec<String>,
    /// Path of the first process, such as `/sbin/init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// Path of the image's own installer, such as `/install.sh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installer: Option<String>,
    /// Directory of GRUB for BIOS, such as `/usr/lib/grub/i386-pc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grub_bios: Option<String>,
    /// Paths of programs that process user data, such as `/usr/bin/cloud-init` or `/usr/bin/ignition`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub user_data: Vec<String>,
    /// Paths of programs that unlock LUKS containers: `/usr/sbin/cryptsetup`, and the corresponding program of systemd.
    /// `None` if the manifest was written by a version that did not search for such programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cryptsetup: Option<Vec<String>>,
    /// Name of a network manager in the image, such as `wicked`, if drophammer cannot configure any of the network
    /// managers in the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported_network: Option<String>,
}

impl BootContents {
    /// Returns the version in the path of the newest kernel, such as `6.12.48+deb13-amd64`. Returns `None` if no path
    /// contains a version.
    pub fn newest_kernel(&self) -> Option<&str> {
        let versions = self.kernels.iter().filter_map(|path| {
            // The path of a kernel is `/boot/vmlinuz-VERSION`, `/boot/kernel-VERSION`, or
            // `/usr/lib/modules/VERSION/vmlinuz`.
            let (folder, name) = path.rsplit_once('/')?;
            let named = name.split_once('-').map(|(_, version)| version);
            let version = named.unwrap_or(folder.rsplit('/').next().unwrap_or_default());
            Some((parse_linux_version(version)?, version))
        });
        versions.max().map(|(_, version)| version)
    }
}

/// Major and minor version of Linux.
pub type LinuxVersion = (u32, u32);

/// Parses the version of a kernel: `3.10.0-1160.el7.x86_64`.
pub fn parse_linux_version(name: &str) -> Option<LinuxVersion> {
    let mut numbers = name.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Manifest of an image. Other fields of manifests are ignored.
#[derive(Deserialize)]
struct ContentsManifest {
    version: u32,
    digest: String,
    contents: Option<BootContents>,
}

/// Parses the text of a manifest, and returns the contents that it lists. `digest` is the expected digest of the image.
///
/// # Errors
/// Fails if the text is not a manifest, or is the manifest of an image with another digest.
pub fn read_manifest_contents(text: &[u8], digest: &str) -> Result<Option<BootContents>, String> {
    let manifest: ContentsManifest =
        serde_json::from_slice(text).map_err(|error| format!("not a manifest: {}", locate_json_error(&error)))?;
    match manifest {
        ContentsManifest { version, .. } if version != 1 => {
            Err(format!("manifest version {version} is not supported; only version 1 is supported"))
        }
        ContentsManifest { digest: other, .. } if digest.starts_with("sha256:") && other != digest => Err(format!(
            "the manifest is for another image: its digest is {other}, but the digest of this image is {digest}"
        )),
        ContentsManifest { contents, .. } => Ok(contents),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_boot_contents_from_manifest_of_the_same_image() {
        let text =
            br#"{"version": 1, "digest": "sha256:0a", "chunks": [], "contents": {"kernels": ["/boot/vmlinuz-6"]}}"#;
        let expected = BootContents { kernels: vec!["/boot/vmlinuz-6".to_owned()], ..BootContents::default() };
        assert_eq!(read_manifest_contents(text, "sha256:0a"), Ok(Some(expected.clone())));
        // Digests of different algorithms cannot be compared, so they are not checked.
        assert_eq!(read_manifest_contents(text, "sha512:0b"), Ok(Some(expected)));
        assert_eq!(read_manifest_contents(br#"{"version": 1, "digest": "sha256:0a"}"#, "sha256:0a"), Ok(None));
        for (text, says) in [
            (
                &text[..],
                "the manifest is for another image: its digest is sha256:0a, but the digest of this image is sha256:0b",
            ),
            (br#"{"version": 2, "digest": "sha256:0b"}"#, "manifest version 2 is not supported"),
            (b"<html>", "not a manifest"),
        ] {
            let error = read_manifest_contents(text, "sha256:0b").unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }

    #[test]
    fn kernel_versions_are_parsed_from_module_directory_names() {
        for (name, expected) in [
            ("3.10.0-1160.el7.x86_64", Some((3, 10))),
            ("6.1.0-31-amd64", Some((6, 1))),
            ("6.12-arch1", Some((6, 12))),
            ("kabi-current", None),
            ("", None),
        ] {
            assert_eq!(parse_linux_version(name), expected, "{name}");
        }
    }

    #[test]
    fn newest_kernel_is_selected_by_path() {
        let newest = |paths: &[&str]| {
            let kernels = paths.iter().map(|path| (*path).to_owned()).collect();
            BootContents { kernels, ..BootContents::default() }.newest_kernel().map(str::to_owned)
        };
        let both = ["/boot/vmlinuz-5.14.0-427.el9.x86_64", "/boot/vmlinuz-5.4.0-1"];
        assert_eq!(newest(&both).as_deref(), Some("5.14.0-427.el9.x86_64"));
        assert_eq!(
            newest(&["/usr/lib/modules/3.10.0-1160.el7.x86_64/vmlinuz"]).as_deref(),
            Some("3.10.0-1160.el7.x86_64")
        );
        assert_eq!(newest(&["/boot/vmlinuz"]), None);
        assert_eq!(newest(&[]), None);
    }
}
