//! Whether an image is one that somebody we trust has signed. What is signed lies beside the image and names its digest, so
//! that this is known before the first byte of the image is fetched.

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

/// Where the ramdisk has keys.
pub const DIRECTORY: &str = "/etc/drophammer/keys";

/// More than any document beside an image: the largest manifest has 4.4 MB.
pub const DOCUMENT_BYTES: u64 = 8 << 20;

const MANIFEST: &str = ".manifest";
/// The output of `sha256sum`.
const SHA256: &str = ".sha256";
const SIGNATURE: &str = ".minisig";

/// Public keys. With none, images need no signature.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys(pub Vec<PublicKey>);

/// An image as far as it is known before anything beside it was read.
pub struct Asked<'a> {
    pub url: &'a str,
    /// That of the allocation.
    pub digest: Option<&'a Digest>,
    /// As the server says it.
    pub size_bytes: Option<u64>,
    /// What a signature has to be for.
    pub id: Option<&'a str>,
    pub minimum: &'a Minimum,
}

/// What is known of an image by what lies beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub digest: Digest,
    pub manifest: Option<Arc<Manifest>>,
    /// Id of the key; without one nobody vouches for this.
    pub signed_by: Option<String>,
    /// Id of the image, as that key has signed it.
    pub signed_as: Option<String>,
}

/// Fetches what lies at a URL, at most [`DOCUMENT_BYTES`]; nothing is there: `None`.
pub type FetchSmall<'a> = &'a dyn Fn(&str) -> Result<Option<Vec<u8>>>;

