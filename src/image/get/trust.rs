//! Verification of signatures next to an image. The signed document contains the image's digest, so the signature is
//! verified before the first byte of the image is fetched.

use super::key::PublicKey;
use super::manifest::Manifest;
use super::minisign::Signature;
use super::named::{self, Minimum};
use super::{cosign, minisign};
use crate::error::{Context, Error, Phase, Result};
use crate::image::flow::{Digest, Kind};
use crate::order;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of trusted keys in the ramdisk.
pub const DIRECTORY: &str = "/etc/drophammer/keys";

/// Maximum length of a document next to an image, in bytes: the largest manifest has 4.4 MB.
pub const DOCUMENT_BYTES: u64 = 8 << 20;

const MANIFEST: &str = ".manifest";
/// The output of `sha256sum`.
const SHA256: &str = ".sha256";
const SIGNATURE: &str = ".minisig";

/// Trusted public keys. Without any, images need no signature.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys(pub Vec<PublicKey>);

/// Properties of an image known before the files next to it are read.
pub struct Asked<'a> {
    pub url: &'a str,
    /// Digest requested by the allocation.
    pub digest: Option<&'a Digest>,
    /// Size reported by the server.
    pub size_bytes: Option<u64>,
    /// Image id that the signature must cover.
    pub id: Option<&'a str>,
    pub minimum: &'a Minimum,
}

/// Result of reading the files next to an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub digest: Digest,
    pub manifest: Option<Arc<Manifest>>,
    /// Id of the key; `None` if the information is not signed.
    pub signed_by: Option<String>,
    /// Id of the image that the signature covers.
    pub signed_as: Option<String>,
}

/// Fetches the document at a URL, at most [`DOCUMENT_BYTES`]; `None` if it does not exist.
pub type FetchSmall<'a> = &'a dyn Fn(&str) -> Result<Option<Vec<u8>>>;

impl Keys {
    /// Reads the `*.pub` files of a directory in the ramdisk, or, if it has none, the keys on the kernel command line.
    /// The operator of the boot server writes that line, so it must not add keys to those of the ramdisk.
    ///
    /// # Errors
    /// Returns an error if any file or argument is not a valid key: images must not go unsigned because of a typo.
    pub fn read(named: &[String], directory: &Path) -> Result<Keys> {
        let mut keys = Vec::new();
        for text in named {
            let key = text.parse().map_err(|why| bad(format!("kernel command line: drophammer.key={text}: {why}")))?;
            keys.push(key);
        }
        for file in files(directory)? {
            let wrong = |why: String| bad(format!("{}: {why}", file.display()));
            if file.extension().is_none_or(|extension| extension != "pub") {
                return Err(wrong("only *.pub files of minisign and cosign are allowed in this directory".to_owned()));
            }
            let text =
                std::fs::read_to_string(&file).context(Phase::Settings, || format!("read {}", file.display()))?;
            keys.push(text.parse().map_err(wrong)?);
        }
        let (named, own) = keys.split_at(named.len());
        if own.is_empty() {
            return Ok(Keys(named.to_vec()));
        }
        for key in named.iter().filter(|key| !own.contains(key)) {
            tracing::warn!("key {key} of the kernel command line is not trusted: the ramdisk has its own keys");
        }
        Ok(Keys(own.to_vec()))
    }

    /// Returns the keys for files next to images, and for machine files.
    fn minisign(&self) -> impl Iterator<Item = &minisign::PublicKey> {
        self.0.iter().filter_map(PublicKey::minisign)
    }

    /// Returns the keys for images in registries.
    pub fn cosign(&self) -> impl Iterator<Item = &cosign::PublicKey> {
        self.0.iter().filter_map(PublicKey::cosign)
    }

    fn ids(&self) -> String {
        let ids: Vec<String> = self.minisign().map(|key| key.id.to_string()).collect();
        if ids.is_empty() { "no minisign key".to_owned() } else { ids.join(", ") }
    }

    /// Verifies the signature of a text by one of these keys.
    ///
    /// # Errors
    /// Returns an error if it is by another key or does not match the text.
    pub fn signature(&self, url: &str, text: &[u8], signature: &[u8]) -> Result<Signature> {
        let signature = String::from_utf8_lossy(signature);
        let signature: Signature =
            signature.parse().map_err(|why| refused(format!("{url}{SIGNATURE} is not a minisign signature: {why}")))?;
        let id = signature.key;
        let same_id: Vec<_> = self.minisign().filter(|key| key.id == id).collect();
        if same_id.is_empty() {
            let trusted = self.ids();
            return Err(refused(format!("{url} is signed by key {id}, which is not trusted; trusted keys: {trusted}")));
        }
        if !same_id.iter().any(|key| signature.fits(key, text)) {
            let text = format!(
                "the signature {url}{SIGNATURE} by key {id} does not match {url}: one of them is \
                                damaged or forged"
            );
            return Err(refused(text));
        }
        tracing::info!("{url} is signed by key {id}: {}", signature.comment);
        Ok(signature)
    }
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let listed = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()),
    };
    let mut files: Vec<PathBuf> = listed.context(Phase::Settings, || format!("read {}", directory.display()))?;
    order::sort(&mut files);
    Ok(files)
}

