//! Query of the list of machines: filter, phase and sort column, as specified in the URL of the page.

use super::machine_list::MachineRow;
use super::submitted_forms::SubmittedForm;
use api::display_phase::{self, ObjectFate};
use common::format::natural_sort_key;
use std::cmp::{Ordering, Reverse};

/// Sort order of the list: the column whose values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SortColumn {
    Name,
    Phase,
    Image,
    Progress,
    Seen,
}

const SORT_COLUMNS: [SortColumn; 5] =
    [SortColumn::Name, SortColumn::Phase, SortColumn::Image, SortColumn::Progress, SortColumn::Seen];

impl SortColumn {
    /// Returns the value of `sort` in the URL.
    fn word(self) -> &'static str {
        match self {
            SortColumn::Name => "name",
            SortColumn::Phase => "phase",
            SortColumn::Image => "image",
            SortColumn::Progress => "progress",
            SortColumn::Seen => "seen",
        }
    }

    /// Compares two rows by this column, in ascending order. In this order, `Phase` begins with failed machines,
    /// `Progress` with the most advanced ones, and `Seen` with those seen most recently. Rows without a value come
    /// last.
    fn compare(self, one: &MachineRow, other: &MachineRow) -> Ordering {
        match self {
            SortColumn::Name => natural_sort_key(one.name()).cmp(&natural_sort_key(other.name())),
            SortColumn::Phase => phase_order(one).cmp(&phase_order(other)),
            SortColumn::Image => image_order(one).cmp(&image_order(other)),
            SortColumn::Progress => Reverse(progress_order(one)).cmp(&Reverse(progress_order(other))),
            SortColumn::Seen => Reverse(&one.listed.last_seen).cmp(&Reverse(&other.listed.last_seen)),
        }
    }
}

fn phase_order(row: &MachineRow) -> (u8, &str) {
    let order = match row.phase.kind {
        ObjectFate::Bad => 0,
        ObjectFate::Busy => 1,
        ObjectFate::Idle => 2,
        ObjectFate::Good => 3,
    };
    (order, row.phase.word)
}

fn image_order(row: &MachineRow) -> (bool, Vec<(usize, &[u8])>) {
    let image = row.listed.image.as_deref().or(row.wanted.as_deref()).unwrap_or_default();
    (image.is_empty(), natural_sort_key(image))
}

fn progress_order(row: &MachineRow) -> Option<u8> {
    row.moved.as_ref()?.percent
}

/// Machines that the page lists, and their order.
#[derive(Debug, Clone)]
pub(crate) struct MachineListQuery {
    /// Words separated by white space. The list contains only machines that match all of these words.
    pub text: String,
    /// Phase of the machines; empty for all phases.
    pub phase: String,
    column: SortColumn,
    is_descending: bool,
}

impl MachineListQuery {
    /// Parses the query string of a URL. An unknown column is ignored.
    pub(crate) fn parse(query: Option<&str>) -> MachineListQuery {
        let fields = SubmittedForm::parse_query(query);
        let sort = fields.get("sort");
        let word = sort.strip_prefix('-').unwrap_or(sort);
        let column = SORT_COLUMNS.into_iter().find(|column| column.word() == word);
        MachineListQuery {
            text: fields.get("q").trim().to_owned(),
            phase: display_phase::current_word(fields.get("phase")).to_owned(),
            column: column.unwrap_or(SortColumn::Name),
            is_descending: column.is_some() && sort.starts_with('-'),
        }
    }

    /// Returns whether a row contains all words of the filter. Upper and lower case are equivalent.
    pub(crate) fn matches_text(&self, row: &MachineRow) -> bool {
        let has = row.filter_text();
        self.text.to_lowercase().split_whitespace().all(|word| has.contains(word))
    }

    /// Returns whether the list contains the machine of the row.
    pub(crate) fn matches(&self, row: &MachineRow) -> bool {
        (self.phase.is_empty() || self.phase == row.phase.word) && self.matches_text(row)
    }

    /// Sorts rows by the column, and rows with equal values by name.
    pub(crate) fn sort_rows(&self, rows: &mut [MachineRow]) {
        rows.sort_by(|one, other| SortColumn::Name.compare(one, other));
        rows.sort_by(|one, other| match self.is_descending {
            true => self.column.compare(other, one),
            false => self.column.compare(one, other),
        });
    }

    /// Returns the value of `sort` in the URL; empty for the default order.
    pub(crate) fn sort_word(&self) -> String {
        match (self.column, self.is_descending) {
            (SortColumn::Name, false) => String::new(),
            (column, false) => column.word().to_owned(),
            (column, true) => format!("-{}", column.word()),
        }
    }

