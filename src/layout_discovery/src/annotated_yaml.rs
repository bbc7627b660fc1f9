//! Output of a discovered layout as YAML with comments.

use crate::{DiscoveredLayout, ReinstallAssessment};
use common::format::terminal_escaping::escape_line;
use model::layout::{DiskSpec, FilesystemFormat, FilesystemSpec, GroupPreservation, Layout, canonical_yaml};

/// Formats the layout as YAML. Comments contain the assessment, the notes, and the reason for each entry.
pub fn format_layout(found: &DiscoveredLayout, assessment: &ReinstallAssessment) -> String {
    let mut text = String::from("# Layout of an existing machine, written by `drophammer layout from-machine`.\n");
    push_comment(&mut text, "", &assessment.to_string());
    for (heading, items) in
        [("The system, which a reinstall renews:", &found.system), ("Data, which a reinstall preserves:", &found.data)]
    {
        push_comment(&mut text, "", heading);
        items.iter().for_each(|item| push_comment(&mut text, "  ", item));
    }
    if !found.notes.is_empty() {
        push_comment(&mut text, "", "Objects that this layout does not describe, or that you must check:");
        found.notes.iter().for_each(|note| push_comment(&mut text, "  ", &note.text));
    }
    let comments = EntryComments::new(&found.layout);
    let (mut section, mut index) = ("", 0);
    let yaml = canonical_yaml(&found.layout);
    for line in yaml.lines() {
        if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with(' ')) {
            (section, index) = (name, 0);
        } else if line.starts_with("  - ") {
            if let Some(comment) = comments.find(section, index) {
                text += "  ";
                push_comment(&mut text, "", comment);
            }
            index += 1;
        }
        text += line;
        text.push('\n');
    }
    text
}

fn push_comment(text: &mut String, indent: &str, comment: &str) {
    *text += &format!("# {indent}{}\n", escape_line(&comment.replace('\n', " ")));
}

/// Comments on the entries of each section.
struct EntryComments {
    disks: Vec<&'static str>,
    arrays: Vec<&'static str>,
    groups: Vec<&'static str>,
    volumes: Vec<&'static str>,
    filesystems: Vec<&'static str>,
}

impl EntryComments {
    fn new(layout: &Layout) -> EntryComments {
        let mark = |preserve: bool| if preserve { "data: preserved" } else { "" };
        EntryComments {
            disks: layout.disks.iter().map(|disk| describe_disk(layout, disk)).collect(),
            arrays: layout.raid.iter().map(|array| mark(array.preserve)).collect(),
            groups: layout.volumegroups.iter().map(|group| describe_group(group.preserve)).collect(),
            volumes: layout.logicalvolumes.iter().map(|volume| mark(volume.preserve)).collect(),
            filesystems: layout.filesystems.iter().map(|filesystem| describe_filesystem(layout, filesystem)).collect(),
        }
    }

    fn find(&self, section: &str, index: usize) -> Option<&'static str> {
        let comments = match section {
            "disks" => &self.disks,
            "raid" => &self.arrays,
            "volumegroups" => &self.groups,
            "logicalvolumes" => &self.volumes,
            "filesystems" => &self.filesystems,
            _ => return None,
        };
        comments.get(index).copied().filter(|comment| !comment.is_empty())
    }
}

fn describe_disk(layout: &Layout, disk: &DiskSpec) -> &'static str {
    let is_marked = layout.filesystems.iter().any(|filesystem| filesystem.preserve)
        || layout.raid.iter().any(|array| array.preserve)
        || layout.volumegroups.iter().any(|group| !group.preserve.is_none())
        || layout.logicalvolumes.iter().any(|volume| volume.preserve)
        || disk.partitions.iter().any(|partition| partition.preserve);
    match (disk.wipeonreinstall, is_marked) {
        (false, _) => "contains only data: preserved completely",
        (true, true) => {
            "contains the system: renewed, except for objects with `preserve: true` and the devices below them"
        }
        (true, false) => "contains only the system: renewed",
    }
}

fn describe_group(preserve: GroupPreservation) -> &'static str {
    match preserve {
        GroupPreservation::None => "",
        GroupPreservation::Unlisted => "volumes that are not listed are data: preserved",
        GroupPreservation::All => "data: preserved",
    }
}

fn describe_filesystem(layout: &Layout, filesystem: &FilesystemSpec) -> &'static str {
    if filesystem.format == FilesystemFormat::Tmpfs {
        return "";
    }
    if filesystem.preserve {
        return "data: preserved";
    }
    let group = layout.logicalvolumes.iter().find(|volume| volume.device_path() == filesystem.device);
    let group = group.and_then(|volume| layout.volumegroups.iter().find(|group| group.name == volume.volumegroup));
    match group.is_some_and(|group| group.preserve == GroupPreservation::All)
        || is_on_preserved_disk(layout, filesystem)
    {
        true => "data: preserved",
        false => "system: renewed",
    }
}

fn is_on_preserved_disk(layout: &Layout, filesystem: &FilesystemSpec) -> bool {
    let below = model::layout::graph::LayoutGraph::from_layout(layout).objects_below([&filesystem.device]);
    !below.disks.is_empty() && below.disks.iter().all(|disk| !layout.disks[*disk].wipeonreinstall)
}
