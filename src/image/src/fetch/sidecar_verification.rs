//! Verifies minisign signatures of the documents next to an image. A signed document contains the image's digest, so
//! the signature is verified before the first byte of the image is fetched.

use super::chunk_manifest::ImageManifest;
use super::minisign::MinisignSignature;
use super::signature_key::SignatureKey;
use super::signed_image_id::{self, MinimumVersions};
use super::{cosign, minisign};
use crate::pipeline::{Digest, DigestKind};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of the trusted public keys in the ramdisk.
pub const DIRECTORY: &str = "/etc/drophammer/keys";

/// Maximum length of a document next to an image, in bytes. The largest manifest that `image pack` creates is 4.4 MB
/// long.
pub(crate) const DOCUMENT_BYTES: u64 = 8 << 20;

const MANIFEST: &str = ".manifest";
/// Suffix of the file that contains the output of `sha256sum`.
const SHA256: &str = ".sha256";
const SIGNATURE: &str = ".minisig";

/// Trusted public keys. If the list is empty, signatures are not required.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignatureKeys(pub Vec<SignatureKey>);

/// Properties of an image that are known before the files next to the image are read.
pub(crate) struct KnownImage<'a> {
    pub url: &'a str,
    /// Digest that the allocation or the command line specifies.
    pub digest: Option<&'a Digest>,
    /// Size that the server reports, in bytes.
    pub size_bytes: Option<u64>,
    /// Image id that the signature must cover.
    pub id: Option<&'a str>,
    pub minimum: &'a MinimumVersions,
}

/// Result of reading the files next to an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VerifiedDocument {
    pub digest: Digest,
    pub manifest: Option<Arc<ImageManifest>>,
    /// Id of the key that signed the document; `None` if no signature was required.
    pub signed_by: Option<String>,
    /// Image id that the signature covers, if any.
    pub signed_as: Option<String>,
}

/// Fetches the document at a URL; returns `None` if the document does not exist. The document may be at most
/// [`DOCUMENT_BYTES`] long.
pub(crate) type FetchDocument<'a> = &'a dyn Fn(&str) -> Result<Option<Vec<u8>>>;

impl SignatureKeys {
    /// Reads the trusted keys: the `*.pub` files in a directory of the ramdisk or, if there are none, the keys on the
    /// kernel command line (`named`). If the ramdisk contains keys, the keys on the command line are ignored, because
    /// the boot server controls the command line.
    ///
    /// # Errors
    /// Returns an error if any file or argument is not a valid key, so that a typo does not disable the verification of
    /// signatures.
    pub fn read(named: &[String], directory: &Path) -> Result<SignatureKeys> {
        let mut keys = Vec::new();
        for text in named {
            let key = text
                .parse()
                .map_err(|why| configuration_error(format!("kernel command line: drophammer.key={text}: {why}")))?;
            keys.push(key);
        }
        for file in list_key_files(directory)? {
            let wrong = |why: String| configuration_error(format!("{}: {why}", file.display()));
            if file.extension().is_none_or(|extension| extension != "pub") {
                return Err(wrong("this directory may contain only *.pub files of minisign and cosign".to_owned()));
            }
            let text =
                std::fs::read_to_string(&file).context(Phase::Settings, || format!("read {}", file.display()))?;
            keys.push(text.parse().map_err(wrong)?);
        }
        let (named, own) = keys.split_at(named.len());
        if own.is_empty() {
            return Ok(SignatureKeys(named.to_vec()));
        }
        for key in named.iter().filter(|key| !own.contains(key)) {
            tracing::warn!(
                "ignoring the key {key} from the kernel command line: only the keys in the ramdisk are trusted"
            );
        }
        Ok(SignatureKeys(own.to_vec()))
    }

    /// Returns the minisign keys, which verify machine files and the files next to images.
    fn minisign(&self) -> impl Iterator<Item = &minisign::MinisignPublicKey> {
        self.0.iter().filter_map(SignatureKey::minisign)
    }