    /// Returns the value of `aria-sort` of a column.
    pub(crate) fn aria_sort(&self, column: SortColumn) -> Option<&'static str> {
        (column == self.column).then_some(if self.is_descending { "descending" } else { "ascending" })
    }

    /// Returns the URL of the same list sorted by the column. If the list is already sorted by this column, the order
    /// is reversed.
    pub(crate) fn url_sorted_by(&self, column: SortColumn) -> String {
        let is_descending = column == self.column && !self.is_descending;
        MachineListQuery { column, is_descending, ..self.clone() }.url()
    }

    /// Returns the URL of the same list, limited to machines in this phase; an empty `phase` selects all phases.
    pub(crate) fn url_with_phase(&self, phase: &str) -> String {
        MachineListQuery { phase: phase.to_owned(), ..self.clone() }.url()
    }

    fn url(&self) -> String {
        let sort = self.sort_word();
        let fields = [("q", &self.text), ("phase", &self.phase), ("sort", &sort)];
        let fields: Vec<_> = fields.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        match serde_urlencoded::to_string(fields) {
            Ok(query) if !query.is_empty() => format!("/?{query}"),
            _ => "/".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::display_phase::DisplayPhase;
    use api::operator_api::MachineSummary;

    fn row(name: &str, phase: (&'static str, ObjectFate), image: Option<&str>, seen: Option<&str>) -> MachineRow {
        let listed = MachineSummary {
            name: name.to_owned(),
            image: image.map(str::to_owned),
            last_seen: seen.map(str::to_owned),
            ..MachineSummary::default()
        };
        let phase = DisplayPhase { word: phase.0, kind: phase.1 };
        let identifiers = vec!["52:54:00:AA:00:01".to_owned(), "S45NNE0M".to_owned()];
        MachineRow {
            listed,
            wanted: Some("debian-13".to_owned()),
            layout: None,
            phase,
            moved: None,
            moving: None,
            identifiers,
        }
    }

    fn rows() -> Vec<MachineRow> {
        vec![
            row("m10", ("installed", ObjectFate::Good), Some("debian-12"), Some("2026-11-28T10:00:00Z")),
            row("m9", ("failed", ObjectFate::Bad), None, None),
            row("m1", ("installing", ObjectFate::Busy), Some("debian-9"), Some("2026-11-28T11:00:00Z")),
        ]
    }

    #[test]
    fn rows_are_sorted_by_each_column_in_both_directions() {
        for (sort, expected) in [
            ("", ["m1", "m9", "m10"]),
            ("sort=name", ["m1", "m9", "m10"]),
            ("sort=-name", ["m10", "m9", "m1"]),
            ("sort=phase", ["m9", "m1", "m10"]),
            ("sort=-phase", ["m10", "m1", "m9"]),
            ("sort=image", ["m1", "m10", "m9"]),
            ("sort=seen", ["m1", "m10", "m9"]),
            ("sort=-seen", ["m9", "m10", "m1"]),
            ("sort=progress", ["m1", "m9", "m10"]),
            ("sort=-unknown", ["m1", "m9", "m10"]),
        ] {
            let mut rows = rows();
            MachineListQuery::parse(Some(sort)).sort_rows(&mut rows);
            let names: Vec<&str> = rows.iter().map(MachineRow::name).collect();
            assert_eq!(names, expected, "{sort}");
        }
    }

    #[test]
    fn the_filter_requires_all_words() {
        let row = row("m1", ("failed", ObjectFate::Bad), Some("debian-12"), None);
        for (query, is_shown) in [
            ("", true),
            ("q=52:54:00:aa", true),
            ("q=s45nne+DEBIAN-12", true),
            ("q=debian-13+failed", true),
            ("q=debian-12+other", false),
            ("q=m1&phase=failed", true),
            ("q=m1&phase=installed", false),
            ("phase=fail", false),
        ] {
            assert_eq!(MachineListQuery::parse(Some(query)).matches(&row), is_shown, "{query}");
        }
    }

    #[test]
    fn sort_and_phase_links_preserve_other_fields() {
        let query = MachineListQuery::parse(Some("q=a+%26b&phase=failed&sort=seen"));
        assert_eq!(query.url_sorted_by(SortColumn::Seen), "/?q=a+%26b&phase=failed&sort=-seen");
        assert_eq!(query.url_sorted_by(SortColumn::Name), "/?q=a+%26b&phase=failed");
        assert_eq!(query.url_with_phase(""), "/?q=a+%26b&sort=seen");
        assert_eq!(query.aria_sort(SortColumn::Seen), Some("ascending"));
        assert_eq!(query.aria_sort(SortColumn::Name), None);
        let plain = MachineListQuery::parse(None);
        assert_eq!((plain.url_with_phase("").as_str(), plain.sort_word().as_str()), ("/", ""));
        assert_eq!(plain.url_sorted_by(SortColumn::Name), "/?sort=-name");
    }
}
