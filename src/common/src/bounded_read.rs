//! Functions that read data up to a size limit.

use std::io::{Read, Result};

/// Reads at most `limit` bytes, and ignores all further bytes.
///
/// # Errors
/// Returns the error of the reader.
pub fn read_prefix(from: impl Read, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads all bytes. Returns `None` if the reader provides more than `limit` bytes.
///
/// # Errors
/// Returns the error of the reader.
pub fn read_whole(from: impl Read, limit: u64) -> Result<Option<Vec<u8>>> {
    let bytes = read_prefix(from, limit.saturating_add(1))?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_is_read() {
        for (limit, prefix, whole) in
            [(0, "", None), (2, "ab", None), (3, "abc", Some("abc")), (u64::MAX, "abc", Some("abc"))]
        {
            assert_eq!(read_prefix(&b"abc"[..], limit).unwrap(), prefix.as_bytes());
            assert_eq!(read_whole(&b"abc"[..], limit).unwrap(), whole.map(|text| text.as_bytes().to_vec()));
        }
    }
}