    /// Returns the cosign keys, which verify images in registries.
    pub(crate) fn cosign(&self) -> impl Iterator<Item = &cosign::CosignPublicKey> {
        self.0.iter().filter_map(SignatureKey::cosign)
    }

    fn list_ids(&self) -> String {
        let ids: Vec<String> = self.minisign().map(|key| key.id.to_string()).collect();
        if ids.is_empty() { "no minisign key".to_owned() } else { ids.join(", ") }
    }

    /// Verifies the minisign signature of the text at `url`. The signature must have been made with one of these keys.
    ///
    /// # Errors
    /// Returns an error if the signature is invalid, was made with another key, or does not match the text.
    pub fn verify_signature(&self, url: &str, text: &[u8], signature: &[u8]) -> Result<MinisignSignature> {
        let signature = String::from_utf8_lossy(signature);
        let signature: MinisignSignature =
            signature.parse().map_err(|why| reject(format!("{url}{SIGNATURE} is not a minisign signature: {why}")))?;
        let id = signature.key;
        let same_id: Vec<_> = self.minisign().filter(|key| key.id == id).collect();
        if same_id.is_empty() {
            let trusted = self.list_ids();
            return Err(reject(format!("{url} is signed by key {id}, which is not trusted; trusted keys: {trusted}")));
        }
        if !same_id.iter().any(|key| signature.verify(key, text)) {
            let text = format!(
                "the signature {url}{SIGNATURE} by key {id} does not match {url}: one of them is \
                                damaged or forged"
            );
            return Err(reject(text));
        }
        tracing::info!("{url} is signed by key {id}, with the trusted comment: {comment}", comment = signature.comment);
        Ok(signature)
    }
}

fn list_key_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let listed = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()),
    };
    let mut files: Vec<PathBuf> = listed.context(Phase::Settings, || format!("read {}", directory.display()))?;
    files.sort();
    Ok(files)
}

/// Reads a document next to the image: `IMAGE.manifest` or, if there is no manifest, `IMAGE.sha256`. If keys are
/// configured, a signed document must exist. If no keys are configured, a document is used only if it agrees with the
/// known size and digest.
///
/// # Errors
/// Returns an error if keys are configured, but there is no valid signature, or the signed document is for another
/// image.
pub(crate) fn verify_documents(
    fetch: FetchDocument,
    keys: &SignatureKeys,
    image: &KnownImage,
) -> Result<Option<VerifiedDocument>> {
    if keys.0.is_empty() {
        return Ok(read_unsigned(fetch, image));
    }
    if keys.minisign().next().is_none() {
        let text = "only signed images are allowed, but all configured keys are cosign keys, which can only verify \
             images in registries (oci://)";
        return Err(reject(format!("{}: {text}", image.url)));
    }
    for suffix in [MANIFEST, SHA256] {
        let url = linux::http::append_to_path(image.url, suffix);
        let Some(signature) = fetch(&linux::http::append_to_path(image.url, &format!("{suffix}{SIGNATURE}")))? else {
            continue;
        };
        let Some(text) = fetch(&url)? else {
            return Err(reject(format!("{url} does not exist, but its signature file exists")));
        };
        let signature = keys.verify_signature(&url, &text, &signature)?;
        let wrong = |why: String| reject(format!("{url}: {why}"));
        let verified = read_document(suffix, &text, image).map_err(wrong)?;
        let in_manifest = verified.manifest.as_ref().and_then(|manifest| manifest.image.as_deref());
        let name = in_manifest.or_else(|| signed_image_id::id_in_comment(&signature.comment)).map(str::to_owned);
        signed_image_id::check_signed_name(name.as_deref(), image.id, image.minimum).map_err(wrong)?;
        return Ok(Some(VerifiedDocument { signed_by: Some(signature.key.to_string()), signed_as: name, ..verified }));
    }
    let (ids, name) = (keys.list_ids(), url_file_name(image.url));
    Err(reject(format!(
        "the image {} is not signed: neither {name}{MANIFEST}{SIGNATURE} nor {name}{SHA256}{SIGNATURE} exists next \
         to it, and only images signed by {ids} are allowed; sign it with: sha256sum {name} > {name}{SHA256} && \
         minisign -S -m {name}{SHA256}",
        image.url
    )))
}

