//! What of an image's files makes a machine boot, as its manifest tells it: enough to refuse before the first write what could not boot.

use serde::{Deserialize, Serialize};

/// What `drophammer image pack` has found in a tree. What is not there is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Contents {
    /// `/boot/vmlinuz-6.12.48+deb13-amd64`.
    #[serde(default)]
    pub kernels: Vec<String>,
    /// What the kernel starts first: `/sbin/init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// The image's own installer: `/install.sh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installer: Option<String>,
    /// GRUB for machines that boot by BIOS: `/usr/lib/grub/i386-pc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grub_bios: Option<String>,
    /// What does something with user data: `/usr/bin/cloud-init`, `/usr/bin/ignition`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub user_data: Vec<String>,
    /// What opens LUKS containers: `/usr/sbin/cryptsetup`, systemd's own. Where it is not said at all, nobody has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cryptsetup: Option<Vec<String>>,
}

/// Of the document beside an image, for who has nothing else of it to read.
#[derive(Deserialize)]
struct Manifest {
    version: u32,
    digest: String,
    contents: Option<Contents>,
}

/// The contents of an image with this digest, as the text of its manifest tells them.
///
/// # Errors
/// It is no manifest, or one of another image.
pub fn of_manifest(text: &[u8], digest: &str) -> Result<Option<Contents>, String> {
    let manifest: Manifest = serde_json::from_slice(text).map_err(|error| format!("it is no manifest: {error}"))?;
    match manifest {
        Manifest { version, .. } if version != 1 => Err(format!("it is of version {version}; version 1 is known here")),
        Manifest { digest: other, .. } if digest.starts_with("sha256:") && other != digest => {
            Err(format!("it is about an image with the digest {other}, and this one has {digest}"))
        }
        Manifest { contents, .. } => Ok(contents),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_tells_the_contents_of_its_own_image() {
        let text =
            br#"{"version": 1, "digest": "sha256:0a", "chunks": [], "contents": {"kernels": ["/boot/vmlinuz-6"]}}"#;
        let expected = Contents { kernels: vec!["/boot/vmlinuz-6".to_owned()], ..Contents::default() };
        assert_eq!(of_manifest(text, "sha256:0a"), Ok(Some(expected.clone())));
        // Another kind of digest cannot be compared.
        assert_eq!(of_manifest(text, "sha512:0b"), Ok(Some(expected)));
        assert_eq!(of_manifest(br#"{"version": 1, "digest": "sha256:0a"}"#, "sha256:0a"), Ok(None));
        for (text, says) in [
            (&text[..], "it is about an image with the digest sha256:0a, and this one has sha256:0b"),
            (br#"{"version": 2, "digest": "sha256:0b"}"#, "it is of version 2; version 1 is known here"),
            (b"<html>", "it is no manifest"),
        ] {
            let error = of_manifest(text, "sha256:0b").unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
