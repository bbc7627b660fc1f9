//! In documents an empty text says that there is nothing. In the program that is `None`: for `#[serde(with)]`.

use serde::{Deserialize, Deserializer, Serializer};

/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text.as_deref().unwrap_or_default())
}

/// # Errors
/// It is no text.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(some)
}

/// What is not empty.
pub fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Document {
        #[serde(default, with = "crate::empty")]
        text: Option<String>,
    }

    #[test]
    fn an_empty_text_is_none_and_none_an_empty_text() {
        for (json, text) in [(r#"{"text":""}"#, None), (r#"{"text":"a"}"#, Some("a".to_owned()))] {
            assert_eq!(serde_json::from_str::<Document>(json).unwrap(), Document { text: text.clone() });
            assert_eq!(serde_json::to_string(&Document { text }).unwrap(), json);
        }
        assert_eq!(serde_json::from_str::<Document>("{}").unwrap(), Document { text: None });
        assert!(serde_json::from_str::<Document>(r#"{"text":null}"#).is_err());
    }
}
