//! Which words are traits: those that everybody knows, and an operator's own with `CUSTOM_` in front.

/// Of os-traits 3.9.0, one a line, sorted.
static STANDARD: &str = include_str!("standard-traits.txt");
const OWN: &str = "CUSTOM_";
/// As placement and Ironic have it.
const LONGEST: usize = 255;

/// Why this is no trait.
pub fn wrong(name: &str) -> Option<String> {
    let is_own = name.strip_prefix(OWN).is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    });
    if name.len() > LONGEST {
        return Some(format!("a trait has {LONGEST} characters at most, this has {}", name.len()));
    }
    let is_standard = || STANDARD.lines().any(|known| known == name);
    (!is_own && !is_standard()).then(|| {
        format!(
            "{name:?} is no trait: one of your own is {OWN} with capital letters, digits and _ after it; others are those of os-traits"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_traits_and_standard_ones() {
        for good in ["CUSTOM_A", "CUSTOM_1_B", "CUSTOM__", "HW_CPU_X86_VMX", &format!("CUSTOM_{}", "A".repeat(248))] {
            assert_eq!(wrong(good), None, "{good}");
        }
        let long = format!("CUSTOM_{}", "A".repeat(249));
        for bad in
            ["", "CUSTOM_", "CUSTOM_a", "custom_A", "CUSTOM_A-B", "CUSTOM_A\n", "CUSTOM_Ä", "RAID", "HW_CPU", &long]
        {
            assert!(wrong(bad).is_some(), "{bad}");
        }
    }
}
