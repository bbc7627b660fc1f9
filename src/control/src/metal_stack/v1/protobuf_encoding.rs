//! Minimal implementation of Protocol Buffers (<https://protobuf.dev/programming-guides/encoding/>) for the messages
//! of API v1, whose fields are strings, numbers and other messages. As in proto3, zeros and empty values are omitted.

// Wire types, which are part of the tag of a field.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// Writer of a protobuf message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn add_text(self, number: u32, text: &str) -> ProtobufMessage {
        if text.is_empty() { self } else { self.add_bytes(number, text.as_bytes()) }
    }

    pub(crate) fn add_number(mut self, number: u32, value: u64) -> ProtobufMessage {
        if value != 0 {
            write_varint(&mut self.0, u64::from(number) << 3 | VARINT);
            write_varint(&mut self.0, value);
        }
        self
    }

    pub(crate) fn add_flag(self, number: u32, is: bool) -> ProtobufMessage {
        self.add_number(number, u64::from(is))
    }

    /// Adds a message, even if it is empty.
    #[allow(clippy::needless_pass_by_value, reason = "callers do not need the inner message afterwards")]
    pub(crate) fn add_message(self, number: u32, message: ProtobufMessage) -> ProtobufMessage {
        self.add_bytes(number, &message.0)
    }

    pub(crate) fn add_messages(
        self,
        number: u32,
        messages: impl IntoIterator<Item = ProtobufMessage>,
    ) -> ProtobufMessage {
        messages.into_iter().fold(self, |all, message| all.add_message(number, message))
    }

    fn add_bytes(mut self, number: u32, bytes: &[u8]) -> ProtobufMessage {
        write_varint(&mut self.0, u64::from(number) << 3 | BYTES);
        write_varint(&mut self.0, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }
}

fn write_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Value of a parsed field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProtobufValue<'a> {
    Number(u64),
    /// Bytes of a string or of an embedded message.
    Bytes(&'a [u8]),
    /// Value with a wire type that API v1 does not use.
    Other,
}

/// Iterates over the numbers and values of a message's fields, in the order of the message. A malformed field is
/// returned as `None`, and ends the iteration.
pub(crate) fn parse_fields(message: &[u8]) -> impl Iterator<Item = Option<(u64, ProtobufValue<'_>)>> {
    let mut rest = Some(message);
    std::iter::from_fn(move || {
        let from = rest.filter(|rest| !rest.is_empty())?;
        let read = parse_field(from);
        rest = read.map(|(_, _, after)| after);
        Some(read.map(|(number, value, _)| (number, value)))
    })
}

/// Returns all values of a string field; `None` if the message is malformed.
pub(crate) fn read_texts(message: &[u8], number: u64) -> Option<Vec<String>> {
    let fields: Option<Vec<_>> = parse_fields(message).collect();
    let texts = fields?.into_iter().filter_map(|(of, value)| match value {
        ProtobufValue::Bytes(bytes) if of == number => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    });
    Some(texts.collect())
}

fn parse_field(from: &[u8]) -> Option<(u64, ProtobufValue<'_>, &[u8])> {
    let (tag, rest) = read_varint(from)?;
    let number = Some(tag >> 3).filter(|number| *number > 0)?;
    let (value, rest) = match tag & 7 {
        VARINT => read_varint(rest).map(|(value, rest)| (ProtobufValue::Number(value), rest))?,
        FIXED64 => (ProtobufValue::Other, rest.get(8..)?),
        FIXED32 => (ProtobufValue::Other, rest.get(4..)?),
        BYTES => {
            let (length, rest) = read_varint(rest)?;
            let (bytes, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            (ProtobufValue::Bytes(bytes), rest)
        }
        _ => return None,
    };
    Some((number, value, rest))
}

/// Reads a varint of at most ten bytes, with a value of at most 64 bits.
fn read_varint(from: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (index, byte) in from.iter().take(10).enumerate() {
        if index == 9 && *byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, &from[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Examples from the specification of the format.
    #[test]
    fn encoding_matches_examples_of_the_specification() {
        assert_eq!(ProtobufMessage::default().add_number(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(ProtobufMessage::default().add_text(2, "testing").into_bytes(), b"\x12\x07testing");
        let inner = ProtobufMessage::default().add_number(1, 150);
        assert_eq!(ProtobufMessage::default().add_message(3, inner).into_bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        let nothing = ProtobufMessage::default().add_text(1, "").add_number(2, 0).add_flag(3, false);
        assert_eq!(nothing.clone().into_bytes(), b"");
        assert_eq!(
            ProtobufMessage::default().add_messages(4, [nothing.clone(), nothing]).into_bytes(),
            [0x22, 0, 0x22, 0]
        );
    }

    #[test]
    fn malformed_field_ends_the_message() {
        for broken in [
            &[0x08][..],
            &[0x08, 0x80],
            &[0x0a, 2, b'a'],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x00, 0x01],
            &[0x0b],
            &[0x0c],
            &[0x0d, 1, 2, 3],
            &[0x09, 1, 2, 3, 4, 5, 6, 7],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
        ] {
            assert_eq!(parse_fields(broken).collect::<Vec<_>>(), [None], "{broken:?}");
            assert_eq!(read_texts(broken, 1), None);
        }
        let others = [0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x12, 1, b'a'];
        assert_eq!(
            parse_fields(&others).collect::<Vec<_>>(),
            [Some((1, ProtobufValue::Other)), Some((1, ProtobufValue::Other)), Some((2, ProtobufValue::Bytes(b"a")))]
        );
        assert_eq!(read_texts(&others, 2), Some(vec!["a".to_owned()]));
    }

    proptest! {
        #[test]
        fn written_fields_are_read_back(written in prop::collection::vec((1_u32..1 << 29, any::<Option<u64>>(), "\\PC{0,40}"), 0..20)) {
            let mut message = ProtobufMessage::default();
            let mut expected = Vec::new();
            for (number, value, text) in &written {
                match value {
                    Some(value) => message = message.add_number(*number, *value),
                    None => message = message.add_text(*number, text),
                }
                match value {
                    Some(0) => {}
                    Some(value) => expected.push(Some((u64::from(*number), ProtobufValue::Number(*value)))),
                    None if text.is_empty() => {}
                    None => expected.push(Some((u64::from(*number), ProtobufValue::Bytes(text.as_bytes())))),
                }
            }
            let bytes = message.into_bytes();
            prop_assert_eq!(parse_fields(&bytes).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn parsing_arbitrary_bytes_ends(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let fields: Vec<_> = parse_fields(&bytes).collect();
            // The iteration ends, and only its last field can be malformed.
            prop_assert!(fields.len() <= bytes.len());
            prop_assert!(fields.iter().rev().skip(1).all(Option::is_some));
        }
    }
}
