//! `drophammer image burn`: the image stage of an installation alone, with its figures.

use crate::cli;
use crate::control::wire::{BurnFigures, Progress};
use crate::desk::{self, Outcome};
use crate::error::{Context, Error, Phase, Result};
use crate::execute::peak_rss_bytes;
use crate::image::{self, Beneath, Burned, Incoming, Keys, PublicKey, Source};
use crate::storage::busy;
use crate::storage::writeback::Steady;
use crate::text;
use serde::Serialize;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// # Errors
/// The target is none, the image cannot be had or is not what its digest says, or the disk fails.
pub fn run(burn: &cli::Burn) -> Result<Outcome> {
    let target = target(&burn.target)?;
    let reached = image::reach(&source(burn)?)?;
    let digest = reached.digest.clone();
    // A filesystem that is mounted at the target itself is one of these already; to write it back twice costs nothing.
    let points = [vec![target.clone()], busy::mounts_below(&target)].concat();
    let began = Instant::now();
    let steady = Steady::start(points);
    let burned =
        Incoming::start(reached, image::Plain::Tar)?.among_others().burn(&target, &Beneath::default(), &show)?;
    let streamed = began.elapsed();
    steady.finish()?;
    let figures = Figures::new(digest, &burned, streamed, began.elapsed());
    desk::print(&if burn.json { desk::json(&figures)? + "\n" } else { figures.lines() })?;
    Ok(Outcome::Good)
}

fn source(burn: &cli::Burn) -> Result<Source> {
    let keys: Result<Vec<PublicKey>, String> = burn.key.iter().map(|key| key.parse()).collect();
    let keys = Keys(keys.map_err(|why| Error::new(Phase::Image, why))?);
    Ok(Source { url: burn.url.clone(), mirrors: burn.mirror.clone(), digest: burn.digest.clone(), keys })
}

/// The directory by its real name.
fn target(path: &Path) -> Result<PathBuf> {
    let what = || format!("the target {}", path.display());
    let metadata = fs::metadata(path).context(Phase::Image, what)?;
    let refused = |why: &str| Err(Error::new(Phase::Image, format!("{} {why}", what())));
    if !metadata.is_dir() {
        return refused("is no directory");
    }
    let root = fs::metadata("/").context(Phase::Image, || "look at /".to_owned())?;
    if (metadata.dev(), metadata.ino()) == (root.dev(), root.ino()) {
        return refused("is the root of the running system: give a directory below which the image may lie");
    }
    fs::canonicalize(path).context(Phase::Image, what)
}

/// On a terminal, redrawn in its place.
fn show(progress: Progress) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{progress}\r");
    }
}

/// What the burn was.
#[derive(Debug, Serialize)]
struct Figures {
    digest: String,
    /// Of the stream as it came: until its last file was written, and which stage set the pace.
    burn: BurnFigures,
    /// With everything on the disk.
    seconds: f64,
    files: u64,
    unpacked_bytes: u64,
    resumed: u32,
    peak_rss_bytes: Option<u64>,
}

impl Figures {
    fn new(digest: String, burned: &Burned, streamed: Duration, whole: Duration) -> Figures {
        Figures {
            digest,
            burn: burned.figures(streamed),
            seconds: whole.as_secs_f64(),
            files: burned.entries,
            unpacked_bytes: burned.tar_bytes,
            resumed: burned.resumed,
            peak_rss_bytes: peak_rss_bytes(),
        }
    }

    fn lines(&self) -> String {
        let Figures { digest, burn, seconds, files, unpacked_bytes, resumed, peak_rss_bytes } = self;
        let (unpacked, after) = (text::bytes(*unpacked_bytes), seconds - burn.seconds);
        let memory = peak_rss_bytes.map_or("unknown".to_owned(), text::bytes);
        format!(
            "{digest}\n{burn}\n{files} files, {unpacked} unpacked; the last of it on the disk {after:.2} s later, {seconds:.2} s in \
             all\nconnection resumed {resumed} times; peak memory {memory}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::Share;

    #[test]
    fn only_a_directory_that_is_not_the_root_is_a_target() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(target(&dir.path().join(".")).unwrap(), real);
        fs::write(dir.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        for (path, says) in [
            (dir.path().join("missing"), "No such file"),
            (dir.path().join("file"), "is no directory"),
            (dir.path().join("root"), "is the root of the running system"),
            ("/".into(), "the target / is the root of the running system"),
            ("/usr/..".into(), "is the root of the running system"),
        ] {
            let error = target(&path).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_figures_for_people() {
        let shares =
            vec![Share { stage: "network".into(), percent: 97 }, Share { stage: "decode".into(), percent: 20 }];
        let burned =
            Burned { bytes: 387_000_000, tar_bytes: 1_478_000_000, entries: 31_114, shares, ..Burned::default() };
        let figures =
            Figures::new("sha256:0a".to_owned(), &burned, Duration::from_millis(3100), Duration::from_millis(3180));
        let figures = Figures { peak_rss_bytes: Some(45_000_000), ..figures };
        let expected = "sha256:0a\n\
            387 MB in 3.1 s, 125 MB/s: network 97 % (the bottleneck), decode 20 %\n\
            31114 files, 1.48 GB unpacked; the last of it on the disk 0.08 s later, 3.18 s in all\n\
            connection resumed 0 times; peak memory 45.0 MB\n";
        assert_eq!(figures.lines(), expected);
    }
}
