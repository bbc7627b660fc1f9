//! Guarantees after a power cut: contents of files, identified by their digests, and ranges of the disks that must not
//! be written.

use crate::guest_facts::Facts;
use crate::host_tools::{Context, Result, run_tool};
use crate::qemu_machine::Chassis;
use crate::reinstall;
use serde_json::Value;
use std::process::Stdio;

/// State before the first power cut, and the two images of which one must be running after each cut.
pub struct SurvivalGuarantees {
    /// Sorted lines `PATH SHA256`, in the format of the tiny OS.
    proofs: Vec<String>,
    regions: Vec<ProtectedRegion>,
    old: String,
    new: String,
}

/// Range of a disk that must not be written.
#[derive(Debug, PartialEq)]
struct ProtectedRegion {
    disk: String,
    start: u64,
    length: u64,
    about: String,
}

/// Result of one power cut.
#[derive(Default)]
pub struct CutVerdict {
    pub number: usize,
    pub planned: String,
    pub was_cut: bool,
    pub boots: Vec<String>,
    pub intact: bool,
    pub converged: bool,
    pub words: Vec<String>,
    pub seconds: u64,
}

impl CutVerdict {
    pub fn is_good(&self) -> bool {
        self.intact && self.converged
    }

    pub fn format_line(&self) -> String {
        let data = if self.intact { "data intact" } else { "DATA NOT INTACT" };
        let end = if self.converged { "converged" } else { "NOT CONVERGED" };
        let words = if self.words.is_empty() { String::new() } else { format!(": {}", self.words.join("; ")) };
        let boots = if self.boots.is_empty() { self.planned.clone() } else { self.boots.join(" -> ") };
        format!("cut {:2}: {boots}: {data}, {end} ({} s){words}", self.number, self.seconds)
    }
}

impl SurvivalGuarantees {
    /// Parses the output of the script that prepares the disks: the lines `proof: PATH SHA256` and `region: DISK START
    /// LENGTH WHAT`.
    ///
    /// # Errors
    /// Fails if the output contains no such lines.
    pub fn read(console: &str, old: String, new: String) -> Result<SurvivalGuarantees> {
        let lines = |word: &'static str| console.lines().filter_map(move |line| line.trim().strip_prefix(word));
        let mut proofs: Vec<String> = lines("proof: ").map(str::to_owned).collect();
        proofs.sort();
        let regions: Vec<ProtectedRegion> = lines("region: ").map(parse_region).collect::<Result<_>>()?;
        if proofs.is_empty() || regions.is_empty() {
            return Err(format!("the prepare script printed neither proofs nor regions:\n{console}"));
        }
        Ok(SurvivalGuarantees { proofs, regions, old, new })
    }

    /// Returns the permitted images: the installed image, and the ordered one.
    pub fn allowed_images(&self) -> [String; 2] {
        [self.old.clone(), self.new.clone()]
    }

    /// Returns descriptions of the protected regions that were written.
    ///
    /// # Errors
    /// Fails if an overlay cannot be read.
    pub fn find_touched_regions(&self, chassis: &Chassis) -> Result<Vec<String>> {
        let mut touched = Vec::new();
        for disk in &chassis.disks {
            let map = run_tool(
                &["qemu-img", "map", "-U", "--output=json", &chassis.disk_file(disk).to_string_lossy()],
                Stdio::null(),
            )?;
            let map: Value = serde_json::from_slice(&map).context("qemu-img map")?;
            let written = list_written_ranges(&map);
            for region in self.regions.iter().filter(|region| region.disk == disk.name) {
                if let Some((start, _)) = written.iter().find(|(start, end)| region.overlaps_range(*start, *end)) {
                    touched.push(format!("{} on {} was written to at byte {start}", region.about, disk.name));
                }
            }
        }
        Ok(touched)
    }

