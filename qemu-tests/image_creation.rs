//! Image that a run offers: a file in the server's folder, which is intact, or damaged as the scenario specifies.

use crate::host_tools::{Context, Result, run_tool, write};
use crate::registry::{self, Registry};
use crate::scenario::{Bus, Machine};
use crate::scenario_image::{DeclaredDigest, ImageSigner, OfferedImage, TestSystem};
use crate::{server, tar_members};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Returns the path, among the artifacts, of the image with this system. By default, scenarios install the tiny OS. For
/// SATA disks it has another kernel, which starts more slowly.
pub fn image_path(system: TestSystem, machine: &Machine) -> String {
    let has_sata = machine.disks.iter().any(|disk| disk.bus == Bus::Sata);
    match system {
        TestSystem::Tiny if has_sata => "tiny/sata.tar.zst".to_owned(),
        TestSystem::Tiny => format!("{}/tiny.tar.zst", machine.artifact("tiny")),
        TestSystem::Debian => format!("{}/debian.tar.zst", machine.artifact("debian")),
    }
}

/// Creates the image `id` in the server's folder, as a file or in a registry, and its description. `base` is the URL at
/// which the machine reaches the server.
///
/// # Errors
/// Fails if the original image is missing, or a tool fails.
pub fn offer_image(
    image: &OfferedImage,
    original: &Path,
    id: &str,
    folder: &Path,
    base: &str,
) -> Result<Option<Registry>> {
    let images = folder.join("images");
    fs::create_dir_all(&images).context(images.display())?;
    let (bytes, before) = build_image(image, original, &images)?;
    if !image.layers.is_empty() {
        return in_registry(image, bytes, id, folder, base).map(Some);
    }
    let name = file_name(image, original, id);
    let url = format!("{base}/images/{name}");
    if image.missing {
        write_description(folder, id, ("url", &url), Some(sha256(&bytes)))?;
        return Ok(None);
    }
    let file = images.join(&name);
    write(&file, &bytes)?;
    let key = image.signed.map(|signer| create_key(signer, folder)).transpose()?;
    match &key {
        _ if image.packed => pack_image(&file, key.as_deref())?,
        Some(key) => sign_image(&file, &sha256(&bytes), key)?,
        None => {}
    }
    match image.digest {
        DeclaredDigest::Right => write_description(folder, id, ("file", &name), None)?,
        DeclaredDigest::Original => write_description(folder, id, ("file", &name), Some(sha256(&before)))?,
        DeclaredDigest::Wrong => write_description(folder, id, ("file", &name), Some("0".repeat(64)))?,
        DeclaredDigest::None => {
            declare_spare(folder, &name)?;
            write_description(folder, id, ("url", &url), None)?;
        }
        DeclaredDigest::Md5 => {
            let sum_name = format!("{name}.md5");
            write(&images.join(&sum_name), format!("{}  {name}\n", md5(&bytes)))?;
            declare_spare(folder, &sum_name)?;
            declare_spare(folder, &name)?;
            write_description(folder, id, ("url", &url), None)?;
        }
    }
    Ok(None)
}

/// Creates the layers of an image in a registry. The lowest layer is the image itself, and the scenario specifies the
/// other layers.
fn in_registry(image: &OfferedImage, lowest: Vec<u8>, id: &str, folder: &Path, base: &str) -> Result<Registry> {
    let mut layers = vec![("application/vnd.oci.image.layer.v1.tar+zstd", lowest)];
    for files in &image.layers {
        let tar = filter_bytes(&["gzip", "-cnq"], &build_tar(files).context("a layer")?, folder)?;
        layers.push(("application/vnd.oci.image.layer.v1.tar+gzip", tar));
    }
    let registry = Registry::new(id, layers);
    let digest = match image.digest {
        DeclaredDigest::None => None,
        DeclaredDigest::Wrong => Some("0".repeat(64)),
        _ => Some(sha256(registry.manifest())),
    };
    write_description(folder, id, ("url", &format!("oci+{base}/{}:{id}", registry::REPOSITORY)), digest)?;
    Ok(registry)
}

