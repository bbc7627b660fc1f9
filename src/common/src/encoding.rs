//! Text encodings of bytes: hexadecimal digits, SHA-256 digests, and percent-encoding.

use sha2::{Digest, Sha256};
use std::io::{self, Read};

/// Encodes bytes as lower-case hexadecimal digits.
pub fn encode_hex(bytes: impl AsRef<[u8]>) -> String {
    join_hex(bytes, "")
}

/// Encodes each byte as two lower-case hexadecimal digits, and inserts a separator between bytes.
pub fn join_hex(bytes: impl AsRef<[u8]>, separator: &str) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(separator)
}

/// Decodes hexadecimal digits in upper or lower case. Returns `None` if a character is not a hexadecimal digit, or if
/// the number of digits is odd.
pub fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let digits = digits?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Returns the SHA-256 of the bytes as `sha256:HEX`.
pub fn format_sha256(bytes: impl AsRef<[u8]>) -> String {
    format!("sha256:{}", encode_hex(Sha256::digest(bytes)))
}

/// Returns the SHA-256 of all bytes of the reader, as hexadecimal digits without a prefix.
///
/// # Errors
/// Returns the error of the reader.
pub fn hash_reader(mut from: impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut from, &mut hasher)?;
    Ok(encode_hex(hasher.finalize()))
}

/// Percent-encodes all bytes except the unreserved characters of RFC 3986 and the characters in `preserved`.
pub fn percent_encode(text: &str, preserved: &str) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || preserved.as_bytes().contains(&byte);
    let encode = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_encoded_and_decoded_as_hex() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode_hex(&encode_hex(&all)), Some(all.clone()));
        assert_eq!(decode_hex(&encode_hex(&all).to_uppercase()), Some(all));
        assert_eq!(encode_hex([0x00, 0x9a, 0xff]), "009aff");
        assert_eq!(join_hex([0x52, 0x54, 0x00], ":"), "52:54:00");
    }

    #[test]
    fn only_pairs_of_digits_are_decoded() {
        assert_eq!(decode_hex(""), Some(Vec::new()));
        for wrong in ["0", "000", "+f", " 0", "0x", "0g", "é0", "00é", "٣٣"] {
            assert_eq!(decode_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sha256_digests_have_algorithm_prefix() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(format_sha256(""), empty);
        assert_eq!(format!("sha256:{}", hash_reader(&b""[..]).unwrap()), empty);
    }

    #[test]
    fn reserved_characters_are_percent_encoded() {
        assert_eq!(percent_encode("a-b._~ /:ä%", ""), "a-b._~%20%2F%3A%C3%A4%25");
        assert_eq!(percent_encode("a/b:c", "/:"), "a/b:c");
    }
}
