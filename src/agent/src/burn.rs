//! The `drophammer image burn` command: streams an image to a directory or a disk, without the rest of an installation,
//! and reports throughput.

use crate::executor::peak_rss_bytes;
use clap::Args;
use common::error::{Context, Error, Phase, Result};
use common::exit_code::{CommandOutcome, report_refusal};
use common::format;
use common::output;
use image::raw::{self, ImageRequirements};
use image::{
    BurnResult, ImageSource, IncomingImage, MountsBelow, PayloadKind, ResolvedImage, SignatureKey, SignatureKeys,
};
use linux::storage::device_users;
use linux::storage::image_table;
use linux::storage::writeback::PeriodicWriteback;
use model::device::DevicePath;
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
    /// URL of the image.
    pub url: String,
    /// Directory to unpack the image into; with --overwrite, the disk (or file) to write a raw image to.
    pub target: PathBuf,
    /// `sha256:HEX` or `sha512:HEX` of the image as served [default: read from the files next to the image].
    #[arg(long)]
    pub digest: Option<String>,
    /// URL of a mirror with the same bytes; may be given several times.
    #[arg(long, value_name = "URL")]
    pub mirror: Vec<String>,
    /// Public key that may have signed the image, or a file with the key; may be given several times. minisign keys are
    /// for images on servers and in files, cosign keys for images in registries. With any key, a signature is required.
    #[arg(long, value_name = "KEY|FILE")]
    pub key: Vec<String>,
    /// Docker `config.json` with the credentials for the image's registry.
    #[arg(long, value_name = "FILE")]
    pub registry_config: Option<PathBuf>,
    /// Write a raw disk image, which replaces ALL data on the target. On a disk, the backup GPT is moved to the end of
    /// the disk; a file gets the partition table unchanged.
    #[arg(long)]
    pub overwrite: bool,
    /// Print the figures as JSON.
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
    /// Disk, or a file in place of one, that a raw image is written to.
    Disk(PathBuf),
}

fn burn_to_directory(reached: ResolvedImage, root: &Path) -> Result<(BurnResult, Duration)> {
    // If the target is itself a mount point, it is listed here twice; syncing it twice costs nothing.
    let points = [vec![root.to_owned()], device_users::list_mounts_below(root)].concat();
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
        image_table::fit_image_table(&device, None, None)?;
    }
    Ok((burned, streamed))
}

/// Replaces the advice about layouts in an error by advice about `--overwrite`, since `image burn` has no layout.
fn replace_layout_advice(error: Error) -> Error {
    match error.to_string().split_once(", but the layout has image: true for") {
        Some((what, _)) => Error::refusal(
            error.phase,
            format!("{what}, but --overwrite is for raw disk images; give a directory and omit --overwrite"),
        ),
        None => error,
    }
}

/// Reads a key given on the command line, or the `.pub` file of minisign or cosign that contains it.
fn read_public_key(given: &str) -> Result<SignatureKey> {
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
    let (url, mirrors) = (burn.url.clone(), burn.mirror.clone());
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
                "is not a directory; to write a raw disk image, which replaces all data on it, add \
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
        return refused("is the root of the running system; give another directory");
    }
    Ok(BurnTarget::Directory(real))
}

fn is_block_device(path: &Path) -> Result<bool> {
    let metadata = fs::metadata(path).context(Phase::Image, || format!("the target {}", path.display()))?;
    Ok(metadata.file_type().is_block_device())
}

/// Prints progress, redrawn in place on a terminal.
fn show_progress(progress: TransferProgress) {
    output::redraw_progress(&progress);
}

/// Results of a burn.
#[derive(Debug, Serialize)]
struct BurnSummary {
    digest: String,
    /// Figures of the stream alone: time until the last file was written, and the load of each stage.
    burn: ImageTransferFigures,
    /// Time until all data was synced to disk.
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
mod tests {
    use super::*;
    use linux::gpt::testing::crowded_image;
    use model::install_report::StageShare;
    use testing::images::{Tar, compress};

