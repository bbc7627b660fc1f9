//! The `drophammer image burn` command: streams an image to a directory or a disk, without the other stages of an
//! installation, and reports the throughput.

use crate::executor::peak_rss_bytes;
use clap::Args;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Context, Error, Phase, Result};
use common::{format, output};
use image::image_import;
use image::raw::{self, ImageRequirements};
use image::{
    BurnResult, ImageSource, IncomingImage, MountsBelow, PayloadKind, ResolvedImage, SignatureKey, SignatureKeys,
};
use linux::storage::writeback::PeriodicWriteback;
use linux::storage::{busy_device_users, image_table_adaptation};
use model::device_name::DevicePath;
use model::install_report::{ImageTransferFigures, TransferProgress};
use model::registry_auth::{DockerConfig, PullSecret};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Arguments of `image burn`.
#[derive(Debug, Args)]
pub struct BurnOptions {
    /// URL or path of the image.
    #[arg(value_name = "URL|FILE")]
    pub url: String,
    /// Directory to unpack the image into; with --overwrite, the disk (or file) to write a raw image to.
    pub target: PathBuf,
    /// `sha256:HEX` or `sha512:HEX` of the image as served [default: read from the files next to the image].
    #[arg(long)]
    pub digest: Option<String>,
    /// URL of a mirror with an identical copy of the image; can be specified several times.
    #[arg(long, value_name = "URL")]
    pub mirror: Vec<String>,
    /// Public key of a trusted signer, or a file with the key; can be specified several times. minisign keys verify
    /// images on web servers and in files, and cosign keys verify images in registries. If a key is specified, a
    /// signature is required.
    #[arg(long, value_name = "KEY|FILE")]
    pub key: Vec<String>,
    /// Docker `config.json` with the credentials for the image's registry.
    #[arg(long, value_name = "FILE")]
    pub registry_config: Option<PathBuf>,
    /// Write a raw disk image, which replaces ALL data on the target. On a disk, the backup GPT is moved to the end of
    /// the disk. In a file, the partition table remains unchanged.
    #[arg(long)]
    pub overwrite: bool,
    /// Print the results as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the image cannot be fetched, does not match its digest, or cannot be written.
pub fn run(burn: &BurnOptions) -> Result<CommandOutcome> {
    report_refusal(burn_image(burn))
}

fn burn_image(burn: &BurnOptions) -> Result<CommandOutcome> {
    let target = resolve_target(burn)?;
    let reached = image::resolve_image(&build_source(burn)?)?;
    let digest = reached.digest.to_string();
    let began = Instant::now();
    let (burned, streamed) = match &target {
        BurnTarget::Directory(root) => burn_to_directory(reached, root)?,
        BurnTarget::Disk(disk) => burn_to_disk(reached, disk)?,
    };
    let figures = BurnSummary::new(digest, &burned, streamed, began.elapsed());
    output::print_text(&if burn.json { output::to_json(&figures)? + "\n" } else { figures.format_lines() })?;
    Ok(CommandOutcome::Good)
}

/// Destination of the image.
#[derive(Debug, PartialEq, Eq)]
enum BurnTarget {
    Directory(PathBuf),
    /// Disk, or file in place of a disk, to which a raw image is written.
    Disk(PathBuf),
}

fn burn_to_directory(reached: ResolvedImage, root: &Path) -> Result<(BurnResult, Duration)> {
    // If the target is itself a mount point, it is in the list twice. Syncing a filesystem twice is harmless.
    let points = [vec![root.to_owned()], busy_device_users::list_mounts_below(root)].concat();
    let began = Instant::now();
    let steady = PeriodicWriteback::start(points);
    let mut incoming = IncomingImage::start(reached, PayloadKind::Tar)?.among_others();
    incoming.require_tree()?;
    let burned = incoming.burn_to_root(root, &MountsBelow::default(), &show_progress)?;
    let streamed = began.elapsed();
    steady.finish()?;
    Ok((burned, streamed))
}

fn burn_to_disk(reached: ResolvedImage, disk: &Path) -> Result<(BurnResult, Duration)> {
    let device = disk.to_str().ok_or_else(|| Error::new(Phase::Image, format!("{} is not UTF-8", disk.display())))?;
    let device = DevicePath::from(device);
    let began = Instant::now();
    let mut incoming = IncomingImage::start(reached, PayloadKind::AnyBytes)?;
    let (onto, expected) = (raw::RawTarget::open(&device)?, ImageRequirements::default());
    incoming.require_disk(&onto.disk, &expected).map_err(replace_layout_advice)?;
    let burned = incoming.burn_to_disk(&onto, &expected, &show_progress)?;
    drop(onto);
    let streamed = began.elapsed();
    if is_block_device(disk)? {
        image_table_adaptation::fit_image_table(&device, None, None)?;
    }
    Ok((burned, streamed))
}

/// Replaces a remedy that refers to layouts by a remedy that refers to `--overwrite`, because `image burn` does not use
/// a layout. Returns any other error unchanged.
fn replace_layout_advice(error: Error) -> Error {
    match error.to_string().split_once(", but the layout has image: true for") {
        Some((what, _)) => Error::refusal(
            error.phase,
            format!("{what}, but --overwrite is for raw disk images; specify a directory and omit --overwrite"),
        ),
        None => error,
    }
}

/// Parses a key that is specified on the command line, or reads the key from the specified `.pub` file of minisign or
/// cosign.
///
/// # Errors
/// Returns an error if the file cannot be read, or the text is not a public key.
pub fn read_public_key(given: &str) -> Result<SignatureKey> {
    let text = match Path::new(given).is_file() {
        true => fs::read_to_string(given).context(Phase::Image, || format!("read the public key {given}"))?,
        false => given.to_owned(),
    };
    text.parse().map_err(|why: String| {
        let file = if text == given { String::new() } else { format!("{given}: ") };
        Error::refusal(Phase::Image, format!("{file}{why}"))
    })
}

fn build_source(burn: &BurnOptions) -> Result<ImageSource> {
    let keys = SignatureKeys(burn.key.iter().map(|key| read_public_key(key)).collect::<Result<_>>()?);
    let digest = image::parse_given_digest(burn.digest.as_deref(), &burn.url)?;
    let (url, mirrors) = (image_import::parse_location(&burn.url)?, burn.mirror.clone());
    let pull_secrets =
        burn.registry_config.as_deref().map_or(Ok(Vec::new()), |file| read_registry_credentials(file, burn))?;
    Ok(ImageSource { url, mirrors, digest, pull_secrets, keys, ..ImageSource::default() })
}

/// Reads the registry credentials for the image and its mirrors from a Docker `config.json`.
fn read_registry_credentials(file: &Path, burn: &BurnOptions) -> Result<Vec<PullSecret>> {
    let text = fs::read_to_string(file).context(Phase::Image, || format!("read {}", file.display()))?;
    let wrong = |why: String| Error::refusal(Phase::Image, format!("{}: {why}", file.display()));
    let config = DockerConfig::parse(&text).map_err(wrong)?;
    let urls = std::iter::once(&burn.url).chain(&burn.mirror);
    let found = urls.filter_map(|url| config.find_credentials(url).transpose());
    found.collect::<Result<_, String>>().map_err(wrong)
}

/// Returns the target with its canonical path.
fn resolve_target(burn: &BurnOptions) -> Result<BurnTarget> {
    let path = &burn.target;
    let what = || format!("the target {}", path.display());
    let metadata = fs::metadata(path).context(Phase::Image, what)?;
    let refused = |why: &str| Err(Error::refusal(Phase::Image, format!("{} {why}", what())));
    let real = fs::canonicalize(path).context(Phase::Image, what)?;
    if metadata.is_file() || is_block_device(path)? {
        return match burn.overwrite {
            true => Ok(BurnTarget::Disk(real)),
            false => refused(
                "is not a directory; to replace all data of the target with a raw disk image, add \
                         --overwrite",
            ),
        };
    }
    if !metadata.is_dir() {
        return refused("is neither a directory nor a disk");
    }
    if burn.overwrite {
        return refused(
            "is a directory, but --overwrite is for disks; omit --overwrite to unpack into the directory \
                        and keep the files in it",
        );
    }
    let root = fs::metadata("/").context(Phase::Image, || "stat /".to_owned())?;
    if (metadata.dev(), metadata.ino()) == (root.dev(), root.ino()) {
        return refused("is the root directory of the running system; specify another directory");
    }
    Ok(BurnTarget::Directory(real))
}

fn is_block_device(path: &Path) -> Result<bool> {
    let metadata = fs::metadata(path).context(Phase::Image, || format!("the target {}", path.display()))?;
    Ok(metadata.file_type().is_block_device())
}

/// Prints the progress. On a terminal, redraws the line in place.
fn show_progress(progress: TransferProgress) {
    output::redraw_progress(&progress);
}

/// Results of `image burn`.
#[derive(Debug, Serialize)]
struct BurnSummary {
    digest: String,
    /// Results without the final sync: the time until the last file was written, and the load of each stage of the
    /// pipeline.
    burn: ImageTransferFigures,
    /// Time from the start until all data was synced to disk.
    seconds: f64,
    files: u64,
    unpacked_bytes: u64,
    resumed: u32,
    peak_rss_bytes: Option<u64>,
}

impl BurnSummary {
    fn new(digest: String, burned: &BurnResult, streamed: Duration, whole: Duration) -> BurnSummary {
        BurnSummary {
            digest,
            burn: burned.to_figures(streamed),
            seconds: whole.as_secs_f64(),
            files: burned.entries,
            unpacked_bytes: burned.tar_bytes,
            resumed: burned.resumed,
            peak_rss_bytes: peak_rss_bytes(),
        }
    }

    fn format_lines(&self) -> String {
        let BurnSummary { digest, burn, seconds, files, unpacked_bytes, resumed, peak_rss_bytes } = self;
        let (unpacked, after) = (format::format_bytes(*unpacked_bytes), seconds - burn.seconds);
        let memory = peak_rss_bytes.map_or("unknown".to_owned(), format::format_bytes);
        format!(
            "{digest}\n{burn}\n{files} files, {unpacked} unpacked; synced to disk {after:.2} s later, {seconds:.2} \
             s in total\nconnection resumed {resumed} times; peak memory {memory}\n"
        )
    }
}

#[cfg(test)]
mod tests;
