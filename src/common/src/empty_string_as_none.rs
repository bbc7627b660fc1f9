//! Serialization of `Option` as a string, for `#[serde(with)]`. The empty string represents `None`.

use serde::{Deserialize, Deserializer, Serializer};

/// Serializes `None` as an empty string.
///
/// # Errors
/// Returns the error of the serializer.
pub fn serialize<T: AsRef<str>, S: Serializer>(text: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text.as_ref().map_or("", AsRef::as_ref))
}

/// Deserializes an empty string as `None`.
///
/// # Errors
/// Returns an error if the value is not a string.
pub fn deserialize<'de, T: From<String>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    String::deserialize(deserializer).map(|text| non_empty(text).map(T::from))
}

/// Returns the text, or `None` if it is empty.
pub fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Document {
        #[serde(default, with = "crate::empty_string_as_none")]
        text: Option<String>,
    }

    #[test]
    fn empty_text_and_none_are_converted() {
        for (json, text) in [(r#"{"text":""}"#, None), (r#"{"text":"a"}"#, Some("a".to_owned()))] {
            assert_eq!(serde_json::from_str::<Document>(json).unwrap(), Document { text: text.clone() });
            assert_eq!(serde_json::to_string(&Document { text }).unwrap(), json);
        }
        assert_eq!(serde_json::from_str::<Document>("{}").unwrap(), Document { text: None });
        assert!(serde_json::from_str::<Document>(r#"{"text":null}"#).is_err());
    }
}