    fn burn() -> BurnOptions {
        let (url, target) = ("http://h/i".to_owned(), PathBuf::from("/mnt"));
        BurnOptions {
            url,
            target,
            digest: None,
            mirror: vec![],
            key: vec![],
            registry_config: None,
            overwrite: false,
            json: false,
        }
    }

    #[test]
    fn a_directory_that_is_not_the_root_is_a_target_and_a_disk_when_it_is_meant() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        let target =
            |path: &Path, overwrite| resolve_target(&BurnOptions { target: path.to_owned(), overwrite, ..burn() });
        assert_eq!(target(&dir.path().join("."), false).unwrap(), BurnTarget::Directory(real.clone()));
        let error = target(dir.path(), true).unwrap_err().to_string();
        assert!(error.contains("is a directory, but --overwrite is for disks"), "{error}");
        fs::write(dir.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        for (path, says) in [
            (dir.path().join("missing"), "No such file"),
            (dir.path().join("file"), "all data on it, add --overwrite"),
            ("/dev/null".into(), "is neither a directory nor a disk"),
            (dir.path().join("root"), "is the root of the running system"),
            ("/".into(), "the target / is the root of the running system"),
            ("/usr/..".into(), "is the root of the running system"),
        ] {
            let error = target(&path, false).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(target(&dir.path().join("file"), true).unwrap(), BurnTarget::Disk(real.join("file")));
    }

    #[test]
    fn a_key_is_given_as_text_or_as_its_file() {
        let trust = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/trust");
        let file = trust.join("one.pub");
        let text = fs::read_to_string(&file).unwrap();
        let line = text.lines().last().unwrap();
        assert_eq!(read_public_key(line).unwrap(), read_public_key(file.to_str().unwrap()).unwrap());
        let secret = trust.join("one.key");
        let text = fs::read_to_string(&secret).unwrap();
        let line = text.lines().last().unwrap();
        for (given, words) in [
            ("no key", "is not a minisign public key"),
            (secret.to_str().unwrap(), "one.key: this is a secret key; specify the public key"),
            (line, "this is a secret key"),
            (&line[1..], "is not a minisign public key"),
        ] {
            let error = read_public_key(given).unwrap_err();
            let said = error.to_string();
            assert!(error.is_refusal() && said.contains(words), "{said}");
            assert!(!said.contains(&line[50..80]), "nothing of the key itself is printed: {said}");
        }
    }

    #[test]
    fn a_registry_gets_what_dockers_file_has_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        let burn = BurnOptions {
            url: "oci://r.example/debian:12".to_owned(),
            mirror: vec!["oci://m.example/debian:12".to_owned(), "oci://n.example/debian:12".to_owned()],
            registry_config: Some(file.clone()),
            ..burn()
        };
        fs::write(&file, r#"{"auths": {"r.example": {"auth": "dTpw"}, "m.example": {"auth": "djpx"}}}"#).unwrap();
        let found: Vec<String> =
            build_source(&burn).unwrap().pull_secrets.into_iter().map(|secret| secret.username).collect();
        assert_eq!(found, ["u", "v"]);
        fs::write(&file, r#"{"auths": {"r.example": {"auth": "hunter2"}}}"#).unwrap();
        let error = build_source(&burn).unwrap_err();
        let said = error.to_string();
        assert!(
            error.is_refusal() && said.contains("config.json: auth for r.example") && !said.contains("hunter2"),
            "{said}"
        );
    }

    #[test]
    fn what_is_said_of_a_tar_for_a_disk_speaks_of_no_layout() {
        let said = |what: &str| replace_layout_advice(Error::refusal(Phase::Image, what)).to_string();
        let tar =
            said("file:///i.tar: the image is a tar archive, but the layout has image: true for /dev/sdb; provide");
        assert_eq!(
            tar,
            "file:///i.tar: the image is a tar archive, but --overwrite is for raw disk images; give a directory and omit --overwrite"
        );
        assert_eq!(said("anything else"), "anything else");
    }

    /// A file with its digest beside it.
    fn image(path: &Path, bytes: &[u8]) -> String {
        fs::write(path, bytes).unwrap();
        let script = format!("sha256sum {0} > {0}.sha256", path.display());
        linux::process::ToolCommand::new("sh").args(["-c", &script]).run().unwrap();
        format!("file://{}", path.display())
    }

    #[test]
    fn what_is_refused_is_told_from_what_fails_and_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (root, disk) = (dir.path().join("root"), dir.path().join("disk"));
        fs::create_dir(&root).unwrap();
        fs::write(&disk, vec![0xaa; 4 << 20]).unwrap();
        let tar = image(&dir.path().join("image.tar"), &Tar::new().file("etc/hostname", b"server").end());
        let raw = image(&dir.path().join("image.raw.zst"), &compress("zstd", &crowded_image(512, 4000)));
        let large = image(&dir.path().join("large.raw.zst"), &compress("zstd", &crowded_image(4096, 500)));
        let key = || vec!["RWSrW5G2df4ibM6Z/TrFXWSUPCeEn03zajmuZvLkO989EEiX+0k//xd8".to_owned()];
        let onto = |url: &str, target: &Path, overwrite| BurnOptions {
            url: url.to_owned(),
            target: target.to_owned(),
            overwrite,
            ..burn()
        };
        let refused = [
            onto(&tar, Path::new("/"), false),
            onto(&raw, &disk, false),
            onto(&tar, &root, true),
            onto(&raw, &root, false),
            onto(&tar, &disk, true),
            onto(&large, &disk, true),
            onto("ftp://h/i", &root, false),
            BurnOptions { key: key(), ..onto(&tar, &root, false) },
            BurnOptions { key: vec!["no key".to_owned()], ..onto(&tar, &root, false) },
            BurnOptions { digest: Some("sha256:0".to_owned()), ..onto(&tar, &root, false) },
            BurnOptions { key: key(), mirror: vec![raw.clone()], ..onto(&tar, &root, false) },
        ];
        for burn in &refused {
            assert_eq!(run(burn).unwrap(), CommandOutcome::Refused, "{burn:?}");
        }
        let failed = [
            onto(&tar, &dir.path().join("missing"), false),
            onto(&format!("{tar}.missing"), &root, false),
            BurnOptions { mirror: vec![format!("{tar}.missing")], ..onto(&format!("{tar}.gone"), &root, false) },
        ];
        for burn in &failed {
            run(burn).unwrap_err();
        }
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        assert!(fs::read(&disk).unwrap().iter().all(|byte| *byte == 0xaa));
        assert_eq!(run(&onto(&tar, &root, false)).unwrap(), CommandOutcome::Good);
        assert_eq!(run(&onto(&raw, &disk, true)).unwrap(), CommandOutcome::Good);
        assert!(fs::read(&disk).unwrap()[..4000 * 512] == crowded_image(512, 4000));
        // Something was written by now.
        run(&BurnOptions { digest: Some(format!("sha256:{:064}", 0)), ..onto(&raw, &disk, true) }).unwrap_err();
    }

    #[test]
    fn the_figures_for_people() {
        let shares = vec![
            StageShare { stage: "network".into(), percent: 97 },
            StageShare { stage: "decode".into(), percent: 20 },
        ];
        let burned = BurnResult {
            bytes: 387_000_000,
            tar_bytes: 1_478_000_000,
            entries: 31_114,
            shares,
            ..BurnResult::default()
        };
        let figures =
            BurnSummary::new("sha256:0a".to_owned(), &burned, Duration::from_millis(3100), Duration::from_millis(3180));
        let figures = BurnSummary { peak_rss_bytes: Some(45_000_000), ..figures };
        let expected = "sha256:0a\n\
            387 MB in 3.1 s, 125 MB/s: network 97 % (the bottleneck), decode 20 %\n\
            31114 files, 1.48 GB unpacked; synced to disk 0.08 s later, 3.18 s in total\n\
            connection resumed 0 times; peak memory 45.0 MB\n";
        assert_eq!(figures.format_lines(), expected);
    }
}
