//! Structure-aware fuzzing: images with consistent header, tables and clusters, and images with one contradiction. The
//! result must be the same as that of qemu-img.

use super::*;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Marker at the end of images without a contradiction.
const SOUND: &[u8] = b"SOUND";

/// Maximum number of bytes of a disk that are compared.
const MOST_BYTES: u64 = 64 << 20;

const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;

/// Number of images by verdict.
static COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

#[test]
fn fuzz_qcow2_structure() {
    let fuzz = Fuzz {
        folder: folder("qcow2-structure"),
        few: 150,
        hangs: Duration::from_secs(120),
        corpus: Vec::new(),
        mutated: |_, random| generate(random),
        check_input: compare,
    };
    fuzz.run();
    let counts = COUNTS.lock().unwrap();
    counts.iter().for_each(|(verdict, count)| println!("{count:>8}  {verdict}"));
    let of = |start: &str| -> u64 {
        counts.iter().filter(|(verdict, _)| verdict.starts_with(start)).map(|(_, count)| count).sum()
    };
    let total: u64 = counts.values().sum();
    assert!(of("same disk") * 4 > total && of("refused") * 20 > total, "{counts:?}");
    assert!(of("same disk, as it comes") > 0 && of("same disk, from a file") > 0, "{counts:?}");
}

/// Asserts that this crate and qemu-img read the same disk. Returns whether the image was accepted.
fn compare(image: &[u8], _: &mut Rng) -> bool {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("disk.qcow2"), image).unwrap();
    let mut whole = Collected { most: Some(MOST_BYTES), ..Collected::default() };
    let in_file = unpack_file(&File::open(directory.path().join("disk.qcow2")).unwrap(), &mut whole);
    let is_long = whole.bytes > MOST_BYTES;
    let mut stream = Collected { most: Some(MOST_BYTES), ..Collected::default() };
    let as_it_comes = convert_stream(reader(image, 4096), &mut stream, &BufferPool::new(2, 1 << 20));
    let verdict = match (&in_file, &as_it_comes) {
        (Err(_), _) if is_long => "too long to compare".to_owned(),
        (Err(error), _) => {
            assert!(!image.ends_with(SOUND), "{error}");
            assert!(as_it_comes.is_err(), "the image is rejected from a file, but accepted as a stream: {error}");
            format!("refused: {}", reason(&error.to_string()))
        }
        (Ok(()), as_it_comes) => {
            let ours = whole.end();
            assert_eq!(ours, qemu_reads(directory.path()), "qemu-img reads another disk");
            match as_it_comes {
                Ok(()) => {
                    assert_eq!(ours, stream.end());
                    "same disk, as it comes".to_owned()
                }
                Err(_) => "same disk, from a file".to_owned(),
            }
        }
    };
    *COUNTS.lock().unwrap().entry(verdict).or_default() += 1;
    in_file.is_ok()
}

