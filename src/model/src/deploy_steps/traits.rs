//! Validation of traits, which are either standard traits or custom traits with the prefix `CUSTOM_`.

/// Standard traits of os-traits 3.9.0, one per line, sorted.
static STANDARD: &str = include_str!("standard-traits.txt");
const CUSTOM_TRAIT_PREFIX: &str = "CUSTOM_";
/// Maximum length of a trait in OpenStack Placement and Ironic.
const MAXIMUM_TRAIT_LENGTH: usize = 255;

/// Returns the reason why a name is not a valid trait; `None` if it is valid.
pub fn check_trait(name: &str) -> Option<String> {
    let is_own = name.strip_prefix(CUSTOM_TRAIT_PREFIX).is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    });
    if name.len() > MAXIMUM_TRAIT_LENGTH {
        return Some(format!(
            "a trait can have at most {MAXIMUM_TRAIT_LENGTH} characters, found {length}",
            length = name.len()
        ));
    }
    let is_standard = || STANDARD.lines().any(|known| known == name);
    (!is_own && !is_standard()).then(|| {
        format!("{name:?} is not a trait: use one of os-traits, or {CUSTOM_TRAIT_PREFIX} followed by capital letters, digits and _")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_custom_and_standard_traits() {
        for good in ["CUSTOM_A", "CUSTOM_1_B", "CUSTOM__", "HW_CPU_X86_VMX", &format!("CUSTOM_{}", "A".repeat(248))] {
            assert_eq!(check_trait(good), None, "{good}");
        }
        let long = format!("CUSTOM_{}", "A".repeat(249));
        for bad in
            ["", "CUSTOM_", "CUSTOM_a", "custom_A", "CUSTOM_A-B", "CUSTOM_A\n", "CUSTOM_Ä", "RAID", "HW_CPU", &long]
        {
            assert!(check_trait(bad).is_some(), "{bad}");
        }
    }
}
