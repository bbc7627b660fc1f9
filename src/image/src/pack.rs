//! The `drophammer image pack` command: converts a directory or a disk image to an image that can be served. The image
//! is compressed in independent frames, so that several cores can decompress it. A manifest and, if a key is specified,
//! signatures are written next to the image. Packing the same input again gives the same output.

mod boot_file_check;
mod disk;
mod image_signer;
mod seekable_zstd;
mod tar_member;
#[cfg(test)]
mod tests;
mod tree;

use crate::ImageManifest;
use clap::Args;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Context, Error, Phase, Result};
use common::{format, output};
use image_signer::ImageSigner;
use linux::atomic_file::remove_if_present;
use model::layout::ImageId;
use newroot::{NewRoot, system_setup};
use seekable_zstd::FrameWriter;
use serde::Serialize;
use std::fs::{self, File, Metadata};
use std::io::BufWriter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `image pack`.
#[derive(Debug, Args)]
pub struct PackOptions {
    /// Root of a filesystem tree, or a disk image file, raw or qcow2.
    #[arg(value_name = "DIR|DISK")]
    pub source: PathBuf,
    /// File to write the image to; IMAGE.manifest and IMAGE.sha256 are written next to it.
    #[arg(short, long, value_name = "IMAGE")]
    pub output: PathBuf,
    /// minisign secret key for the signatures; its password is read from the terminal or from DROPHAMMER_KEY_PASSWORD.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Id of the image with its version, as used in allocations: `debian-12.0.20261101`. The signature covers this id.
    #[arg(long, value_name = "OS-VERSION")]
    pub id: Option<String>,
    /// Compression level of zstd, from 1 (fastest) to 22 (smallest image).
    #[arg(long, default_value_t = 12, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: i32,
    /// Replace an existing image.
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Result of packing an image.
#[derive(Debug, Serialize)]
struct PackResult {
    image: PathBuf,
    /// Number of packed files, directories and other entries; `None` for a disk image.
    files: Option<u64>,
    /// Length of the tar or the raw disk image before compression, in bytes.
    bytes_in: u64,
    bytes_out: u64,
    seconds: f64,
    digest: String,
    /// Names of the documents and signatures written next to the image.
    beside: Vec<String>,
    signed_by: Option<String>,
    /// Id of the image with its version, as specified with `--id`.
    id: Option<String>,
    /// Whether an existing image was replaced.
    replaced: bool,
    /// Warnings about an extension that does not match the image, or about contents that cannot boot.
    warnings: Vec<String>,
}

/// Packs an image, and prints a summary.
///
/// # Errors
/// Returns an error if the source cannot be read, the key cannot be used, or the image cannot be written. An existing
/// image is modified only by the last step, which renames the new files to their final names. If an earlier step fails,
/// the existing image is unchanged.
pub fn run_pack(options: &PackOptions) -> Result<CommandOutcome> {
    report_refusal(pack_and_print(options))
}

fn pack_and_print(options: &PackOptions) -> Result<CommandOutcome> {
    let packed = pack_image(options)?;
    let text = if options.json { format!("{}\n", output::to_json(&packed)?) } else { packed.format_line() };
    output::print_text(&text)?;
    Ok(CommandOutcome::Good)
}

fn pack_image(options: &PackOptions) -> Result<PackResult> {
    let (began, image) = (Instant::now(), &options.output);
    let signer = options.key.as_deref().map(ImageSigner::open_key).transpose()?;
    let epoch = parse_epoch(std::env::var("SOURCE_DATE_EPOCH").ok().as_deref())?;
    options.id.as_deref().map_or(Ok(()), refuse_other_id)?;
    let source = PackSource::detect(&options.source, image)?;
    refuse_other_codec(image)?;
    let replaced = image.exists();
    if replaced && !options.force {
        let why = format!(
            "{file} already exists; specify another output file, or replace it with --force",
            file = image.display()
        );
        return Err(Error::refusal(Phase::Image, why));
    }
    let missing = if let PackSource::Tree = source { boot_file_check::find_missing(&options.source) } else { None };
    let contents = match source {
        PackSource::Tree => Some(system_setup::boot_contents::list_boot_contents(&NewRoot::open(&options.source)?)),
        PackSource::Raw | PackSource::Qcow2 => None,
    };
    let warnings: Vec<String> = misnamed(image, &source).into_iter().chain(missing).collect();
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));

    let new = TemporaryFile(with_suffix(image, ".new"));
    let WrittenFrames { files, bytes_in, bytes_out } = write_frames(&source, options, epoch, &new.0)?;
    let manifest = File::open(&new.0).and_then(|file| ImageManifest::compute(file, bytes_out));
    let manifest = manifest.context(Phase::Image, || format!("read {} again", new.0.display()))?;
    let manifest = ImageManifest { image: options.id.clone(), contents, ..manifest };
    let documents = build_documents(image, &manifest, signer.as_ref(), epoch)?;
    put_in_place(image, new, &documents)?;
    Ok(PackResult {
        image: image.clone(),
        files,
        bytes_in,
        bytes_out,
        seconds: began.elapsed().as_secs_f64(),
        digest: manifest.digest.to_string(),
        beside: documents.iter().map(|(suffix, _)| format!("{}{suffix}", file_name(image))).collect(),
        signed_by: signer.map(|signer| signer.id),
        id: options.id.clone(),
        replaced,
        warnings,
    })
}

