//! Framing of gRPC messages, and decoding of error messages in headers.

use bytes::Bytes;

/// Maximum size of a message, in bytes. The server's messages are a few hundred bytes long.
const MESSAGE_BYTES: u32 = 1 << 20;

/// Maximum length of a server's error message, in characters.
const MAXIMUM_ERROR_CHARACTERS: usize = 500;

/// Length of the prefix of a message, in bytes: the compression flag, and the length of the message.
const PREFIX: usize = 5;

pub(super) fn frame_message(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), message].concat().into()
}

/// Removes the first message from the buffer, and returns it. Returns `None` if the buffer contains no complete
/// message.
pub(super) fn take_message(rest: &mut Vec<u8>) -> Result<Option<Vec<u8>>, &'static str> {
    let Some((prefix, after)) = rest.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let [compressed, length @ ..] = *prefix;
    let length = u32::from_be_bytes(length);
    if compressed != 0 || length > MESSAGE_BYTES {
        return Err("the server sent a message that is compressed, or longer than 1 MiB");
    }
    let Some(message) = after.get(..length as usize).map(<[u8]>::to_vec) else { return Ok(None) };
    rest.drain(..PREFIX + message.len());
    Ok(Some(message))
}

/// Decodes a percent-encoded error message, sanitizes it, and truncates it.
pub(super) fn decode_error_message(text: &[u8]) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|two| *first == b'%' && two.iter().all(u8::is_ascii_hexdigit));
        let byte = hex.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        rest = if byte.is_some() { &after[2..] } else { after };
        bytes.push(byte.unwrap_or(*first));
    }
    let text = String::from_utf8_lossy(&bytes);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAXIMUM_ERROR_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_assembled_from_fragments() {
        let mut rest = Vec::new();
        let mut found = Vec::new();
        for byte in [&frame_message(b"abc")[..], &frame_message(b""), &frame_message(b"d")].concat() {
            rest.push(byte);
            found.extend(take_message(&mut rest).unwrap());
        }
        assert_eq!((found, rest), (vec![b"abc".to_vec(), vec![], b"d".to_vec()], vec![]));
        for wrong in [&[1, 0, 0, 0, 1][..], &[0, 0xff, 0, 0, 0]] {
            assert!(take_message(&mut wrong.to_vec()).is_err());
        }
    }

    #[test]
    fn percent_encoded_error_messages_are_decoded() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a%20b%C3%A4%", "a bä%"),
            ("%zz %4", "%zz %4"),
            ("%0aline", " line"),
            ("%+1x", "%+1x"),
        ] {
            assert_eq!(decode_error_message(text.as_bytes()), expected);
        }
        assert_eq!(decode_error_message("x".repeat(9000).as_bytes()).len(), MAXIMUM_ERROR_CHARACTERS);
    }
}
