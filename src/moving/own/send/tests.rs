use super::*;

const GRANULE: usize = GRANULE_BYTES as usize;

#[test]
fn runs_of_zeros_are_cut_at_granules() {
    let mut bytes = vec![0; 5 * GRANULE + 100];
    bytes[GRANULE] = 1;
    bytes[3 * GRANULE - 1] = 1;
    assert_eq!(
        runs(&bytes),
        [(0..GRANULE, true), (GRANULE..3 * GRANULE, false), (3 * GRANULE..5 * GRANULE + 100, true)]
    );
    *bytes.last_mut().unwrap() = 1;
    assert_eq!(runs(&bytes).last(), Some(&(5 * GRANULE..5 * GRANULE + 100, false)));
    assert_eq!(runs(&[]), []);
}

#[test]
fn noise_travels_as_it_is() {
    let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(GRANULE).collect();
    assert_eq!(smaller(&noise), None);
    let words = b"the same again ".repeat(5000);
    let packed = smaller(&words).unwrap();
    assert_eq!(lz4_flex::block::decompress(&packed, words.len()).unwrap(), words);
}