/// Sizes of an image that was written.
struct WrittenFrames {
    /// Number of packed entries; `None` for a disk image.
    files: Option<u64>,
    bytes_in: u64,
    bytes_out: u64,
}

/// Writes the compressed image to a new file, and syncs it.
fn write_frames(source: &PackSource, options: &PackOptions, epoch: Option<i64>, path: &Path) -> Result<WrittenFrames> {
    let file = File::create(path).context(Phase::Image, || format!("create {}", path.display()))?;
    let frames = FrameWriter::new(BufWriter::new(file), options.level);
    let (files, frames) = match source {
        PackSource::Tree => {
            let (files, frames) = tree::pack_tree(&options.source, frames, epoch)?;
            (Some(files), frames)
        }
        PackSource::Raw => (None, disk::pack_raw(&options.source, frames)?),
        PackSource::Qcow2 => (None, disk::pack_qcow2(&options.source, frames)?),
    };
    let written = || format!("write {}", path.display());
    let (bytes_in, file) = frames.finish().context(Phase::Image, written)?;
    let file = file.into_inner().map_err(|error| Error::with_source(Phase::Image, written(), error.into_error()))?;
    file.sync_all().context(Phase::Image, written)?;
    let bytes_out = file.metadata().context(Phase::Image, written)?.len();
    Ok(WrittenFrames { files, bytes_in, bytes_out })
}

impl PackResult {
    fn format_line(&self) -> String {
        let files = self.files.map_or(String::new(), |files| format!("{files} files, "));
        let signed = match (&self.signed_by, &self.id) {
            (Some(key), Some(id)) => format!(" (signed by {key} as {id})"),
            (Some(key), None) => format!(" (signed by {key}, without an image id; see --id OS-VERSION)"),
            (None, _) => String::new(),
        };
        let (bytes_in, bytes_out) = (format::format_bytes(self.bytes_in), format::format_bytes(self.bytes_out));
        let (seconds, image) = (format::format_seconds(self.seconds), self.image.display());
        let replaced = if self.replaced { "; replaced the existing image" } else { "" };
        format!(
            "{image}: {files}{bytes_in} in, {bytes_out} out, {seconds}; also written: {files_written}{signed}{replaced}\n",
            files_written = self.beside.join(", ")
        )
    }
}

enum PackSource {
    Tree,
    Raw,
    Qcow2,
}

impl PackSource {
    fn detect(source: &Path, image: &Path) -> Result<PackSource> {
        if image.is_dir() || image.file_name().is_none() {
            return Err(Error::refusal(
                Phase::Image,
                format!("{path} is a directory; specify the file name of the image", path = image.display()),
            ));
        }
        let metadata = fs::metadata(source).context(Phase::Image, || format!("stat {}", source.display()))?;
        if metadata.is_file() {
            assert_preserved(source, &metadata, image)?;
            return disk::detect_source(source);
        }
        if !metadata.is_dir() {
            let why =
                format!("{source} is neither a directory nor the file of a disk image", source = source.display());
            return Err(Error::refusal(Phase::Image, why));
        }
        let absolute = |path: &Path| path.canonicalize().context(Phase::Image, || format!("stat {}", path.display()));
        let beside = image.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if absolute(beside)?.starts_with(absolute(source)?) {
            return Err(Error::refusal(
                Phase::Image,
                format!("{file} is inside the directory to pack", file = image.display()),
            ));
        }
        let is_empty = fs::read_dir(source).map(|mut entries| entries.next().is_none());
        if is_empty.context(Phase::Image, || format!("list {}", source.display()))? {
            let why = format!("{folder} is empty: there is nothing to pack", folder = source.display());
            return Err(Error::refusal(Phase::Image, why));
        }
        Ok(PackSource::Tree)
    }
}

/// Checks the image id. The id must end with a hyphen and a version. The version is later compared with
/// `drophammer.minimum=` and with the constraints of layouts.
fn refuse_other_id(id: &str) -> Result<()> {
    let is_word = id.bytes().all(|byte| byte.is_ascii_graphic());
    match ImageId::parse(id).map_err(|why| format!("--id {id}: {why}")) {
        Ok(_) if is_word => Ok(()),
        Ok(_) => {
            Err(Error::refusal(Phase::Image, format!("--id {id:?}: use only ASCII letters, digits and punctuation")))
        }
        Err(why) => Err(Error::refusal(Phase::Image, why)),
    }
}