/// Returns the beginning of an error message, without digits.
fn reason(error: &str) -> String {
    error.split([':', ';']).next().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn qemu_reads(directory: &Path) -> String {
    qemu_img(directory, "convert -U -f qcow2 -O raw disk.qcow2 disk.raw");
    digest(&directory.join("disk.raw"))
}

/// Image under construction.
struct Image {
    bytes: Vec<u8>,
    cluster_bits: u32,
}

impl Image {
    fn cluster_bytes(&self) -> usize {
        1 << self.cluster_bits
    }

    /// Adds a cluster, and returns its offset.
    fn add(&mut self, content: &[u8]) -> u64 {
        let at = self.bytes.len();
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(self.cluster_bytes()), 0);
        at as u64
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_number(&mut self, at: u64, number: u64) {
        self.put(usize::try_from(at).unwrap(), &number.to_be_bytes());
    }
}

/// Offsets of the tables of an image.
struct Layout {
    is_version_3: bool,
    l1_at: u64,
    l1_entries: u64,
    l2_at: Vec<u64>,
    /// Offsets of the used entries of L2 tables.
    entries: Vec<u64>,
}

fn generate(random: &mut Rng) -> Vec<u8> {
    let (mut image, layout) = sound(random);
    if random.bool() {
        image.bytes.extend(SOUND);
        return image.bytes;
    }
    contradict(random, &mut image, &layout);
    image.bytes
}

fn sound(random: &mut Rng) -> (Image, Layout) {
    let cluster_bits = random.u32(9..=12);
    let mut image = Image { bytes: Vec::new(), cluster_bits };
    let (cluster, is_version_3) = (image.cluster_bytes(), random.bool());
    let size = random.u64(1..=40) * 512 * random.u64(1..=16);
    let clusters = size.div_ceil(cluster as u64);
    let per_table = cluster as u64 / 8;
    let l1_entries = clusters.div_ceil(per_table) + random.u64(0..2);
    image.add(&vec![0; cluster]);
    let l1_at = image.add(&vec![0; usize::try_from(l1_entries * 8).unwrap()]);
    let refcount_block = image.add(&[0, 1].repeat(cluster / 2));
    let refcount_table = image.add(&refcount_block.to_be_bytes());
    let mut layout = Layout { is_version_3, l1_at, l1_entries, l2_at: Vec::new(), entries: Vec::new() };
    let tables = clusters.div_ceil(per_table);
    for table in 0..tables {
        if random.u8(..6) == 0 {
            continue;
        }
        let l2_at = image.add(&vec![0; cluster]);
        image.put_number(l1_at + table * 8, l2_at | COPIED);
        layout.l2_at.push(l2_at);
        let count = (clusters - table * per_table).min(per_table);
        fill_table(random, &mut image, &mut layout, l2_at, count);
    }
    write_header(random, &mut image, &layout, size, refcount_table);
    (image, layout)
}

fn write_header(random: &mut Rng, image: &mut Image, layout: &Layout, size: u64, refcount_table: u64) {
    let cluster_bits = u64::from(image.cluster_bits);
    image.put(0, b"QFI\xfb");
    image.put(4, &(if layout.is_version_3 { 3_u32 } else { 2 }).to_be_bytes());
    image.put(20, &(cluster_bits as u32).to_be_bytes());
    image.put_number(24, size);
    image.put(36, &(layout.l1_entries as u32).to_be_bytes());
    image.put_number(40, layout.l1_at);
    image.put_number(48, refcount_table);
    image.put(56, &1_u32.to_be_bytes());
    if layout.is_version_3 {
        // Compatible and autoclear features are ignored.
        image.put_number(80, random.u64(0..2));
        image.put(96, &4_u32.to_be_bytes());
        image.put(100, &(if random.bool() { 104_u32 } else { 112 }).to_be_bytes());
    }
}

/// Fills a table with data clusters, compressed clusters, zero clusters and holes, in ascending or descending order.
fn fill_table(random: &mut Rng, image: &mut Image, layout: &mut Layout, l2_at: u64, count: u64) {
    let mut order: Vec<u64> = (0..count).collect();
    if random.u8(..3) == 0 {
        order.reverse();
    }
    for index in order {
        let content = content(random, image.cluster_bytes());
        let entry = match random.u8(..8) {
            0..3 => continue,
            3 if layout.is_version_3 => 1,
            // A zero cluster that remains allocated.
            4 if layout.is_version_3 => image.add(&content) | COPIED | 1,
            5 | 6 => compressed(image, &content),
            _ => image.add(&content) | COPIED,
        };
        let at = l2_at + index * 8;
        image.put_number(at, entry);
        layout.entries.push(at);
    }
}

fn content(random: &mut Rng, length: usize) -> Vec<u8> {
    if random.bool() { vec![random.u8(..); length] } else { (0..length).map(|_| random.u8(..)).collect() }
}

/// Adds a compressed cluster that starts in a new sector, and returns its descriptor.
fn compressed(image: &mut Image, content: &[u8]) -> u64 {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content).unwrap();
    let packed = encoder.finish().unwrap();
    if packed.len() >= content.len() {
        return image.add(content) | COPIED;
    }
    let at = image.add(&packed);
    let bits = 62 - (image.cluster_bits - 8);
    COMPRESSED | ((packed.len() as u64).div_ceil(512) - 1) << bits | at
}

/// Makes one change after which the image is invalid, or at least unusual.
fn contradict(random: &mut Rng, image: &mut Image, layout: &Layout) {
    let entry = if layout.entries.is_empty() { None } else { random.choice(&layout.entries).copied() };
    let table = if layout.l2_at.is_empty() { None } else { random.choice(&layout.l2_at).copied() };
    let cluster = image.cluster_bytes() as u64;
    match (random.u8(..16), entry, table) {
        // Backing file, encryption, snapshots, features.
        (0, ..) => image.put_number(8, 200),
        (1, ..) => image.put(32, &random.u32(1..3).to_be_bytes()),
        (2, ..) => image.put(60, &1_u32.to_be_bytes()),
        (3, ..) => image.put_number(72, 1 << random.u32(..6)),
        (4, ..) => image.put(20, &random.u32(..24).to_be_bytes()),
        (5, ..) => image.put_number(24, *random.choice(&[0, 1, 1 << 20, 1 << 40, u64::MAX]).unwrap()),
        (6, ..) => image.put(36, &random.u32(..3).to_be_bytes()),
        (7, ..) => image.put_number(40, *random.choice(&[0, 1, cluster, 1 << 40]).unwrap()),
        (8, Some(at), _) => image.put_number(at, (random.u64(..64) * cluster) | COPIED),
        (9, Some(at), _) => image.put_number(at, random.u64(..) & (COPIED | COMPRESSED | 0xffff)),
        (10, Some(at), _) => image.put_number(at, (image.bytes.len() as u64 + cluster) | COPIED),
        // A table that is used as data, and two clusters at the same offset.
        (11, Some(at), Some(table)) => image.put_number(at, table | COPIED),
        (12, Some(at), _) => {
            let other = usize::try_from(*random.choice(&layout.entries).unwrap()).unwrap();
            let entry = image.bytes[other..other + 8].to_vec();
            image.put(usize::try_from(at).unwrap(), &entry);
        }
        (13, _, Some(table)) => image.put_number(layout.l1_at, table | random.u64(..2)),
        (14, Some(at), _) => {
            let at = usize::try_from(at).unwrap() + random.usize(..8);
            image.bytes[at] ^= 1 << random.u8(..8);
        }
        _ => {
            let length = random.usize(1..image.bytes.len());
            image.bytes.truncate(length);
        }
    }
}