/// Reads the documents next to the image at a URL: `IMAGE.manifest`, or else `IMAGE.sha256`. With keys, one of them
/// must exist and be signed. Without keys, they are used only if they agree with what is known.
///
/// # Errors
/// Returns an error if keys are configured and there is no valid signature, or the signed document is for another
/// image.
pub fn verified(fetch: FetchSmall, keys: &Keys, image: &Asked) -> Result<Option<Verified>> {
    if keys.0.is_empty() {
        return Ok(unsigned(fetch, image));
    }
    if keys.minisign().next().is_none() {
        let text = "only signed images are allowed, but all configured keys are cosign keys, which are for images in \
             registries (oci://)";
        return Err(refused(format!("{}: {text}", image.url)));
    }
    for suffix in [MANIFEST, SHA256] {
        let url = beside(image.url, suffix);
        let Some(signature) = fetch(&beside(image.url, &format!("{suffix}{SIGNATURE}")))? else { continue };
        let Some(text) = fetch(&url)? else {
            return Err(refused(format!("{url} does not exist, but its signature does")));
        };
        let signature = keys.signature(&url, &text, &signature)?;
        let wrong = |why: String| refused(format!("{url}: {why}"));
        let verified = read(suffix, &text, image).map_err(wrong)?;
        let in_manifest = verified.manifest.as_ref().and_then(|manifest| manifest.image.as_deref());
        let name = in_manifest.or_else(|| named::in_comment(&signature.comment)).map(str::to_owned);
        named::check(name.as_deref(), image.id, image.minimum).map_err(wrong)?;
        return Ok(Some(Verified { signed_by: Some(signature.key.to_string()), signed_as: name, ..verified }));
    }
    let (ids, name) = (keys.ids(), name(image.url));
    Err(refused(format!(
        "the image {} is not signed: neither {name}{MANIFEST}{SIGNATURE} nor {name}{SHA256}{SIGNATURE} exists next \
         to it, and only images signed by {ids} are allowed; sign it with: sha256sum {name} > {name}{SHA256} && \
         minisign -S -m {name}{SHA256}",
        image.url
    )))
}

fn unsigned(fetch: FetchSmall, image: &Asked) -> Option<Verified> {
    // If a digest is specified, only the manifest adds information.
    let wanted = if image.digest.is_some() { &[MANIFEST][..] } else { &[MANIFEST, SHA256] };
    wanted.iter().find_map(|suffix| {
        let url = beside(image.url, suffix);
        let text = fetch(&url).unwrap_or_else(|error| {
            tracing::warn!("{error}; ignored");
            None
        })?;
        read(suffix, &text, image).map_err(|why| tracing::warn!("{url} is ignored: {why}")).ok()
    })
}

/// Parses a document and checks that it agrees with what is known.
fn read(suffix: &str, text: &[u8], image: &Asked) -> Result<Verified, String> {
    let manifest = match suffix {
        MANIFEST => Some(Manifest::parse(text)?),
        _ => None,
    };
    let digest = match &manifest {
        Some(manifest) => manifest.digest.clone(),
        None => sha256_of(text, name(image.url))?,
    };
    if let (Some(manifest), Some(size)) = (&manifest, image.size_bytes)
        && manifest.size_bytes != size
    {
        return Err(format!("it is for an image of {} bytes, but the server's image has {size}", manifest.size_bytes));
    }
    match image.digest {
        Some(given) if given.kind != Kind::Sha256 => Err(format!(
            "it has {digest}, but the specified digest is {given}; specify the sha256, so that they can be compared"
        )),
        Some(given) if *given != digest => Err(format!("it has {digest}, but the specified digest is {given}")),
        _ => Ok(Verified { digest, manifest: manifest.map(Arc::new), signed_by: None, signed_as: None }),
    }
}

fn sha256_of(text: &[u8], image: &str) -> Result<Digest, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
    format!("sha256:{}", sum_of(text, image)?).parse()
}

/// Returns the sum from the output of `sha256sum` or `md5sum`: that on the image's line, or on the only line, which may
/// be bare.
///
/// # Errors
/// Returns an error if there are several lines and none is for the image.
pub fn sum_of<'a>(text: &'a str, image: &str) -> Result<&'a str, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines: Vec<_> =
        lines.map(|line| line.trim_start().split_once([' ', '\t']).unwrap_or((line.trim(), ""))).collect();
    let named = |(_, file): &&(&str, &str)| file.trim_start_matches([' ', '*']).rsplit('/').next() == Some(image);
    match (lines.iter().find(named), &lines[..]) {
        // sha256sum(1) begins a line with a backslash when the file's name has one.
        (Some((sum, _)), _) | (None, [(sum, _)]) => Ok(sum.trim_start_matches('\\')),
        _ => Err(format!("no line for {image} found; expected is the output of sha256sum")),
    }
}

/// Returns the URL of the signature of a document.
pub fn signature_beside(url: &str) -> String {
    beside(url, SIGNATURE)
}

/// Appends `suffix` to the path of a URL. A query stays at the end.
fn beside(url: &str, suffix: &str) -> String {
    let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    format!("{path}{suffix}{query}")
}

fn name(url: &str) -> &str {
    let path = &url[..url.find(['?', '#']).unwrap_or(url.len())];
    path.rsplit('/').next().unwrap_or(path)
}

fn bad(text: String) -> Error {
    Error::new(Phase::Settings, text)
}

fn refused(text: String) -> Error {
    Error::refusal(Phase::Image, text)
}

#[cfg(test)]
mod tests;