fn build_tar(files: &BTreeMap<String, String>) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, text) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(text.len() as u64);
        tar.append_data(&mut header, path, text.as_bytes())?;
    }
    tar.into_inner()
}

/// Returns the path of a secret minisign key without a password.
fn create_key(signer: ImageSigner, folder: &Path) -> Result<PathBuf> {
    if signer == ImageSigner::One {
        return Ok(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/trust/one.key"));
    }
    let key = folder.join("stranger.key");
    let (secret, public) = (key.display().to_string(), folder.join("stranger.pub").display().to_string());
    run_tool(&["minisign", "-G", "-W", "-f", "-p", &public, "-s", &secret], Stdio::null())?;
    Ok(key)
}

/// Writes the digest of an image and signs it, as an operator does for an existing image.
fn sign_image(image: &Path, sha256: &str, key: &Path) -> Result<()> {
    let sum = format!("{}.sha256", image.display());
    let name = image.file_name().unwrap_or_default().display();
    write(Path::new(&sum), format!("{sha256}  {name}\n"))?;
    let key = key.display().to_string();
    run_tool(&["minisign", "-S", "-s", &key, "-m", &sum], Stdio::null()).map(drop)
}

/// Packs the disk of a virtual machine, as an operator does. Replaces an existing file.
fn pack_image(image: &Path, key: Option<&Path>) -> Result<()> {
    let (image, disk) = (image.display().to_string(), format!("{}.disk", image.display()));
    run_tool(&["zstd", "-dqf", &image, "-o", &disk], Stdio::null())?;
    let mut argv = vec![env!("CARGO_BIN_EXE_drophammer"), "image", "pack", &disk, "-o", &image, "--force"];
    let key = key.map(|key| key.display().to_string());
    argv.extend(key.iter().flat_map(|key| ["--key", key]));
    run_tool(&argv, Stdio::null())?;
    fs::remove_file(&disk).context(disk)
}

/// Declares the file as a further image, which no machine uses: the server serves a file only if it belongs to an
/// image. The offered image refers to the file by URL, because the server would add a digest to an image with the field
/// `file`.
fn declare_spare(folder: &Path, name: &str) -> Result<()> {
    write_description(folder, &format!("shelf-{name}"), ("file", name), None)
}

fn write_description(folder: &Path, id: &str, place: (&str, &str), sha256: Option<String>) -> Result<()> {
    let mut text = format!("id: {id}\nname: {id}\n{}: {}\n", place.0, place.1);
    if let Some(sum) = sha256 {
        text += &format!("digest: \"sha256:{sum}\"\n");
    }
    server::write_object(folder, "images", id, text)
}

/// Returns the file as it is served, and the file before it was damaged.
fn build_image(image: &OfferedImage, original: &Path, scratch: &Path) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut bytes = fs::read(original).context(original.display())?;
    if image.cut_tar_at.is_some() || image.compress.is_some() || !image.members.is_empty() {
        let mut tar = filter_bytes(&["zstd", "-dcq"], &bytes, scratch)?;
        if !image.members.is_empty() {
            tar = tar_members::append_members(tar, &image.members)?;
        }
        tar.truncate(image.cut_tar_at.map_or(usize::MAX, |length| length as usize));
        let program = image.compress.as_deref().unwrap_or("zstd");
        bytes = filter_bytes(&[program, "-cq"], &tar, scratch)?;
    }
    let before = bytes.clone();
    bytes.truncate(image.truncate_at.map_or(usize::MAX, |length| length as usize));
    if let Some(place) = image.flip_byte_at {
        let byte = bytes.get_mut(place as usize).ok_or("flip_byte_at is beyond the end of the image")?;
        *byte ^= 0xFF;
    }
    bytes.extend(image.append.iter().flat_map(|text| text.bytes()));
    Ok((bytes, before))
}

fn filter_bytes(argv: &[&str], input: &[u8], scratch: &Path) -> Result<Vec<u8>> {
    let path = scratch.join("filter.input");
    write(&path, input)?;
    let output = run_tool(argv, Stdio::from(File::open(&path).context(path.display())?));
    fs::remove_file(&path).context(path.display())?;
    output
}

fn file_name(image: &OfferedImage, original: &Path, id: &str) -> String {
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
