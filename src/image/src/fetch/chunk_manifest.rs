//! Manifest with the digests of an image's chunks. Each chunk is verified against its digest before it is written.

use crate::pipeline::{Digest, DigestKind};
use common::encoding::{decode_hex, encode_hex};
use common::type_errors::locate_json_error;
use model::image_boot_contents::BootContents;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::io::{self, Read};

/// The only supported version of the manifest format.
const VERSION: u32 = 1;

/// Minimum and maximum length of a chunk, in bytes. The maximum limits the memory that holds a chunk until it is
/// verified. The minimum limits the length of the manifest, which has one line per chunk.
const CHUNK_BYTES: std::ops::RangeInclusive<u32> = 1 << 16..=4 << 20;

/// Length of the chunks in manifests made by `image pack` for images of up to 64 GiB, in bytes. Larger images have
/// larger chunks.
const DEFAULT_CHUNK_BYTES: u32 = 1 << 20;

/// Maximum number of chunks in manifests made by `image pack`. A manifest of 65,536 chunks is 4.4 MB long.
const MAXIMUM_CHUNKS: u64 = 1 << 16;

/// Manifest of an image: the JSON document `IMAGE.manifest` next to the image. All sizes and digests refer to the
/// compressed image, as served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(Default))]
pub struct ImageManifest {
    /// Version of the format, which must be 1.
    pub version: u32,
    /// Id of the image with its version, such as `debian-12.0.20261101`. A signature of the manifest covers the id.
    /// Older manifests do not contain an id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub size_bytes: u64,
    /// SHA-256 of the whole image.
    pub digest: Digest,
    /// Length of each chunk except the last, in bytes.
    pub chunk_bytes: u32,
    /// Boot-related contents, if the image is a tree of files. `None` for disk images and in older manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<BootContents>,
    /// SHA-256 of each chunk, in order. The JSON document contains the digests in hexadecimal.
    #[serde(serialize_with = "write_chunks", deserialize_with = "read_chunks")]
    pub chunks: Vec<[u8; 32]>,
}

impl ImageManifest {
    /// Parses and checks a manifest.
    ///
    /// # Errors
    /// Returns an error if the document is invalid or inconsistent, or its version is not supported.
    pub fn parse(document: &[u8]) -> Result<ImageManifest, String> {
        let reword = |error: serde_json::Error| locate_json_error(&error);
        let versioned: ManifestVersion =
            serde_json::from_slice(document).map_err(|error| format!("not a manifest: {}", reword(error)))?;
        if versioned.version != VERSION {
            return Err(format!(
                "version {version} is not supported; supported version: {VERSION}",
                version = versioned.version
            ));
        }
        let manifest: ImageManifest = serde_json::from_slice(document).map_err(reword)?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        if self.digest.kind != DigestKind::Sha256 {
            return Err(format!("the digest {digest} is not a sha256 digest", digest = self.digest));
        }
        if !CHUNK_BYTES.contains(&self.chunk_bytes) {
            let (least, most) = CHUNK_BYTES.into_inner();
            return Err(format!(
                "chunk_bytes is {chunk_bytes}, but must be between {least} and {most}",
                chunk_bytes = self.chunk_bytes
            ));
        }
        let needed = self.size_bytes.div_ceil(self.chunk_bytes.into());
        if self.chunks.len() as u64 != needed {
            let (size, chunks) = (self.size_bytes, self.chunks.len());
            let chunk_bytes = self.chunk_bytes;
            return Err(format!(
                "the manifest lists {chunks} chunks, but an image of {size} bytes has {needed} chunks of {chunk_bytes} bytes"
            ));
        }
        Ok(())
    }

    /// Reads an image of `size_bytes` bytes and creates its manifest.
    ///
    /// # Errors
    /// Returns an error if reading fails, if the length of the image is not `size_bytes`, or if the image is larger
    /// than 256 GiB.
    pub fn compute(mut image: impl Read, size_bytes: u64) -> io::Result<ImageManifest> {
        let chunk_bytes = choose_chunk_bytes(size_bytes)?;
        let (mut whole, mut chunks, mut read) = (Sha256::new(), Vec::new(), 0);
        let mut chunk = Vec::new();
        loop {
            chunk.clear();
            image.by_ref().take(chunk_bytes.into()).read_to_end(&mut chunk)?;
            if chunk.is_empty() {
                break;
            }
            read += chunk.len() as u64;
            whole.update(&chunk);
            chunks.push(Sha256::digest(&chunk).into());
        }
        if read != size_bytes {
            return Err(io::Error::other(format!(
                "the image's length changed from {size_bytes} to {read} bytes while the image was read"
            )));
        }
        let digest = Digest::from_sha256(whole);
        Ok(ImageManifest { version: VERSION, image: None, size_bytes, digest, chunk_bytes, chunks, contents: None })
    }
}

fn write_chunks<S: Serializer>(chunks: &[[u8; 32]], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(chunks.iter().map(encode_hex))
}

