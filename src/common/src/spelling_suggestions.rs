//! Suggestions for misspelled words.

/// Returns the known word that is most similar to a misspelled word; `None` if no known word is similar enough. If
/// several known words are equally similar, returns the last of them.
pub fn find_similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let scored = known.into_iter().map(|name| (strsim::jaro_winkler(&word, &name.to_lowercase()), name));
    let best = scored.max_by(|one, other| one.0.total_cmp(&other.0));
    best.filter(|(score, _)| *score > 0.8).map(|(_, name)| name)
}

/// Returns the known word with the fewest differences from a mistyped word; `None` if all known words differ in more
/// than a third of their letters. An omitted, added, replaced or transposed letter is one difference.
pub fn find_mistyped<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let distances = known.into_iter().map(|name| (strsim::damerau_levenshtein(&word, &name.to_lowercase()), name));
    let near = distances.filter(|(distance, name)| *distance <= name.len() / 3);
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mistyped_word_is_suggested() {
        let known = ["image", "image-worker", "os", "site", "-"];
        for (word, suggested) in [
            ("imgae", Some("image")),
            ("IMAGES", Some("image")),
            ("so", None),
            ("siet", Some("site")),
            ("nonsense", None),
            ("", None),
        ] {
            assert_eq!(find_mistyped(word, known), suggested, "{word}");
        }
    }

    #[test]
    fn only_a_similar_word_is_suggested() {
        let known = ["hostname", "image", "CUSTOM_RAID"];
        assert_eq!(find_similar("hostnam", known), Some("hostname"));
        assert_eq!(find_similar("custom_raio", known), Some("CUSTOM_RAID"));
        assert_eq!(find_similar("zzz", known), None);
        assert_eq!(find_similar("image", []), None);
    }
}
