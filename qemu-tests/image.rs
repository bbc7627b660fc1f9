//! The image that a run offers: a file below the server's folder, as good or as damaged as the scenario wants it.

use crate::host::{Context, Result, tool, write};
use crate::scenario::{Digest, Image};
use crate::server;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

/// The image that scenarios install when they name none.
pub const TINY: &str = "tiny/tiny.tar.zst";

/// Makes the file and the description of image `id` in the server's folder. `base` is the server as the machine sees it.
///
/// # Errors
/// The original is not there or a tool fails.
pub fn offer(image: &Image, original: &Path, id: &str, folder: &Path, base: &str) -> Result<()> {
    let images = folder.join("images");
    fs::create_dir_all(&images).context(images.display())?;
    let (bytes, before) = make(image, original, &images)?;
    let name = file_name(image, original, id);
    let url = format!("{base}/images/{name}");
    if image.missing {
        return describe(folder, id, ("url", &url), Some(sha256(&bytes)));
    }
    write(&images.join(&name), &bytes)?;
    match image.digest {
        Digest::Right => describe(folder, id, ("file", &name), None),
        Digest::Original => describe(folder, id, ("file", &name), Some(sha256(&before))),
        Digest::Wrong => describe(folder, id, ("file", &name), Some("0".repeat(64))),
        Digest::None => {
            shelve(folder, &name)?;
            describe(folder, id, ("url", &url), None)
        }
        Digest::Md5 => {
            let sum_name = format!("{name}.md5");
            write(&images.join(&sum_name), format!("{}  {name}\n", md5(&bytes)))?;
            shelve(folder, &sum_name)?;
            shelve(folder, &name)?;
            describe(folder, id, ("url", &url), None)
        }
    }
}

/// The server adds a digest to every file of its own that it hands out in an allocation, and serves no others: so the
/// file is there under another image's name, and the allocation's image is a URL.
fn shelve(folder: &Path, name: &str) -> Result<()> {
    describe(folder, &format!("shelf-{name}"), ("file", name), None)
}

fn describe(folder: &Path, id: &str, place: (&str, &str), sha256: Option<String>) -> Result<()> {
    let mut text = format!("id: {id}\nname: {id}\n{}: {}\n", place.0, place.1);
    if let Some(sum) = sha256 {
        text += &format!("digest: \"sha256:{sum}\"\n");
    }
    server::put(folder, "images", id, text)
}

/// The file as it is served, and as it was before it was damaged.
fn make(image: &Image, original: &Path, scratch: &Path) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut bytes = fs::read(original).context(original.display())?;
    if image.cut_tar_at.is_some() || image.compress.is_some() {
        let mut tar = filter(&["zstd", "-dcq"], &bytes, scratch)?;
        tar.truncate(image.cut_tar_at.map_or(usize::MAX, |length| length as usize));
        let program = image.compress.as_deref().unwrap_or("zstd");
        bytes = filter(&[program, "-cq"], &tar, scratch)?;
    }
    let before = bytes.clone();
    bytes.truncate(image.truncate_at.map_or(usize::MAX, |length| length as usize));
    if let Some(place) = image.flip_byte_at {
        let byte = bytes.get_mut(place as usize).ok_or("flip_byte_at is behind the end of the image")?;
        *byte ^= 0xFF;
    }
    bytes.extend(image.append.iter().flat_map(|text| text.bytes()));
    Ok((bytes, before))
}

fn filter(argv: &[&str], input: &[u8], scratch: &Path) -> Result<Vec<u8>> {
    let path = scratch.join("filter.input");
    write(&path, input)?;
    let output = tool(argv, Stdio::from(File::open(&path).context(path.display())?));
    fs::remove_file(&path).context(path.display())?;
    output
}

fn file_name(image: &Image, original: &Path, id: &str) -> String {
    let name = original.file_name().unwrap_or_default().to_string_lossy();
    let ending = match image.compress.as_deref() {
        None => name.split_once('.').map(|(_, ending)| ending).unwrap_or("tar"),
        Some("zstd") => "tar.zst",
        Some("gzip") => "tar.gz",
        Some("bzip2") => "tar.bz2",
        Some(other) => return format!("{id}.tar.{other}"),
    };
    format!("{id}.{ending}")
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn md5(bytes: &[u8]) -> String {
    format!("{:x}", md5::Md5::digest(bytes))
}
