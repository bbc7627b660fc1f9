//! The digests of an image's pieces, so that bytes are verified before they are written.

use crate::contents::Contents;
use crate::image::flow::{Digest, Kind};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::digest::Output;
use sha2::{Digest as _, Sha256};
use std::io::{self, Read};

/// The only version there is.
const VERSION: u32 = 1;

/// A piece waits in memory until it is verified: not too large. A small one costs a line in the document: not too small.
const CHUNK_BYTES: std::ops::RangeInclusive<u32> = 1 << 16..=4 << 20;

/// Of what is made here, for images of at most 64 GiB.
const USUAL_CHUNK_BYTES: u32 = 1 << 20;

/// 64 Ki pieces are 4.4 MB of document.
const MOST_CHUNKS: u64 = 1 << 16;

/// The document beside an image, `IMAGE.manifest`, in JSON. All is about the image as it travels, compressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(Default))]
pub struct Manifest {
    /// 1.
    pub version: u32,
    /// Id of the image with its version, `debian-12.0.20261101`: what a signature is for. Older ones have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub size_bytes: u64,
    /// SHA-256 of the whole.
    pub digest: Digest,
    /// Length of each piece but the last.
    pub chunk_bytes: u32,
    /// What of a tree makes a machine boot. Of a disk, and in older manifests, there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<Contents>,
    /// SHA-256 of each piece, in order; hexadecimal in the document.
    #[serde(serialize_with = "write_chunks", deserialize_with = "read_chunks")]
    pub chunks: Vec<[u8; 32]>,
}

impl Manifest {
    /// # Errors
    /// The document is none, of another version, or contradicts itself.
    pub fn parse(document: &[u8]) -> Result<Manifest, String> {
        let versioned: Versioned = serde_json::from_slice(document).map_err(|error| format!("it is none: {error}"))?;
        if versioned.version != VERSION {
            return Err(format!("it is of version {}; version {VERSION} is known here", versioned.version));
        }
        let manifest: Manifest = serde_json::from_slice(document).map_err(|error| error.to_string())?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        if self.digest.kind != Kind::Sha256 {
            return Err(format!("its digest is {}, not a sha256", self.digest));
        }
        if !CHUNK_BYTES.contains(&self.chunk_bytes) {
            let (least, most) = CHUNK_BYTES.into_inner();
            return Err(format!("its chunk_bytes are {}, not {least} to {most}", self.chunk_bytes));
        }
        let needed = self.size_bytes.div_ceil(self.chunk_bytes.into());
        if self.chunks.len() as u64 != needed {
            let (size, chunks) = (self.size_bytes, self.chunks.len());
            let chunk_bytes = self.chunk_bytes;
            return Err(format!("{size} bytes are {needed} chunks of {chunk_bytes}, and it lists {chunks}"));
        }
        Ok(())
    }

    /// Of an image with this size.
    ///
    /// # Errors
    /// Reading fails, or the image is longer or shorter, or too large for a manifest: beyond 256 GiB.
    pub fn of(mut image: impl Read, size_bytes: u64) -> io::Result<Manifest> {
        let chunk_bytes = chunk_bytes(size_bytes)?;
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
            return Err(io::Error::other(format!("it has {read} bytes, and had {size_bytes} before")));
        }
        let digest = Digest::sha256(whole);
        Ok(Manifest { version: VERSION, image: None, size_bytes, digest, chunk_bytes, chunks, contents: None })
    }
}

fn write_chunks<S: Serializer>(chunks: &[[u8; 32]], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(chunks.iter().map(|chunk| format!("{:x}", Output::<Sha256>::from(*chunk))))
}

fn read_chunks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<[u8; 32]>, D::Error> {
    let chunks = Vec::<String>::deserialize(deserializer)?;
    let no_sha256 =
        |number| D::Error::custom(format!("its chunks[{number}] is not a SHA-256 of 64 hexadecimal digits"));
    let chunks = chunks.iter().enumerate();
    chunks.map(|(number, hex)| sha256(hex).ok_or_else(|| no_sha256(number))).collect()
}

