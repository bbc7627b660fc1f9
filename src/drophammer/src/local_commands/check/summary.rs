//! Last line of the output of `drophammer check`: the number of files and their types.

use super::{CheckReport, LayoutReport};
use common::format::format_count;
use std::collections::BTreeSet;
use std::path::Path;

impl CheckReport {
    /// Returns the summary line, for example `300 files are valid: 12 layouts, 280 machines, 8 images; no two layouts
    /// match the same size and image`, or `2 of 4 files are not valid; checked: 4 machines`.
    pub(super) fn summarize(&self) -> String {
        let (all, invalid) = self.list_files();
        let count = format_count(all.len(), "file", "files");
        let verdict = match (invalid.len(), all.len()) {
            (0, 1) => format!("{count} is valid"),
            (0, _) => format!("{count} are valid"),
            (1, 1) => format!("{count} is not valid"),
            (1, _) => format!("1 of {count} is not valid"),
            (invalid, _) => format!("{invalid} of {count} are not valid"),
        };
        let remarks = self.list_remarks(!invalid.is_empty());
        let remarks: String = remarks.into_iter().map(|remark| format!("; {remark}")).collect();
        let types = self.describe_types();
        let checked = if invalid.is_empty() { format!(": {types}") } else { format!("; checked: {types}") };
        format!("{verdict}{checked}{remarks}")
    }

    /// Returns two sets of paths: those of all files, and those of the files with problems.
    fn list_files(&self) -> (BTreeSet<&Path>, BTreeSet<&Path>) {
        let layouts = self.layouts.iter().map(|one| (one.file.as_path(), one.valid));
        let checked = || layouts.clone().chain(self.documents().map(|one| (one.file.as_path(), one.valid)));
        let all = checked().map(|(file, _)| file).collect();
        let invalid = checked().filter(|(_, valid)| !valid).map(|(file, _)| file).collect();
        (all, invalid)
    }

    /// Returns the numbers of documents by type, such as `3 layouts, 1 machine`.
    fn describe_types(&self) -> String {
        let documents = self.documents.iter().map(|(document_type, documents)| {
            let [one, many] = document_type.nouns();
            (documents.len(), one, many)
        });
        let all = std::iter::once((self.layouts.len(), "layout", "layouts")).chain(documents);
        let counts = all.filter(|(count, ..)| *count > 0).map(|(count, one, many)| format_count(count, one, many));
        counts.collect::<Vec<_>>().join(", ")
    }

    /// Returns remarks about the set of layouts, and about notes that `--strict` treats as problems.
    fn list_remarks(&self, has_invalid_files: bool) -> Vec<String> {
        let mut remarks = Vec::new();
        if has_invalid_files && self.layouts.iter().any(|one| !one.valid) && self.layouts.len() > 1 {
            remarks.push("invalid layouts are not compared with the other layouts".to_owned());
        }
        if self.layouts.len() > 1
            && self.layouts.iter().all(|one| one.valid)
            && self.duplicates.is_empty()
            && self.collisions.is_empty()
        {
            remarks.push("no two layouts match the same size and image".to_owned());
        }
        let of_layouts = self.layouts.iter().map(|one: &LayoutReport| one.notes.len());
        let notes: usize = of_layouts.chain(self.documents().map(|one| one.notes.len())).sum();
        if self.is_strict && notes > 0 {
            let notes = format_count(notes, "note", "notes");
            remarks.push(format!("{notes}, which --strict treats as problems"));
        }
        let more = [
            (self.duplicates.len(), "duplicate id", "duplicate ids"),
            (self.collisions.len(), "collision", "collisions"),
        ];
        remarks.extend(
            more.into_iter().filter(|(count, ..)| *count > 0).map(|(count, one, many)| format_count(count, one, many)),
        );
        remarks
    }
}