    /// Compares the running system, and the state of the server, with the guarantees.
    pub fn check_survival(&self, facts: &Facts, touched: Vec<String>, order_is_open: bool, verdict: &mut CutVerdict) {
        let mut words = touched;
        let mut data = facts.section("data").unwrap_or_default().to_vec();
        data.sort();
        if data != self.proofs {
            words.push(format!("the preserved files are {data:?}, but were {:?}", self.proofs));
        }
        verdict.intact = words.is_empty();
        let image = reinstall::image_of(facts).unwrap_or_else(|| "without a marker".to_owned());
        verdict.boots.push(image.clone());
        verdict.converged = (image == self.new && !order_is_open) || image == self.old;
        if !verdict.converged {
            words.push(format!("{image} came up, the order is open: {order_is_open}"));
        }
        verdict.words.extend(words);
    }
}

impl ProtectedRegion {
    fn overlaps_range(&self, start: u64, end: u64) -> bool {
        start < self.start + self.length && self.start < end
    }
}

fn parse_region(line: &str) -> Result<ProtectedRegion> {
    let mut fields = line.splitn(4, ' ');
    let mut field = || fields.next().ok_or(format!("region: {line}"));
    let (disk, start, length) = (field()?.to_owned(), field()?, field()?);
    let number = |text: &str| text.parse().context(format!("region: {line}"));
    Ok(ProtectedRegion { disk, start: number(start)?, length: number(length)?, about: field()?.to_owned() })
}

/// Returns the ranges that the overlay itself contains, from the output of `qemu-img map --output=json`. Zeros and
/// holes in the overlay were written too.
fn list_written_ranges(map: &Value) -> Vec<(u64, u64)> {
    let entries = map.as_array().into_iter().flatten().filter(|entry| entry["depth"] == 0);
    let bounds = |entry: &Value| Some((entry["start"].as_u64()?, entry["start"].as_u64()? + entry["length"].as_u64()?));
    entries.filter_map(bounds).collect()
}

/// Tests the parsing of regions, the detection of writes, and each violation of a guarantee.
pub fn self_test() {
    let console = "noise\n+ echo proof: no\nproof: /srv/b 2\nproof: /srv/a 1\r\nregion: vdb 100 50 the table\n";
    let guarantees = SurvivalGuarantees::read(console, "old".to_owned(), "new".to_owned()).expect("a promise");
    assert_eq!(guarantees.proofs, ["/srv/a 1", "/srv/b 2"]);
    let region = &guarantees.regions[0];
    assert_eq!((region.disk.as_str(), region.about.as_str()), ("vdb", "the table"));
    assert!(region.overlaps_range(149, 200) && region.overlaps_range(0, 101) && region.overlaps_range(0, 999));
    assert!(!region.overlaps_range(150, 200) && !region.overlaps_range(0, 100));
    assert!(SurvivalGuarantees::read("proof: /a 1\n", String::new(), String::new()).is_err());
    assert!(SurvivalGuarantees::read("proof: /a 1\nregion: vdb 1 x y\n", String::new(), String::new()).is_err());
    let map = serde_json::json!([
        {"start": 0, "length": 100, "depth": 1, "data": true},
        {"start": 100, "length": 20, "depth": 0, "data": false, "zero": true},
    ]);
    assert_eq!(list_written_ranges(&map), [(100, 120)]);

    let check = |image: &str, data: &str, touched: &[&str], open| {
        let text = format!(
            "=== facts begin tiny\n--- marker\n{{\"image\": \"{image}\"}}\n--- data\n{data}\n=== facts end tiny\n"
        );
        let facts = Facts::read(&text, "tiny").expect("facts");
        let mut verdict = CutVerdict::default();
        guarantees.check_survival(&facts, touched.iter().map(|text| (*text).to_owned()).collect(), open, &mut verdict);
        (verdict.intact, verdict.converged)
    };
    let data = "/srv/a 1\n/srv/b 2";
    assert_eq!(check("new", data, &[], false), (true, true));
    assert_eq!(check("old", data, &[], true), (true, true));
    assert_eq!(check("new", data, &[], true), (true, false));
    assert_eq!(check("other", data, &[], false), (true, false));
    assert_eq!(check("new", "/srv/a 1", &[], false), (false, true));
    assert_eq!(check("new", data, &["the table"], false), (false, true));
}