fn read_chunks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<[u8; 32]>, D::Error> {
    let chunks = Vec::<String>::deserialize(deserializer)?;
    let no_sha256 =
        |number| D::Error::custom(format!("chunks[{number}] is not a SHA-256 digest of 64 hexadecimal digits"));
    let chunks = chunks.iter().enumerate();
    let parse = |hex: &str| decode_hex(hex)?.try_into().ok();
    chunks.map(|(number, hex)| parse(hex).ok_or_else(|| no_sha256(number))).collect()
}

/// Version field of a manifest. It is parsed before all other fields, because other versions of the format may have
/// different fields.
#[derive(Deserialize)]
struct ManifestVersion {
    version: u32,
}

fn choose_chunk_bytes(size_bytes: u64) -> io::Result<u32> {
    let mut doubled = (0..).map(|times| DEFAULT_CHUNK_BYTES << times).take_while(|bytes| CHUNK_BYTES.contains(bytes));
    let fits = doubled.find(|bytes| size_bytes.div_ceil(u64::from(*bytes)) <= MAXIMUM_CHUNKS);
    fits.ok_or_else(|| {
        io::Error::other(format!("the image is {size_bytes} bytes, but manifests support images of at most 256 GiB"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    #[test]
    fn computed_manifest_is_parsed_unchanged() {
        for (length, chunks) in [(0, 0), (1, 1), (1 << 20, 1), ((1 << 20) + 1, 2), (5 << 20, 5)] {
            let image = noise(length);
            let manifest = ImageManifest::compute(&image[..], length as u64).unwrap();
            assert_eq!(
                (manifest.chunks.len(), manifest.size_bytes, manifest.chunk_bytes),
                (chunks, length as u64, 1 << 20)
            );
            assert_eq!(ImageManifest::parse(&serde_json::to_vec(&manifest).unwrap()).unwrap(), manifest);
            let last = image.chunks(1 << 20).last().map(|chunk| Sha256::digest(chunk).into());
            assert_eq!(manifest.chunks.last(), last.as_ref());
            assert_eq!(manifest.digest, Digest::of_bytes(&image));
        }
        let other = ImageManifest::compute(&b"abc"[..], 4).unwrap_err().to_string();
        assert!(other.contains("changed from 4 to 3 bytes"), "{other}");
    }

    #[test]
    fn large_images_have_large_chunks() {
        for (size, expected) in [(0, 1 << 20), (64 << 30, 1 << 20), ((64 << 30) + 1, 2 << 20), (256 << 30, 4 << 20)] {
            assert_eq!(choose_chunk_bytes(size).unwrap(), expected);
        }
        assert!(choose_chunk_bytes((256 << 30) + 1).is_err());
    }

    #[test]
    fn refuses_inconsistent_manifest() {
        let good = serde_json::to_value(ImageManifest::compute(&noise(3 << 20)[..], 3 << 20).unwrap()).unwrap();
        let hex = "0a".repeat(32);
        let cases = [
            ("version", 2.into(), "version 2 is not supported; supported version: 1"),
            (
                "size_bytes",
                ((3 << 20) + 1).into(),
                "the manifest lists 3 chunks, but an image of 3145729 bytes has 4 chunks of 1048576 bytes",
            ),
            ("size_bytes", u64::MAX.into(), "the manifest lists 3 chunks"),
            ("size_bytes", 0.into(), "0 bytes has 0 chunks"),
            ("size_bytes", (-1).into(), "must be a whole number, but is the number -1"),
            ("chunk_bytes", 0.into(), "chunk_bytes is 0, but must be between 65536 and 4194304"),
            ("chunk_bytes", u32::MAX.into(), "chunk_bytes is 4294967295"),
            ("chunks", Vec::<String>::new().into(), "the manifest lists 0 chunks"),
            ("chunks", vec![hex.clone(), hex.clone()].into(), "the manifest lists 2 chunks"),
            ("chunks", vec![hex.clone(), "ä".repeat(32), hex.clone()].into(), "chunks[1] is not a SHA-256"),
            ("chunks", vec![hex.clone(), hex.clone(), "0".into()].into(), "chunks[2] is not a SHA-256"),
            ("image", 12.into(), "must be text, but is the number 12"),
            ("contents", serde_json::json!({"kernels": "all"}), "must be a list, but is the text \"all\""),
            ("digest", "sha256:0".into(), "has 1 digits"),
            ("digest", format!("sha512:{}", "0a".repeat(64)).into(), "not a sha256"),
        ];
        for (field, value, says) in cases {
            let mut document = good.clone();
            document[field] = value;
            let error = ImageManifest::parse(document.to_string().as_bytes()).unwrap_err();
            assert!(error.contains(says), "{field}: {error}");
        }
        for (document, says) in
            [(&b""[..], "not a manifest"), (b"<html>", "not a manifest"), (b"{\"version\":1}", "is missing")]
        {
            let error = ImageManifest::parse(document).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