impl Keys {
    /// The `*.pub` files of a directory, which came with the ramdisk; those that the kernel command line names where it has none.
    /// Whoever boots the machine writes that line: it must not add a key to those that are to be trusted.
    ///
    /// # Errors
    /// Something there is not a key. It was meant to be one, and images must not go unsigned for a slip.
    pub fn read(named: &[String], directory: &Path) -> Result<Keys> {
        let mut keys = Vec::new();
        for text in named {
            let key = text.parse().map_err(|why| bad(format!("kernel command line: drophammer.key={text}: {why}")))?;
            keys.push(key);
        }
        for file in files(directory)? {
            let wrong = |why: String| bad(format!("{}: {why}", file.display()));
            if file.extension().is_none_or(|extension| extension != "pub") {
                return Err(wrong("only *.pub files of minisign and cosign belong there".to_owned()));
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
            tracing::warn!("key {key} of the kernel command line is not trusted: the ramdisk has keys of its own");
        }
        Ok(Keys(own.to_vec()))
    }

    /// Those for what lies beside images, and for machines' files.
    fn minisign(&self) -> impl Iterator<Item = &minisign::PublicKey> {
        self.0.iter().filter_map(PublicKey::minisign)
    }

    /// Those for images in registries.
    pub fn cosign(&self) -> impl Iterator<Item = &cosign::PublicKey> {
        self.0.iter().filter_map(PublicKey::cosign)
    }

    fn ids(&self) -> String {
        let ids: Vec<String> = self.minisign().map(|key| key.id.to_string()).collect();
        if ids.is_empty() { "no key of minisign's".to_owned() } else { ids.join(", ") }
    }

    /// The signature of this text, by one of these keys.
    ///
    /// # Errors
    /// It is of none of them, or does not fit the text.
    pub fn signature(&self, url: &str, text: &[u8], signature: &[u8]) -> Result<Signature> {
        let signature = String::from_utf8_lossy(signature);
        let signature: Signature =
            signature.parse().map_err(|why| refused(format!("{url}{SIGNATURE} is no signature of minisign: {why}")))?;
        let id = signature.key;
        let same_id: Vec<_> = self.minisign().filter(|key| key.id == id).collect();
        if same_id.is_empty() {
            let trusted = self.ids();
            return Err(refused(format!("{url} is signed by key {id}; the keys that are trusted here are {trusted}")));
        }
        if !same_id.iter().any(|key| signature.fits(key, text)) {
            let text = format!("{url}{SIGNATURE}, by key {id}, does not fit {url}: one of them is damaged or forged");
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

/// What lies beside an image at a URL: `IMAGE.manifest`, else `IMAGE.sha256`. With keys one of them must be there and signed.
/// Without, they are taken where they agree with what is known, and nothing depends on them.
///
/// # Errors
/// With keys: no good signature, or what is signed is about another image than the allocation or the server has.
pub fn verified(fetch: FetchSmall, keys: &Keys, image: &Asked) -> Result<Option<Verified>> {
    if keys.0.is_empty() {
        return Ok(unsigned(fetch, image));
    }
    if keys.minisign().next().is_none() {
        let text =
            "only signed images are taken here, and all keys are cosign's, which are for images in registries (oci://)";
        return Err(refused(format!("{}: {text}", image.url)));
    }
    for suffix in [MANIFEST, SHA256] {
        let url = beside(image.url, suffix);
        let Some(signature) = fetch(&beside(image.url, &format!("{suffix}{SIGNATURE}")))? else { continue };
        let Some(text) = fetch(&url)? else {
            return Err(refused(format!("{url} is not there, and its signature is")));
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
        "the image {} is not signed: neither {name}{MANIFEST}{SIGNATURE} nor {name}{SHA256}{SIGNATURE} lies beside it, and here \
         only images signed by {ids} are taken; sign it: sha256sum {name} > {name}{SHA256} && minisign -S -m {name}{SHA256}",
        image.url
    )))
}

fn unsigned(fetch: FetchSmall, image: &Asked) -> Option<Verified> {
    // Where a digest is given, only the manifest says more.
    let wanted = if image.digest.is_some() { &[MANIFEST][..] } else { &[MANIFEST, SHA256] };
    wanted.iter().find_map(|suffix| {
        let url = beside(image.url, suffix);
        let text = fetch(&url).unwrap_or_else(|error| {
            tracing::warn!("{error}; it is not used");
            None
        })?;
        read(suffix, &text, image).map_err(|why| tracing::warn!("{url} is not used: {why}")).ok()
    })
}

/// What a document says, as far as it agrees with what is known.
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
        return Err(format!("it is about {} bytes, and the server's image has {size}", manifest.size_bytes));
    }
    match image.digest {
        Some(given) if given.kind != Kind::Sha256 => Err(format!(
            "it has {digest}, and the digest that was given is {given}: give the sha256, so that they can be compared"
        )),
        Some(given) if *given != digest => Err(format!("it has {digest}, and the digest that was given is {given}")),
        _ => Ok(Verified { digest, manifest: manifest.map(Arc::new), signed_by: None, signed_as: None }),
    }
}

fn sha256_of(text: &[u8], image: &str) -> Result<Digest, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
    format!("sha256:{}", sum_of(text, image)?).parse()
}

/// Of the output of `sha256sum` or `md5sum`: the sum on the image's line, or on the only one, which may be bare.
///
/// # Errors
/// There are several lines, and none is the image's.
pub fn sum_of<'a>(text: &'a str, image: &str) -> Result<&'a str, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines: Vec<_> =
        lines.map(|line| line.trim_start().split_once([' ', '\t']).unwrap_or((line.trim(), ""))).collect();
    let named = |(_, file): &&(&str, &str)| file.trim_start_matches([' ', '*']).rsplit('/').next() == Some(image);
    match (lines.iter().find(named), &lines[..]) {
        // sha256sum(1) begins a line with a backslash when the file's name has one.
        (Some((sum, _)), _) | (None, [(sum, _)]) => Ok(sum.trim_start_matches('\\')),
        _ => Err(format!("it has no line for {image}; it is to be the output of sha256sum")),
    }
}

/// Where the signature of what lies there is.
pub fn signature_beside(url: &str) -> String {
    beside(url, SIGNATURE)
}

/// The query of a URL stays at its end.
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
