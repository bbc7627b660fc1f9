//! Copies an image to a file, unchanged, and verifies its digest and its format. `drophammer image add` uses this
//! module.

use crate::fetch::{self, FetchRetryPolicy, ImageSource, ResolvedImage};
use crate::image_format::{HEAD_BYTES, ImageFormat, StatedFormat, check_format};
use crate::pipeline::{Digest, DigestKind, DigestReader};
use common::error::{Context, Error, Phase, Result};
use linux::http;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Suffixes of the files next to an image. The name of each file is the image's name with one of these suffixes.
pub const SIDECAR_SUFFIXES: [&str; 4] = [".manifest", ".sha256", ".manifest.minisig", ".sha256.minisig"];

/// Image that was copied to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedImage {
    pub size_bytes: u64,
    /// Detected format; `None` if the format was not detected, and the operator has stated it.
    pub format: Option<ImageFormat>,
}

/// Returns the URL of an image that is specified by a URL or by a path.
///
/// # Errors
/// Returns an error if the path does not exist.
pub fn parse_location(location: &str) -> Result<String> {
    if location.contains("://") {
        return Ok(location.to_owned());
    }
    let path = std::fs::canonicalize(location).context(Phase::Image, || format!("open the image {location}"))?;
    let url = reqwest::Url::from_file_path(&path);
    url.map(String::from).map_err(|()| Error::new(Phase::Image, format!("{location} is not the path of an image")))
}

/// Computes the SHA-256 of a file.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn compute_digest(path: &Path) -> Result<Digest> {
    let what = || format!("read {}", path.display());
    let mut reader = DigestReader::new(File::open(path).context(Phase::Image, what)?, DigestKind::Sha256);
    io::copy(&mut reader, &mut io::sink()).context(Phase::Image, what)?;
    Ok(reader.finish())
}

/// Copies a resolved image, as served, to `target`. An image whose format is not recognized is accepted only if the
/// operator has stated the format.
///
/// # Errors
/// Returns an error if the image cannot be fetched or written, does not match its digest, or has a format that the
/// agent does not support. `target` may then contain a part of the image.
pub fn copy_image(
    resolved: &ResolvedImage,
    stated: Option<StatedFormat>,
    target: &mut impl Write,
) -> Result<CopiedImage> {
    let refused = |why: &str| Error::refusal(Phase::Image, format!("{}: {why}", resolved.url));
    let [part] = &resolved.parts[..] else { return Err(refused("the image consists of several layers")) };
    if part.digest.kind == DigestKind::Md5 {
        return Err(refused("md5 digests are not supported, because they can be forged; specify the sha256 digest"));
    }
    let client = http::new_download_client(None)?;
    let source = fetch::open_source(&client, part, &FetchRetryPolicy::default());
    let mut reader = DigestReader::new(source, part.digest.kind);
    let fetched = || format!("fetch {}", resolved.url);
    let mut head = Vec::new();
    reader.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head).context(Phase::Image, fetched)?;
    let format = check_format(&head, stated).map_err(|why| refused(&why))?;
    target.write_all(&head).context(Phase::Image, || "write the image")?;
    let rest = io::copy(&mut reader, target).context(Phase::Image, fetched)?;
    let found = reader.finish();
    match found == part.digest {
        true => Ok(CopiedImage { size_bytes: head.len() as u64 + rest, format }),
        false => Err(refused(&format!(
            "the image has the digest {found}, but {expected} is expected",
            expected = part.digest
        ))),
    }
}

/// Reads the file whose URL consists of the URL of an image, with `suffix` appended to the path. Returns `None` if the
/// file does not exist.
///
/// # Errors
/// Returns an error if the server does not respond, or the file is too long.
pub fn read_sidecar(url: &str, suffix: &str) -> Result<Option<Vec<u8>>> {
    let client = http::new_download_client(None)?;
    fetch::read_document(&client, &http::append_to_path(url, suffix), &FetchRetryPolicy::default())
}

/// Returns the path of the image, if it is a file on this host.
pub fn local_path(source: &ImageSource) -> Option<PathBuf> {
    fetch::path_of_url(&source.url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &Path, digest: &str) -> ImageSource {
        let url = parse_location(path.to_str().unwrap()).unwrap();
        let digest = fetch::parse_given_digest(Some(digest), &url).unwrap();
        ImageSource { url, digest, ..ImageSource::default() }
    }

    #[test]
    fn verified_image_is_copied_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("an image.raw");
        let mut content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        content[..4].copy_from_slice(b"XFSB");
        std::fs::write(&path, &content).unwrap();
        let digest = compute_digest(&path).unwrap().to_string();
        let mut copy = Vec::new();
        let resolved = crate::resolve_image(&source(&path, &digest)).unwrap();
        let copied = copy_image(&resolved, None, &mut copy).unwrap();
        assert_eq!(
            (copied.size_bytes, copied.format),
            (content.len() as u64, Some(ImageFormat::UnpartitionedDisk("XFS")))
        );
        assert_eq!(copy, content);
        let resolved = crate::resolve_image(&source(&path, &format!("sha256:{}", "0".repeat(64)))).unwrap();
        let error = copy_image(&resolved, None, &mut Vec::new()).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("but sha256:0000"), "{error}");
    }

    #[test]
    fn refuses_file_in_another_format() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.vmdk");
        std::fs::write(&path, b"KDMV....").unwrap();
        let digest = compute_digest(&path).unwrap().to_string();
        let resolved = crate::resolve_image(&source(&path, &digest)).unwrap();
        let error = copy_image(&resolved, None, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("VMDK"), "{error}");
        assert!(parse_location("/no/such/image").unwrap_err().to_string().contains("open the image /no/such/image"));
    }
}
