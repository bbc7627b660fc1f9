//! Entries about error codes on the pages of the manual. An entry begins with a heading and a line with the code in
//! bold, and ends at the next heading.

use common::error_code::ErrorCode;
use serde::Serialize;
use std::fmt;

macro_rules! pages {
    ($($name:literal),* $(,)?) => {
        /// Names and contents of the pages that contain entries.
        pub(crate) const PAGES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../../../../docs/", $name)))),*];
    };
}

pages![
    "messages.md",
    "messages-service.md",
    "messages-commands.md",
    "messages-ramdisk.md",
    "messages-plan.md",
    "messages-install.md",
    "refusals-disks.md",
    "refusals.md",
    "codes-plan.md",
    "codes-allocation.md",
    "codes-install.md",
    "codes-image.md",
    "codes-control.md",
    "codes-migration.md",
    "codes-server.md",
];

/// Entry of a code in the manual.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ManualEntry {
    pub code: ErrorCode,
    pub title: &'static str,
    /// File name of the page in `docs/`.
    pub page: &'static str,
    /// Meaning, causes and commands, in Markdown.
    pub text: &'static str,
}

impl ManualEntry {
    pub(crate) fn find(code: ErrorCode) -> Option<ManualEntry> {
        PAGES.iter().flat_map(|(page, text)| read_entries(page, text)).find(|entry| entry.code == code)
    }
}

/// Returns the entries of a page, in their order.
pub(crate) fn read_entries(page: &'static str, text: &'static str) -> Vec<ManualEntry> {
    text.split("\n## ").skip(1).filter_map(|section| read_entry(page, section)).collect()
}

fn read_entry(page: &'static str, section: &'static str) -> Option<ManualEntry> {
    let (title, rest) = section.split_once("\n\n**")?;
    let (code, text) = rest.split_once("**\n")?;
    let code = ErrorCode::parse(code).filter(|_| !title.contains('\n'))?;
    Some(ManualEntry { code, title, page, text: text.trim() })
}

/// Formats the entry for a terminal, without emphasis and without the targets of links.
impl fmt::Display for ManualEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n\n", self.code, self.title)?;
        let mut parts = self.text.split('[');
        write_plain(f, parts.next().unwrap_or_default())?;
        for part in parts {
            match part.split_once("](").and_then(|(name, rest)| Some((name, rest.split_once(')')?.1))) {
                Some((name, rest)) if !name.contains(']') => {
                    write_plain(f, name)?;
                    write_plain(f, rest)?;
                }
                _ => write!(f, "[{part}")?,
            }
        }
        writeln!(f, "\n\nManual: docs/{}", self.page)
    }
}

fn write_plain(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str(&text.replace("**", ""))
}
