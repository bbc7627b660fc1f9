//! Fuzz test of `drophammer check` with arbitrary files in a directory that also contains a valid layout.

use super::check::CheckReport;
use fastrand::Rng;
use std::fs;
use std::path::Path;
use std::time::Duration;
use testing::fuzz_driver::{Fuzz, folder};

const VALID: &str = include_str!("../../../../testdata/layouts/default.yaml");

#[test]
fn fuzz_files_for_check() {
    let layouts = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/layouts");
    let files = fs::read_dir(layouts).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let mut corpus: Vec<Vec<u8>> = files.map(|file| fs::read(file).unwrap()).collect();
    corpus.sort();
    let hangs = Duration::from_secs(240);
    Fuzz { folder: folder("check"), few: 150, hangs, corpus, mutated: mutate_bytes, check_input: is_checked }.run();
}

/// Changes, inserts or removes at most four bytes of a file's content.
fn mutate_bytes(corpus: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut bytes = corpus[random.usize(..corpus.len())].clone();
    for _ in 0..random.usize(1..5) {
        let at = random.usize(..=bytes.len());
        match random.u8(..3) {
            0 => bytes.insert(at, random.u8(..)),
            1 if at < bytes.len() => bytes[at] = random.u8(..),
            _ if at < bytes.len() => drop(bytes.remove(at)),
            _ => {}
        }
    }
    bytes
}

fn is_checked(bytes: &[u8], _: &mut Rng) -> bool {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), VALID).unwrap();
    fs::write(dir.path().join("b.json"), bytes).unwrap();
    fs::write(dir.path().join("c.yaml"), bytes).unwrap();
    let report = CheckReport::check_files(&[dir.path().to_owned()]).unwrap_or_else(|error| panic!("{error}"));
    let text = report.to_string();
    let is_problem = |line: &str, file: &str| line.contains(file) && !line.ends_with("(note)");
    assert!(!text.lines().any(|line| is_problem(line, "a.yaml:")), "{text}");
    assert!(text.lines().last().unwrap().contains(" layouts"), "{text}");
    !text.lines().any(|line| is_problem(line, "c.yaml:"))
}