/// Rejects file names with the extension of another compression format, because all images are compressed with zstd.
fn refuse_other_codec(image: &Path) -> Result<()> {
    const OTHERS: [&str; 8] = ["gz", "tgz", "xz", "txz", "lz4", "bz2", "tbz", "zip"];
    let end = image.extension().map(|end| end.to_string_lossy().to_lowercase()).unwrap_or_default();
    match OTHERS.contains(&end.as_str()) {
        true => {
            let why = format!(
                "{file} has the extension of another format, but images are compressed with zstd; use the extension .zst",
                file = image.display()
            );
            Err(Error::refusal(Phase::Image, why))
        }
        false => Ok(()),
    }
}

/// Returns a warning if the extension of the file name does not match the type of the image.
fn misnamed(image: &Path, source: &PackSource) -> Option<String> {
    let name = file_name(image).to_lowercase();
    let (is, ending) = match source {
        PackSource::Tree => ("a tar archive", "tar.zst"),
        PackSource::Raw | PackSource::Qcow2 => ("a raw disk image", "raw.zst"),
    };
    let others: &[&str] = match source {
        PackSource::Tree => &["raw", "img", "qcow2", "iso"],
        PackSource::Raw | PackSource::Qcow2 => &["tar", "qcow2", "iso"],
    };
    let bare = name.strip_suffix(".zst").or_else(|| name.strip_suffix(".zstd"));
    let inner = bare.unwrap_or(&name).rsplit_once('.').map(|(_, end)| end);
    let belied = bare.is_none() || inner.is_some_and(|end| others.contains(&end));
    belied.then(|| {
        format!("{file} is {is} compressed with zstd, but its extension differs; use .{ending}", file = image.display())
    })
}

/// Rejects a source that is one of the files to be replaced, even if it is specified by another path.
fn assert_preserved(source: &Path, metadata: &Metadata, image: &Path) -> Result<()> {
    let beside = ["", ".manifest", ".sha256", ".manifest.minisig", ".sha256.minisig"];
    let new = beside.iter().map(|suffix| format!("{suffix}.new"));
    let replaced = beside.iter().map(|suffix| (*suffix).to_owned()).chain(new);
    let is_source = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (metadata.dev(), metadata.ino()))
    };
    match replaced.map(|suffix| with_suffix(image, &suffix)).find(is_source) {
        Some(path) => {
            let (source, path) = (source.display(), path.display());
            let why =
                format!("{source} is the same file as {path}, which would be replaced; specify another output file");
            Err(Error::refusal(Phase::Image, why))
        }
        None => Ok(()),
    }
}

/// Parses SOURCE_DATE_EPOCH, the upper limit for modification times in the image
/// (<https://reproducible-builds.org/specs/source-date-epoch/>).
fn parse_epoch(text: Option<&str>) -> Result<Option<i64>> {
    let Some(text) = text else { return Ok(None) };
    let seconds = text.parse().ok().filter(|seconds| *seconds >= 0);
    let bad =
        || Error::refusal(Phase::Settings, format!("SOURCE_DATE_EPOCH={text} is not a number of seconds since 1970"));
    seconds.map(Some).ok_or_else(bad)
}

/// Returns suffix and content of each document that is written next to the image, including signatures if there is a
/// signer.
fn build_documents(
    image: &Path,
    manifest: &ImageManifest,
    signer: Option<&ImageSigner>,
    epoch: Option<i64>,
) -> Result<Vec<(&'static str, String)>> {
    let name = file_name(image);
    let digest = manifest.digest.to_string();
    let hex = digest.trim_start_matches("sha256:");
    let mut documents =
        vec![(".manifest", format!("{}\n", output::to_json(manifest)?)), (".sha256", format!("{hex}  {name}\n"))];
    if let Some(signer) = signer {
        for (document, signature) in [(0, ".manifest.minisig"), (1, ".sha256.minisig")] {
            let (suffix, text) = &documents[document];
            let signed = signer.sign_file(&format!("{name}{suffix}"), text, manifest.image.as_deref(), epoch)?;
            documents.push((signature, signed));
        }
    }
    Ok(documents)
}

/// Renames all new files to their final names, the image last. A client that fetches the image before this last step
/// receives the old image with new documents, and rejects the image because they do not match.
fn put_in_place(image: &Path, new: TemporaryFile, documents: &[(&'static str, String)]) -> Result<()> {
    let mut parts = Vec::new();
    for (suffix, text) in documents {
        let part = TemporaryFile(with_suffix(image, &format!("{suffix}.new")));
        fs::write(&part.0, text).context(Phase::Image, || format!("write {}", part.0.display()))?;
        parts.push((part, with_suffix(image, suffix)));
    }
    for signature in [".manifest.minisig", ".sha256.minisig"].map(|suffix| with_suffix(image, suffix)) {
        remove_if_present(&signature).context(Phase::Image, || format!("remove the old {}", signature.display()))?;
    }
    parts.push((new, image.to_owned()));
    for (part, name) in parts {
        fs::rename(&part.0, &name).context(Phase::Image, || format!("rename {}", part.0.display()))?;
    }
    Ok(())
}

/// Temporary file that is removed unless it is renamed.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // An error is ignored, because the file does not exist if it was renamed or never created.
        let _ = fs::remove_file(&self.0);
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
