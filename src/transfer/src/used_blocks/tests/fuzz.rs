//! Builds filesystems, and mutates fields according to their meaning: pointers to the block itself, its parent and its
//! siblings; levels, counts and lengths, such as 0 and the maximum; wrong generations and owners; and blocks that are
//! copies of others.
//!
//! `scripts/fuzz SECONDS SEED used_blocks` runs longer (DROPHAMMER_FUZZ_SECONDS, DROPHAMMER_FUZZ_SEED).

use super::built_filesystems::{Image, Meaning, Reads, btrfs, ext, fat, xfs};
use super::*;
use crate::used_blocks::work_limits::MAXIMUM_TREE_NODES;
use fastrand::Rng;
use std::time::{Duration, Instant};

/// Number of images of each filesystem in a run without DROPHAMMER_FUZZ_SECONDS.
const FEW: u64 = 60;
const MUTANTS: usize = 50;

/// Maximum number of reads of one offset. The detection of signatures reads some offsets several times.
const MOST_OF_ONE_PLACE: u64 = 16;

type Build = fn(&mut Rng) -> Image;
const BUILDS: [Build; 4] = [xfs::build, btrfs::build, ext::build, fat::build];

#[derive(Debug, Default)]
struct Tally {
    images: u64,
    mutants: u64,
    whole: u64,
    most_reads: u64,
    most_nodes: u64,
    most_bytes: u64,
}

/// Reads an image, and asserts that the work is bounded by its size.
fn read(image: &Image, tally: &mut Tally) -> UsedBlocks {
    let (work, reads) = (WorkLimits::default(), Reads::default());
    let used = read_used_blocks(&|bytes, at| reads.read(image, bytes, at), image.size, 512, &work);
    let [count, bytes, nodes] = work.counts();
    assert_eq!(count, reads.all());
    assert!(reads.most_of_one_place() <= MOST_OF_ONE_PLACE, "{} reads at one offset", reads.most_of_one_place());
    // Each metadata block is read once, in addition to the search for signatures. A mutant may declare more groups than
    // exist.
    assert!(
        nodes <= MAXIMUM_TREE_NODES as u64 + 1 && count <= 2000 + image.size / 512 / 64 * 3,
        "{count} reads, {nodes} nodes"
    );
    assert!(bytes <= (8 << 20) + 3 * image.size, "{bytes} bytes of {}", image.size);
    assert!(used.ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", used.ranges);
    assert!(used.ranges.iter().all(|range| range.start < range.end && range.end <= image.size));
    tally.most_reads = tally.most_reads.max(count);
    tally.most_nodes = tally.most_nodes.max(nodes);
    tally.most_bytes = tally.most_bytes.max(bytes);
    used
}

fn holds(used: &UsedBlocks, ranges: &[Range<u64>]) -> bool {
    ranges.iter().all(|range| used.ranges.iter().any(|is| is.start <= range.start && range.end <= is.end))
}

/// Returns a new value according to the meaning of the field.
fn value(image: &Image, old: u64, width: usize, meaning: Meaning, random: &mut Rng) -> u64 {
    let most = u64::MAX >> (64 - 8 * width);
    let near = [0, 1, old.wrapping_sub(1), old.wrapping_add(1), most, most >> 1, most - 1];
    let value = match meaning {
        Meaning::Pointer if random.u8(0..4) > 0 => *random.choice(&image.pointers).unwrap(),
        Meaning::Level => {
            *random.choice(&[0, 1, 2, 3, 7, 8, 9, 255, old.wrapping_add(1), old.wrapping_sub(1)]).unwrap()
        }
        Meaning::Owner => *random.choice(&[0, 1, 2, 3, 5, old.wrapping_add(1), most]).unwrap(),
        Meaning::Defines if random.bool() => random.u64(..),
        _ => *random.choice(&near).unwrap(),
    };
    value & most
}

/// Mutates an image. Returns true if only one field was changed, and this field does not define the used blocks. The
/// reader must then treat at least the used blocks of the original image as used.
fn mutate(image: &mut Image, random: &mut Rng) -> bool {
    let fields = if random.bool() { 1 } else { random.usize(2..5) };
    let mut contradicts = fields == 1;
    for _ in 0..fields {
        let field = random.choice(&image.fields).unwrap().clone();
        let value = value(image, image.get(&field), field.width, field.meaning, random);
        contradicts &= field.meaning != Meaning::Defines;
        image.set(&field, value);
    }
    if random.u8(0..6) == 0 {
        let (from, onto) = (*random.choice(&image.nodes).unwrap(), *random.choice(&image.nodes).unwrap());
        image.copy_node(from, onto);
        contradicts = false;
    }
    contradicts
}

#[test]
fn fuzz_used_blocks_of_filesystems_by_structure() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("DROPHAMMER_FUZZ_SECONDS").map(Duration::from_secs);
    let seed = number("DROPHAMMER_FUZZ_SEED").unwrap_or_else(|| if seconds.is_some() { fastrand::u64(..) } else { 1 });
    println!("DROPHAMMER_FUZZ_SEED={seed}");
    let (mut random, began, mut tally) = (Rng::with_seed(seed), Instant::now(), Tally::default());
    while seconds.map_or(tally.images < FEW * BUILDS.len() as u64, |seconds| began.elapsed() < seconds) {
        let build = BUILDS[(tally.images % BUILDS.len() as u64) as usize];
        let image_seed = random.u64(..);
        let image = build(&mut Rng::with_seed(image_seed));
        tally.images += 1;
        let used = read(&image, &mut tally);
        // The used blocks of a valid image are determined exactly.
        assert_eq!(used.what, image.what, "image {image_seed}");
        assert_eq!(used.ranges, round_ranges(image.used.clone(), image.size), "{} {image_seed}", image.what);
        for _ in 0..MUTANTS {
            let mut mutant = image.clone();
            let mutant_seed = random.u64(..);
            let contradicts = mutate(&mut mutant, &mut Rng::with_seed(mutant_seed));
            let used = read(&mutant, &mut tally);
            tally.mutants += 1;
            tally.whole += u64::from(used.what.contains("the whole disk"));
            let is_fewer = contradicts && !holds(&used, &image.used);
            assert!(!is_fewer, "fewer blocks are used: {} {image_seed} {mutant_seed}: {}", image.what, used.what);
        }
    }
    println!("{tally:?} in {} s", began.elapsed().as_secs());
    assert!(tally.whole > tally.mutants / 8 && tally.whole < tally.mutants);
}
