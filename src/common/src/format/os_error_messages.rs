//! Error messages of the operating system.

use std::borrow::Cow;

/// Text before the number that Rust appends to an error message of the operating system.
const PREFIX: &str = " (os error ";

/// Removes the numbers that Rust appends to error messages of the operating system:
/// `No such file or directory (os error 2)` becomes `No such file or directory`.
pub fn without_os_error_numbers(text: &str) -> Cow<'_, str> {
    if !text.contains(PREFIX) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(PREFIX);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.parse::<i32>().is_ok() => shown.push_str(rest),
            _ => {
                shown.push_str(PREFIX);
                shown.push_str(part);
            }
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_errors_are_removed() {
        for (text, expected) in [
            ("a: No such file or directory (os error 2)", "a: No such file or directory"),
            ("a: x (os error 2): b: y (os error -17); z", "a: x: b: y; z"),
            ("a (os error two) (os error 5", "a (os error two) (os error 5"),
            ("(os error 2)", "(os error 2)"),
            ("", ""),
        ] {
            assert_eq!(without_os_error_numbers(text), expected);
        }
        let error = std::io::Error::from_raw_os_error(2).to_string();
        assert_eq!(without_os_error_numbers(&error), "No such file or directory");
    }
}