fn sha256(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Asked first: another version may have other fields.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

fn chunk_bytes(size_bytes: u64) -> io::Result<u32> {
    let mut doubled = (0..).map(|times| USUAL_CHUNK_BYTES << times).take_while(|bytes| CHUNK_BYTES.contains(bytes));
    let fits = doubled.find(|bytes| size_bytes.div_ceil(u64::from(*bytes)) <= MOST_CHUNKS);
    fits.ok_or_else(|| io::Error::other(format!("{size_bytes} bytes are too many for a manifest: 256 GiB at most")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::testing::noise;

    #[test]
    fn what_is_made_is_read_again() {
        for (length, chunks) in [(0, 0), (1, 1), (1 << 20, 1), ((1 << 20) + 1, 2), (5 << 20, 5)] {
            let image = noise(length);
            let manifest = Manifest::of(&image[..], length as u64).unwrap();
            assert_eq!(
                (manifest.chunks.len(), manifest.size_bytes, manifest.chunk_bytes),
                (chunks, length as u64, 1 << 20)
            );
            assert_eq!(Manifest::parse(&serde_json::to_vec(&manifest).unwrap()).unwrap(), manifest);
            let last = image.chunks(1 << 20).last().map(|chunk| Sha256::digest(chunk).into());
            assert_eq!(manifest.chunks.last(), last.as_ref());
            assert_eq!(manifest.digest, Digest::of(&image));
        }
        let other = Manifest::of(&b"abc"[..], 4).unwrap_err().to_string();
        assert!(other.contains("has 3 bytes, and had 4"), "{other}");
    }

    #[test]
    fn large_images_have_large_chunks() {
        for (size, expected) in [(0, 1 << 20), (64 << 30, 1 << 20), ((64 << 30) + 1, 2 << 20), (256 << 30, 4 << 20)] {
            assert_eq!(chunk_bytes(size).unwrap(), expected);
        }
        assert!(chunk_bytes((256 << 30) + 1).is_err());
    }

    #[test]
    fn a_manifest_that_lies_is_refused() {
        let good = serde_json::to_value(Manifest::of(&noise(3 << 20)[..], 3 << 20).unwrap()).unwrap();
        let hex = "0a".repeat(32);
        let cases = [
            ("version", 2.into(), "it is of version 2; version 1 is known here"),
            ("size_bytes", ((3 << 20) + 1).into(), "3145729 bytes are 4 chunks of 1048576, and it lists 3"),
            ("size_bytes", u64::MAX.into(), "and it lists 3"),
            ("size_bytes", 0.into(), "0 bytes are 0 chunks"),
            ("size_bytes", (-1).into(), "invalid value"),
            ("chunk_bytes", 0.into(), "its chunk_bytes are 0, not 65536 to 4194304"),
            ("chunk_bytes", u32::MAX.into(), "its chunk_bytes are 4294967295"),
            ("chunks", Vec::<String>::new().into(), "and it lists 0"),
            ("chunks", vec![hex.clone(), hex.clone()].into(), "and it lists 2"),
            ("chunks", vec![hex.clone(), "ä".repeat(32), hex.clone()].into(), "its chunks[1] is not a SHA-256"),
            ("chunks", vec![hex.clone(), hex.clone(), "0".into()].into(), "its chunks[2] is not a SHA-256"),
            ("image", 12.into(), "invalid type"),
            ("contents", serde_json::json!({"kernels": "all"}), "invalid type"),
            ("digest", "sha256:0".into(), "has 1 digits"),
            ("digest", format!("sha512:{}", "0a".repeat(64)).into(), "not a sha256"),
        ];
        for (field, value, says) in cases {
            let mut document = good.clone();
            document[field] = value;
            let error = Manifest::parse(document.to_string().as_bytes()).unwrap_err();
            assert!(error.contains(says), "{field}: {error}");
        }
        for (document, says) in
            [(&b""[..], "it is none"), (b"<html>", "it is none"), (b"{\"version\":1}", "missing field")]
        {
            let error = Manifest::parse(document).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
