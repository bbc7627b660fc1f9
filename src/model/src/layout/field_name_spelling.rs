//! Spelling of names in documents: naming styles, and suggestions for misspelt names.

/// Returns a name in lower case without separators. Names in different naming styles, such as `mount_options` and
/// `mountOptions`, are then equal.
pub(super) fn normalize_name(name: &str) -> String {
    name.replace(['_', '-', ' '], "").to_lowercase()
}

/// Returns the name that a misspelt name most likely means; `None` if no known spelling is similar. `known` contains
/// pairs of a known spelling and the name that this spelling means.
pub(super) fn find_nearest<T>(name: &str, known: impl IntoIterator<Item = (&'static str, T)>) -> Option<T> {
    let name = normalize_name(name);
    if name.len() > 40 {
        return None;
    }
    known
        .into_iter()
        .map(|(spelling, meaning)| {
            (strsim::damerau_levenshtein(&name, &normalize_name(spelling)), spelling.len(), meaning)
        })
        .filter(|(distance, length, _)| *distance <= (length / 3).clamp(1, 3))
        .min_by_key(|(distance, ..)| *distance)
        .map(|(.., meaning)| meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_name_suggests_the_nearest_one() {
        let known = [
            ("createoptions", "createoptions"),
            ("options", "createoptions"),
            ("device", "device"),
            ("path", "path"),
            ("wwn_with_extension", "wwn"),
        ];
        for (name, meant) in [
            ("create_options", Some("createoptions")),
            ("createOptions", Some("createoptions")),
            ("optoins", Some("createoptions")),
            ("devcie", Some("device")),
            ("Path", Some("path")),
            ("pat", Some("path")),
            ("bath", Some("path")),
            ("wwn-with-extension", Some("wwn")),
            ("mountpoint", None),
            ("", None),
            ("é", None),
        ] {
            assert_eq!(find_nearest(name, known), meant, "{name}");
        }
    }
}
