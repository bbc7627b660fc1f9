//! Advice about hints that are valid but cannot match any disk.

use super::expression::{FlagCondition, HintCondition, SizeCondition, TextCondition};
use super::placeholder_detection::{self, exact_values};
use super::{ComparisonOperator, DiskHints, MMC};
use crate::layout::advice::{is_kernel_disk, suggest_disk};

/// Names of transports in inventories.
const TRANSPORTS: [&str; 9] = ["sata", "sas", "nvme", "virtio", "usb", "scsi", "fc", "iscsi", MMC];
const WWN_STARTS: [&str; 5] = ["0x", "eui.", "nvme.", "t10.", "uuid."];
/// Hints that no disk matches if they are combined with `tran: nvme`, each with the reason.
const CONTRADICTORY_NVME_HINTS: [(&str, &str); 3] = [
    ("vendor", "no disk matches both this hint and `tran: nvme`, because NVMe disks have no vendor"),
    ("hctl", "no disk matches both this hint and `tran: nvme`, because NVMe disks have no SCSI address"),
    ("rotational", "no disk matches both this hint and `tran: nvme`, because NVMe disks do not rotate"),
];
/// Size in GiB (100 TiB) that exceeds every existing disk. A size that was written in MiB by mistake usually exceeds
/// this number.
const HUGE_GIB: u64 = 100 << 10;

/// Returns advice about hints, each with the name of the hint. Invalid hints are ignored.
pub(crate) fn collect_doubts(hints: &DiskHints) -> Vec<(String, String)> {
    let doubt = |(hint, text): (&String, &String)| {
        let message = match HintCondition::parse(hint, text).ok()? {
            HintCondition::Size(number) => check_size(&number?)?,
            HintCondition::Text(word) => check_pattern(&word)
                .or_else(|| exact_values(&word).into_iter().find_map(|value| check_text(hint, value)))?,
            HintCondition::Flag(_) => return None,
        };
        Some((hint.clone(), message))
    };
    let doubts = hints.iter().filter_map(doubt);
    let contradictions =
        CONTRADICTORY_NVME_HINTS.iter().filter(|(hint, _)| is_nvme(hints) && requires_other_than_nvme(hints, hint));
    doubts.chain(contradictions.map(|(hint, message)| ((*hint).to_owned(), (*message).to_owned()))).collect()
}

fn is_nvme(hints: &DiskHints) -> bool {
    let condition = hints.get("tran").and_then(|text| HintCondition::parse("tran", text).ok());
    matches!(condition, Some(HintCondition::Text(word)) if exact_values(&word) == ["nvme"])
}

/// Returns whether the hint is one of [`CONTRADICTORY_NVME_HINTS`] with a value that excludes NVMe disks.
fn requires_other_than_nvme(hints: &DiskHints, hint: &str) -> bool {
    match hints.get(hint).and_then(|text| HintCondition::parse(hint, text).ok()) {
        Some(HintCondition::Flag(FlagCondition(rotates))) => rotates,
        Some(HintCondition::Text(_)) => true,
        _ => false,
    }
}

/// Returns advice for a value with `*` or `?`, which hints do not expand as patterns.
fn check_pattern(word: &TextCondition) -> Option<String> {
    let mut values = match word {
        TextCondition::Contains(words) => words.iter().map(String::as_str).collect(),
        _ => exact_values(word),
    }
    .into_iter();
    let value = values.find(|value| value.starts_with('*') || value.ends_with('*') || value.contains(['?', '[']))?;
    let piece = value.split(['*', '?', '[', ']']).max_by_key(|piece| piece.len()).unwrap_or_default().trim();
    let remedy = if piece.is_empty() { String::new() } else { format!("; write \"<in> {piece}\"") };
    Some(format!("{value} is a pattern, but hints do not support patterns: no disk matches{remedy}"))
}

fn check_size(number: &SizeCondition) -> Option<String> {
    let least = match number {
        SizeCondition::Compared(
            ComparisonOperator::Less | ComparisonOperator::AtMost | ComparisonOperator::NotEqual,
            _,
        ) => return None,
        SizeCondition::Compared(_, gib) | SizeCondition::Within { low: gib, .. } => *gib,
        SizeCondition::OneOf(all) => all.iter().copied().min()?,
    };
    (least >= HUGE_GIB).then(|| format!("no existing disk has {least} GiB: sizes in hints are in GiB"))
}

