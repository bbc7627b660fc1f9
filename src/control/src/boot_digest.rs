//! Digest of the kernel, the ramdisk and the kernel command line that a running machine boots for its reinstall.
//!
//! The server computes the digest for the operator, who passes it to `drophammer reinstall` on the machine. The command
//! computes the digest of the files and the command line that it has received, and compares both digests. Therefore
//! another host on an unprotected network cannot replace the kernel, the ramdisk, or the server address on the command
//! line without being noticed.

use common::encoding::{decode_hex, encode_hex, hash_reader};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

/// Kernel argument with the machine's token, which is different for each boot.
const TOKEN: &str = "drophammer.token=";

/// Placeholder for the token in the text from which the digest is computed.
pub const ANY_TOKEN: &str = "*";

/// SHA-256 of a string that consists of the digests of kernel and ramdisk, and the command line. It is displayed as
/// `sha256:HEX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootDigest([u8; 32]);

impl BootDigest {
    /// Computes the digest from the command line and from the complete contents of kernel and initrd.
    ///
    /// # Errors
    /// Fails if a file cannot be read.
    pub fn compute_from_files(kernel: impl Read, initrd: impl Read, cmdline: &str) -> io::Result<BootDigest> {
        let (kernel, initrd) = (hash_reader(kernel)?, hash_reader(initrd)?);
        let text = format!("drophammer boot 1\nkernel {kernel}\ninitrd {initrd}\ncmdline {}\n", replace_token(cmdline));
        Ok(BootDigest(Sha256::digest(text).into()))
    }
}

/// Replaces the token by a placeholder. A value that contains characters other than hexadecimal digits is not a
/// token, and is not replaced; the digest then covers it.
fn replace_token(cmdline: &str) -> String {
    let is_token =
        |value: &str| (64..=256).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = cmdline.split(' ').map(|word| match word.strip_prefix(TOKEN) {
        Some(value) if is_token(value) => format!("{TOKEN}{ANY_TOKEN}"),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

impl fmt::Display for BootDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", encode_hex(self.0))
    }
}

impl FromStr for BootDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<BootDigest, String> {
        let wrong = || {
            "the digest must have the format that `drophammer machine boot-digest` prints: sha256: and 64 hexadecimal digits"
                .to_owned()
        };
        let bytes = text.strip_prefix("sha256:").and_then(decode_hex).and_then(|bytes| bytes.try_into().ok());
        bytes.map(BootDigest).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(kernel: &str, initrd: &str, cmdline: &str) -> BootDigest {
        BootDigest::compute_from_files(kernel.as_bytes(), initrd.as_bytes(), cmdline).unwrap()
    }

    fn cmdline(token: &str) -> String {
        format!("drophammer.url=http://10.0.0.1:8080 drophammer.token={token} drophammer.machine=m panic=-1")
    }

    #[test]
    fn digest_is_independent_of_the_boot_token() {
        let known = digest("k", "i", &cmdline(ANY_TOKEN));
        for token in ["0".repeat(64), "F".repeat(64)] {
            assert_eq!(digest("k", "i", &cmdline(&token)), known);
        }
    }

    #[test]
    fn digest_depends_on_everything_except_the_token() {
        let (token, known) = ("a".repeat(64), digest("k", "i", &cmdline(ANY_TOKEN)));
        let line = cmdline(&token);
        for (what, other) in [
            ("kernel", digest("K", "i", &line)),
            ("ramdisk", digest("k", "I", &line)),
            ("both exchanged", digest("i", "k", &line)),
            ("server", digest("k", "i", &line.replace("10.0.0.1", "10.0.0.2"))),
            ("another argument", digest("k", "i", &format!("{line} init=/bin/sh"))),
            ("two tokens", digest("k", "i", &format!("{line} drophammer.token={token}"))),
            ("an argument in the token", digest("k", "i", &cmdline(&format!("{token}\tinit=/bin/sh")))),
            ("a short token", digest("k", "i", &cmdline(&token[1..]))),
            ("a quoted token", digest("k", "i", &cmdline(&format!("\"{}\"", &token[2..])))),
            ("blanks", digest("k", "i", &line.replace(' ', "  "))),
            ("a line", digest("k", "i", &format!("{line}\n"))),
        ] {
            assert_ne!(other, known, "{what}");
        }
    }

    #[test]
    fn digests_are_parsed_only_in_printed_form() {
        let known = digest("k", "i", "");
        assert_eq!(known.to_string().parse(), Ok(known));
        for wrong in [
            "",
            "sha256:",
            "sha256:00",
            &known.to_string()[7..],
            &format!("sha256:{}", "+f".repeat(32)),
            &format!("sha256:{}", "é".repeat(32)),
        ] {
            assert!(wrong.parse::<BootDigest>().is_err(), "{wrong}");
        }
    }
}