fn read_unsigned(fetch: FetchDocument, image: &KnownImage) -> Option<VerifiedDocument> {
    // If a digest is specified, the checksum file is not needed.
    let wanted = if image.digest.is_some() { &[MANIFEST][..] } else { &[MANIFEST, SHA256] };
    wanted.iter().find_map(|suffix| {
        let url = linux::http::append_to_path(image.url, suffix);
        let text = fetch(&url).unwrap_or_else(|error| {
            tracing::warn!("{error}; ignored");
            None
        })?;
        read_document(suffix, &text, image).map_err(|why| tracing::warn!("ignoring {url}: {why}")).ok()
    })
}

/// Parses a document, and checks that it agrees with the known size and digest of the image.
fn read_document(suffix: &str, text: &[u8], image: &KnownImage) -> Result<VerifiedDocument, String> {
    let manifest = match suffix {
        MANIFEST => Some(ImageManifest::parse(text)?),
        _ => None,
    };
    let digest = match &manifest {
        Some(manifest) => manifest.digest.clone(),
        None => parse_sha256_file(text, url_file_name(image.url))?,
    };
    if let (Some(manifest), Some(size)) = (&manifest, image.size_bytes)
        && manifest.size_bytes != size
    {
        return Err(format!(
            "the manifest is for an image of {expected} bytes, but the server's image is {size} bytes",
            expected = manifest.size_bytes
        ));
    }
    match image.digest {
        Some(given) if given.kind != DigestKind::Sha256 => Err(format!(
            "the digest {digest} in the signed file cannot be compared with the specified digest {given}; specify the \
            sha256 digest"
        )),
        Some(given) if *given != digest => Err(format!("digest {digest} differs from the specified digest {given}")),
        _ => Ok(VerifiedDocument { digest, manifest: manifest.map(Arc::new), signed_by: None, signed_as: None }),
    }
}

fn parse_sha256_file(text: &[u8], image: &str) -> Result<Digest, String> {
    let text = std::str::from_utf8(text).map_err(|_| "the file is not text".to_owned())?;
    format!("sha256:{}", find_checksum(text, image)?).parse()
}

/// Returns the checksum of the image from the output of `sha256sum` or `md5sum`. The checksum is taken from the line
/// with the image's name; if the output has only one line, the name in this line is ignored.
///
/// # Errors
/// Returns an error if the text is empty, or has several lines and none of them contains the image's name.
pub(crate) fn find_checksum<'a>(text: &'a str, image: &str) -> Result<&'a str, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines: Vec<_> =
        lines.map(|line| line.trim_start().split_once([' ', '\t']).unwrap_or((line.trim(), ""))).collect();
    let named = |(_, file): &&(&str, &str)| file.trim_start_matches([' ', '*']).rsplit('/').next() == Some(image);
    match (lines.iter().find(named), &lines[..]) {
        // A backslash at the start is removed: sha256sum(1) prints it if the file's name contains a backslash.
        (Some((sum, _)), _) | (None, [(sum, _)]) => Ok(sum.trim_start_matches('\\')),
        _ => Err(format!("found no line for {image}; the file must contain the output of sha256sum")),
    }
}

/// Returns the URL of the signature of a document.
pub fn signature_url(url: &str) -> String {
    linux::http::append_to_path(url, SIGNATURE)
}

fn url_file_name(url: &str) -> &str {
    let path = &url[..url.find(['?', '#']).unwrap_or(url.len())];
    path.rsplit('/').next().unwrap_or(path)
}

fn configuration_error(text: String) -> Error {
    Error::new(Phase::Settings, text)
}

fn reject(text: String) -> Error {
    Error::refusal(Phase::Image, text).with_code(ErrorCode::SignatureRejected)
}

#[cfg(test)]
mod tests;
