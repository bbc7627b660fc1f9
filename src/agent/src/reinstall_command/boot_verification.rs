//! Authentication of kernel and ramdisk for a reinstall. Kernel and ramdisk run with full privileges, so they must be
//! downloaded over TLS, or match the digest that the operator has specified.

use super::boot_download::BootFiles;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use control::boot_digest::BootDigest;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Returns a warning if the server is reached over plain HTTP and no digest is specified.
pub(crate) fn plain_http_warning(server: &str, digest: Option<&BootDigest>) -> Option<String> {
    (digest.is_none() && !is_tls(server)).then(|| {
        format!(
            "WARNING: {server} is plain http: another host on this network can replace kernel and ramdisk, which run as root, and the whole installation. \
             Specify --boot-digest, which `drophammer machine boot-digest` prints at the server, or a URL that begins with https://"
        )
    })
}

/// Compares kernel, ramdisk and command line with the digest. Without a digest, a server that is reached over TLS must
/// also offer its files over TLS.
///
/// # Errors
/// Fails if the digest differs or, without a digest, if a TLS server offers a file over plain HTTP. In that case,
/// kernel and ramdisk must not be started. Nothing has been changed.
pub(crate) fn require_digest_or_tls(boot: &BootFiles, server: &str, digest: Option<&BootDigest>) -> Result<()> {
    let Some(expected) = digest else {
        return match [&boot.names.kernel, &boot.names.initrd].into_iter().find(|url| is_tls(server) && !is_tls(url)) {
            Some(url) => Err(Error::refusal(
                Phase::Control,
                format!(
                    "{server} offers {url} over plain http, so another host can replace this file; nothing was changed. Start the server with --url \
                     https://…, or specify --boot-digest"
                ),
            ).with_code(ErrorCode::BootDigest)),
            None => Ok(()),
        };
    };
    let (kernel, initrd) = (PositionedReader::of(&boot.kernel), PositionedReader::of(&boot.initrd));
    let actual = BootDigest::compute_from_files(kernel, initrd, &boot.names.cmdline)
        .context(Phase::Control, || "compute the digest of kernel and ramdisk")?;
    if actual == *expected {
        return Ok(());
    }
    let message = format!(
        "kernel, ramdisk and command line from {server} have the digest {actual}, but --boot-digest is {expected}: they were replaced in transit, or the \
         server's files or options have changed; nothing was changed here. `drophammer machine boot-digest` prints the current digest, which covers the URL specified with --at"
    );
    Err(Error::refusal(Phase::Control, message).with_code(ErrorCode::BootDigest))
}

/// Refuses a boot through the firmware if a digest was specified, since the firmware downloads kernel and ramdisk again
/// without verification.
///
/// # Errors
/// Fails if a digest was specified.
pub(crate) fn refuse_firmware_boot(digest: Option<&BootDigest>, why: &Error) -> Result<()> {
    match digest {
        None => Ok(()),
        Some(_) => Err(Error::refusal(
            Phase::Boot,
            format!(
                "kexec is not possible: {why}; nothing was changed. --boot-digest does not cover a boot over PXE: omit the \
                 option to boot over PXE"
            ),
        ).with_code(ErrorCode::BootDigest)),
    }
}

fn is_tls(url: &str) -> bool {
    url.starts_with("https://")
}

/// Reader that reads a file from its start without changing the file offset.
struct PositionedReader<'a> {
    file: &'a File,
    offset: u64,
}

impl PositionedReader<'_> {
    fn of(file: &File) -> PositionedReader<'_> {
        PositionedReader { file, offset: 0 }
    }
}

impl Read for PositionedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::agent_api_types::NextBoot;
    use control::boot_digest::ANY_TOKEN;
    use std::io::Write;

    const SERVER: &str = "http://10.0.0.1:8080";

    fn file(content: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file
    }

    fn boot(kernel: &str, initrd: &str, cmdline: &str) -> BootFiles {
        let url = |name: &str| format!("{SERVER}/boot/{name}");
        let names = NextBoot { kernel: url("vmlinuz"), initrd: url("initrd"), cmdline: cmdline.to_owned() };
        BootFiles { names, kernel: file(kernel), initrd: file(initrd) }
    }

    fn cmdline(server: &str, token: &str) -> String {
        format!("drophammer.url={server} drophammer.token={token} panic=-1")
    }

    #[test]
    fn only_files_with_the_expected_digest_are_booted() {
        let expected =
            BootDigest::compute_from_files(&b"kernel"[..], &b"initrd"[..], &cmdline(SERVER, ANY_TOKEN)).unwrap();
        let line = cmdline(SERVER, &"0a".repeat(32));
        let good = boot("kernel", "initrd", &line);
        require_digest_or_tls(&good, SERVER, Some(&expected)).unwrap();
        // The check runs twice, because it must not depend on the file offsets.
        require_digest_or_tls(&good, SERVER, Some(&expected)).unwrap();
        for replaced in [
            boot("KERNEL", "initrd", &line),
            boot("kernel", "initrd and more", &line),
            boot("kernel", "initrd", &format!("{line} init=/bin/sh")),
            boot("kernel", "initrd", &cmdline("http://10.0.0.66:8080", &"0a".repeat(32))),
        ] {
            let error = require_digest_or_tls(&replaced, SERVER, Some(&expected)).unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains("nothing was changed"), "{error}");
        }
    }

    #[test]
    fn plain_http_without_a_digest_causes_a_warning() {
        let digest = BootDigest::compute_from_files(&b""[..], &b""[..], "").unwrap();
        let text = plain_http_warning(SERVER, None).unwrap();
        assert!(
            text.starts_with("WARNING: http://10.0.0.1:8080 is plain http") && text.contains("--boot-digest"),
            "{text}"
        );
        assert_eq!(plain_http_warning(SERVER, Some(&digest)), None);
        assert_eq!(plain_http_warning("https://install.rack:8443", None), None);
        require_digest_or_tls(&boot("k", "i", ""), SERVER, None).unwrap();
    }

    #[test]
    fn https_server_must_not_name_http_files() {
        let error = require_digest_or_tls(&boot("k", "i", ""), "https://install.rack", None).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("/boot/vmlinuz over plain http"), "{error}");
    }

    #[test]
    fn firmware_boots_only_without_a_digest() {
        let digest = BootDigest::compute_from_files(&b""[..], &b""[..], "").unwrap();
        let why = Error::new(Phase::Boot, "kernel lockdown");
        refuse_firmware_boot(None, &why).unwrap();
        let error = refuse_firmware_boot(Some(&digest), &why).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("kernel lockdown"), "{error}");
    }
}
