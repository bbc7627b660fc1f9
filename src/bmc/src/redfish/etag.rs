//! ETags of resources, in the forms that controllers accept in the header `If-Match`.

/// Returns the values of `If-Match` to try for a resource, in this order. First come the ETags in the header and in
/// the document, each as received and in its strong form. Then `None` omits the header, because some controllers
/// reject every value. The last value is `*`, for controllers that require the header but provide no ETag.
pub(super) fn list_attempts(header: Option<&str>, document: Option<&str>) -> Vec<Option<String>> {
    let mut attempts = Vec::new();
    for etag in [header, document].into_iter().flatten().filter(|etag| is_header_value(etag)) {
        for form in [etag.to_owned(), to_strong_form(etag)] {
            if !attempts.contains(&Some(form.clone())) {
                attempts.push(Some(form));
            }
        }
    }
    attempts.extend([None, Some("*".to_owned())]);
    attempts
}

/// Returns the ETag in its strong form: without `W/`, doubled quotation marks, and the suffix of compressed responses.
fn to_strong_form(etag: &str) -> String {
    let opaque = etag.trim().trim_start_matches("W/").trim_matches('"');
    format!("\"{}\"", opaque.trim_end_matches("-gzip"))
}

/// Returns whether the ETag can be sent in a header. An ETag in a document may contain any characters.
fn is_header_value(etag: &str) -> bool {
    !etag.is_empty() && etag.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_tried_as_received_then_strong_then_without_a_condition() {
        for (header, document, expected) in [
            (None, None, &["-", "*"][..]),
            (Some("\"7\""), None, &["\"7\"", "-", "*"]),
            (None, Some("\"7\""), &["\"7\"", "-", "*"]),
            (Some("\"7\""), Some("\"7\""), &["\"7\"", "-", "*"]),
            (Some("W/\"7\""), None, &["W/\"7\"", "\"7\"", "-", "*"]),
            (Some("\"\"7\"\""), Some("\"7\""), &["\"\"7\"\"", "\"7\"", "-", "*"]),
            (Some("\"7-gzip\""), None, &["\"7-gzip\"", "\"7\"", "-", "*"]),
            (Some("7"), None, &["7", "\"7\"", "-", "*"]),
            (Some("\"8\""), Some("W/\"7\""), &["\"8\"", "W/\"7\"", "\"7\"", "-", "*"]),
            (None, Some("7\r\nHost: other"), &["-", "*"]),
            (Some(""), Some("ü"), &["-", "*"]),
        ] {
            let attempts = list_attempts(header, document);
            let attempts: Vec<&str> = attempts.iter().map(|one| one.as_deref().unwrap_or("-")).collect();
            assert_eq!(attempts, expected, "{header:?} {document:?}");
        }
    }
}
