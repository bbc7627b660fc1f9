//! Comparison of long byte sequences. Without optimization, a loop over the bytes of a disk takes seconds; the
//! comparison of two slices is a call of `memcmp`.

/// Returns whether all bytes have this value. An empty slice has no other bytes.
pub fn is_filled_with(bytes: &[u8], value: u8) -> bool {
    match bytes {
        [] => true,
        [first, rest @ ..] => *first == value && rest == &bytes[..rest.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_bytes_fill_a_slice() {
        assert!(is_filled_with(&[], 1));
        assert!(is_filled_with(&[7], 7) && !is_filled_with(&[7], 1));
        for different in 0..5 {
            let mut bytes = [7; 5];
            assert!(is_filled_with(&bytes, 7) && !is_filled_with(&bytes, 0));
            bytes[different] = 0;
            assert!(!is_filled_with(&bytes, 7), "{different}");
        }
    }
}