fn check_text(hint: &str, value: &str) -> Option<String> {
    if let Some(placeholder) = placeholder_detection::describe_if_placeholder(hint, value) {
        return Some(placeholder);
    }
    match hint {
        "name" if value.starts_with("/dev/disk/by-path/") => {
            Some(format!("{value} is not a kernel name of a disk: use the hint by_path for this link"))
        }
        "name" if value.starts_with("/dev/disk/by-id/") => Some(format!(
            "{value} is not a kernel name of a disk: use the hints wwn or serial, or write the link as device of the disk, without hints"
        )),
        "name" => {
            let name = value.strip_prefix("/dev/").unwrap_or(value);
            let likely = suggest_disk(&format!("/dev/{name}"));
            let likely = likely.map(|likely| format!("; did you mean {likely}?")).unwrap_or_default();
            (!is_kernel_disk(name)).then(|| format!("{value} is not a kernel name of a disk{likely}"))
        }
        "tran" => (!TRANSPORTS.contains(&value)).then(|| {
            format!("{value} is not a transport; supported: {transports}", transports = TRANSPORTS.join(", "))
        }),
        "hctl" => {
            let numbers = value.split(':').filter(|part| part.parse::<u64>().is_ok()).count();
            (numbers != 4 || value.split(':').count() != 4)
                .then(|| format!("{value} is not a SCSI address: write four numbers, such as 0:0:1:0"))
        }
        "by_path" => (!value.starts_with("/dev/disk/by-path/"))
            .then(|| format!("{value} is not a udev link: it must begin with /dev/disk/by-path/")),
        "wwn" | "wwn_with_extension" => (!WWN_STARTS.iter().any(|start| value.starts_with(start))).then(|| {
            format!("{value} is not a WWN: a WWN begins with one of {prefixes}", prefixes = WWN_STARTS.join(", "))
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_about_hints_that_match_no_disk() {
        for (hint, text, words) in [
            ("name", "/dev/nvmne0n1", "did you mean /dev/nvme0n1?"),
            ("name", "sda", ""),
            ("name", "<in> nvm", ""),
            ("name", "/dev/disk/by-path/pci-0000:00:17.0-ata-1", "use the hint by_path"),
            ("name", "/dev/disk/by-id/wwn-0x5000c500a1b2c3d7", "use the hints wwn or serial"),
            ("name", "nvme*", "write \"<in> nvme\""),
            ("model", "*EVO*", "write \"<in> evo\""),
            ("model", "Samsung SSD 870 EVO*", "write \"<in> samsung ssd 870 evo\""),
            ("model", "<or> A <or> B?00", "is a pattern"),
            ("model", "<in> *evo", "is a pattern"),
            ("model", "MZ7*LH", ""),
            ("serial", "*", "is a pattern"),
            ("tran", "mmc", ""),
            ("tran", "<or> sata <or> pata", "pata is not a transport"),
            ("tran", "SATA", ""),
            ("hctl", "0:0:1", "four numbers"),
            ("hctl", "0:0:1:0", ""),
            ("by_path", "pci-0000:00:1f.2-ata-1", "must begin with /dev/disk/by-path/"),
            ("wwn", "5000c500a1b2c3d7", "begins with one of"),
            ("wwn", "0x5000c500a1b2c3d7", ""),
            ("size", ">= 480000", "sizes in hints are in GiB"),
            ("size", "< 480000", ""),
            ("size", "smallest", ""),
            ("size", "16 GB", ""),
            ("rotational", "true", ""),
            ("serial", "anything", ""),
            ("serial", "0000000000", "is a placeholder"),
            ("serial", "s== None", "is a placeholder"),
            ("serial", "<or> S1 <or> To be filled by O.E.M.", "is a placeholder"),
            ("serial", "1234", ""),
            ("serial", "<in> 0000", ""),
            ("wwn", "0x0000000000000000", "is a placeholder"),
            ("wwn_with_extension", "eui.0000000000000000", "is a placeholder"),
        ] {
            let hints = DiskHints::from([(hint.to_owned(), text.to_owned())]);
            let found = collect_doubts(&hints);
            assert_eq!(found.len(), usize::from(!words.is_empty()), "{hint} {text}: {found:?}");
            assert!(found.iter().all(|(of, message)| of == hint && message.contains(words)), "{found:?}");
        }
    }

    #[test]
    fn warns_about_hints_that_contradict_tran_nvme() {
        for (tran, hint, text, expected) in [
            ("nvme", "vendor", "Crucial", true),
            ("nvme", "hctl", "0:0:0:0", true),
            ("nvme", "rotational", "true", true),
            ("nvme", "rotational", "false", false),
            ("nvme", "model", "CT2000", false),
            ("<or> nvme <or> sata", "vendor", "ATA", false),
            ("sata", "vendor", "ATA", false),
        ] {
            let hints = DiskHints::from([("tran", tran), (hint, text)].map(|(hint, text)| (hint.into(), text.into())));
            assert_eq!(collect_doubts(&hints).len(), usize::from(expected), "{hint} {text}");
        }
    }
}
