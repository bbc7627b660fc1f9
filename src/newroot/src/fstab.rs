//! `/etc/fstab` of the installed system.

use super::NewRoot;
use common::error::{Context, Phase, Result};
use common::format;
use operations::FstabEntry;
use std::io::ErrorKind;

const PATH: &str = "/etc/fstab";

/// Writes fstab, and creates missing mount points, such as the mount points of tmpfs filesystems, which are not mounted
/// during installation. This function is called after the image's installer has run, because the installer may write
/// its own fstab, which is replaced.
///
/// # Errors
/// Returns an error if the file cannot be written, or a mount point is not a directory.
pub fn write_fstab(root: &NewRoot, entries: &[FstabEntry]) -> Result<()> {
    make_mount_points(root, entries)?;
    root.write_file(PATH, 0o644, render_fstab(entries).as_bytes())
}

/// Appends entries to the image's fstab. Existing lines with the same mount points are commented out.
///
/// # Errors
/// Returns an error if the file cannot be read or written, or a mount point is not a directory.
pub fn extend_fstab(root: &NewRoot, entries: &[FstabEntry]) -> Result<()> {
    make_mount_points(root, entries)?;
    let own = match root.read_text(PATH) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        own => own.context(Phase::Target, || format!("read the image's {PATH}"))?,
    };
    root.write_file(PATH, 0o644, merge_entries(&own, entries).as_bytes())
}

fn make_mount_points(root: &NewRoot, entries: &[FstabEntry]) -> Result<()> {
    let points = entries.iter().map(|entry| entry.path.as_str()).filter(|path| path.starts_with('/'));
    points.into_iter().try_for_each(|point| root.make_directory(point))
}

fn merge_entries(own: &str, entries: &[FstabEntry]) -> String {
    let is_replaced = |line: &str| {
        let paths = parse_fstab(line).into_iter().map(|line| line.path).filter(|path| path.starts_with('/'));
        paths.into_iter().any(|path| entries.iter().any(|entry| entry.path == path))
    };
    let own =
        own.lines().map(|line| if is_replaced(line) { format!("# replaced: {line}\n") } else { format!("{line}\n") });
    own.chain([render_fstab(entries)]).collect()
}

/// Formats the entries as text of an fstab(5), with aligned columns.
pub(crate) fn render_fstab(entries: &[FstabEntry]) -> String {
    let heading = ["# source", "mount point", "type", "options", "dump", "pass"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(entries.iter().map(format_fields));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..6).map(width).collect();
    let mut text = String::from("# written by drophammer\n");
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format::pad_to_width(cell, *width));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn format_fields(entry: &FstabEntry) -> Vec<String> {
    let options = if entry.options.is_empty() { "defaults".to_owned() } else { entry.options.join(",") };
    let dump = "0".to_owned();
    let format = entry.format.to_string();
    vec![
        escape_field(&entry.source),
        escape_field(&entry.path),
        format,
        escape_field(&options),
        dump,
        entry.pass.to_string(),
    ]
}

/// Source and mount point in a line of an fstab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FstabLine {
    /// Device such as `UUID=…`, `LABEL=…`, `/dev/…`.
    pub source: String,
    /// Mount point.
    pub path: String,
}

/// Parses the lines of an fstab. Lines with fewer than two fields are skipped.
pub(crate) fn parse_fstab(text: &str) -> Vec<FstabLine> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let fields = lines.filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        Some(FstabLine { source: unescape_field(fields.next()?), path: unescape_field(fields.next()?) })
    });
    fields.collect()
}

/// Octal escapes of fstab fields (getmntent(3)): for the characters that would end a field or a line, and for the
/// backslash. The escape of the backslash must be decoded last.
const ESCAPES: [(&str, char); 7] = [
    ("\\040", ' '),
    ("\\011", '\t'),
    ("\\012", '\n'),
    ("\\013", '\x0b'),
    ("\\014", '\x0c'),
    ("\\015", '\r'),
    ("\\134", '\\'),
];

fn unescape_field(field: &str) -> String {
    ESCAPES.iter().fold(field.to_owned(), |text, (escaped, plain)| text.replace(escaped, &plain.to_string()))
}

fn escape_field(field: &str) -> String {
    let mut text = String::with_capacity(field.len());
    for character in field.chars() {
        match ESCAPES.iter().find(|(_, plain)| *plain == character) {
            Some((escaped, _)) => text.push_str(escaped),
            None => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::process::ToolCommand;
    use model::layout::FilesystemFormat;

    fn entry(source: &str, path: &str, format: FilesystemFormat, options: &[&str], pass: u8) -> FstabEntry {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        FstabEntry { source: source.into(), path: path.into(), format, options, pass }
    }

    fn entries() -> Vec<FstabEntry> {
        vec![
            entry("UUID=0d5c1a2e-7f6b-4c3d-9e8f-a1b2c3d4e5f6", "/", FilesystemFormat::Ext4, &[], 1),
            entry("UUID=1A2B-3C4D", "/boot/efi", FilesystemFormat::Vfat, &["noatime", "umask=0077"], 2),
            entry("UUID=8e0f0f6e-5f0a-4c53-8f2c-3d1f2a7b9c10", "none", FilesystemFormat::Swap, &[], 0),
            entry("tmpfs", "/tmp", FilesystemFormat::Tmpfs, &["mode=1777", "size=512M"], 0),
        ]
    }

    #[test]
    fn columns_of_fstab_are_aligned() {
        let expected = "\
# written by drophammer
# source                                   mount point  type   options              dump  pass
UUID=0d5c1a2e-7f6b-4c3d-9e8f-a1b2c3d4e5f6  /            ext4   defaults             0     1
UUID=1A2B-3C4D                             /boot/efi    vfat   noatime,umask=0077   0     2
UUID=8e0f0f6e-5f0a-4c53-8f2c-3d1f2a7b9c10  none         swap   defaults             0     0
tmpfs                                      /tmp         tmpfs  mode=1777,size=512M  0     0
";
        assert_eq!(render_fstab(&entries()), expected);
        assert_eq!(render_fstab(&[]).lines().next(), Some("# written by drophammer"));
    }

    #[test]
    fn findmnt_parses_the_written_fstab() {
        let mut entries = entries();
        entries.push(entry("LABEL=a b", "/mnt/with blank\tand\\", FilesystemFormat::Ext4, &["x-comment=a b"], 2));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), render_fstab(&entries)).unwrap();
        let arg = file.path().to_str().unwrap();
        let findmnt =
            ToolCommand::new("findmnt").args(["--json", "-o", "SOURCE,TARGET,FSTYPE,OPTIONS", "--tab-file", arg]);
        let json: serde_json::Value = serde_json::from_str(&findmnt.run().unwrap().stdout).unwrap();
        let mut found = Vec::new();
        flatten(&json["filesystems"], &mut found);
        for entry in &entries {
            let options = if entry.options.is_empty() { "defaults".to_owned() } else { entry.options.join(",") };
            let row = found.iter().find(|row| row["source"] == entry.source.as_str()).unwrap();
            assert_eq!(row["target"], entry.path.as_str());
            assert_eq!(row["fstype"], entry.format.name());
            assert_eq!(row["options"], options);
        }
    }

    #[test]
    fn every_mount_point_in_fstab_is_created() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let root = NewRoot::open(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        symlink("/real", dir.path().join("link")).unwrap();
        let mut entries = entries();
        entries.push(entry("tmpfs", "/link/cache", FilesystemFormat::Tmpfs, &[], 0));
        write_fstab(&root, &entries).unwrap();
        for path in ["tmp", "boot/efi", "real/cache"] {
            assert!(dir.path().join(path).is_dir(), "{path}");
        }
        assert!(!dir.path().join("none").exists());
        // An existing mount point is not changed.
        std::fs::set_permissions(dir.path().join("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
        extend_fstab(&root, &entries).unwrap();
        assert_eq!(std::fs::metadata(dir.path().join("tmp")).unwrap().permissions().mode() & 0o7777, 0o1777);
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error =
            write_fstab(&root, &[entry("tmpfs", "/file", FilesystemFormat::Tmpfs, &[], 0)]).unwrap_err().to_string();
        assert!(error.starts_with("create the directory /file in the target: "), "{error}");
    }

    #[test]
    fn image_lines_are_kept_unless_the_layout_replaces_them() {
        let own = "# own\nUUID=1 / ext4 defaults 0 1\n/dev/sdb1  /srv ext4 noauto 0 2\nUUID=2 none swap sw 0 0";
        let srv = [
            entry("UUID=3", "/srv", FilesystemFormat::Ext4, &[], 2),
            entry("UUID=4", "none", FilesystemFormat::Swap, &[], 0),
        ];
        let text = merge_entries(own, &srv);
        let preserved = "# own\nUUID=1 / ext4 defaults 0 1\n# replaced: /dev/sdb1  /srv ext4 noauto 0 2\nUUID=2 none swap sw 0 0\n# written by";
        assert!(text.starts_with(preserved), "{text}");
        let paths: Vec<_> = parse_fstab(&text).into_iter().map(|line| (line.source, line.path)).collect();
        let expected = [("UUID=1", "/"), ("UUID=2", "none"), ("UUID=3", "/srv"), ("UUID=4", "none")];
        assert_eq!(paths, expected.map(|(source, path)| (source.to_owned(), path.to_owned())));
        let dir = tempfile::tempdir().unwrap();
        extend_fstab(&NewRoot::open(dir.path()).unwrap(), &srv).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("etc/fstab")).unwrap(), render_fstab(&srv));
    }

    /// Text from a layout, such as a label, cannot add a line or a field to fstab, and cannot change the meaning of the
    /// line that contains the text.
    #[test]
    fn field_cannot_inject_a_line_or_another_field() {
        let tries = [
            "a\n/dev/sda1 / ext4 suid 0 0",
            "a\n",
            "\na",
            "a\r\n/dev/sda1 /b ext4",
            "a /b ext4 suid",
            "a\t/b\text4",
            "a\\040b",
            "a\\012b",
            "a\\",
            "\\134040",
            "a#b",
            "a\u{85}b",
            "a\u{2028}b",
            "a\u{a0}b",
            "a\x0bb\x0cc",
            "\u{202e}a",
            "\"a b\"",
        ];
        for bad in tries {
            for at in 0..3 {
                let field = |number, good: &str| if at == number { format!("/x{bad}") } else { good.to_owned() };
                let entry =
                    entry(&field(0, "UUID=1"), &field(1, "/srv"), FilesystemFormat::Ext4, &[&field(2, "noatime")], 2);
                let text = render_fstab(std::slice::from_ref(&entry));
                assert_eq!(text.lines().count(), 3, "{bad:?}: {text}");
                let line = text.lines().last().unwrap();
                assert_eq!(line.split([' ', '\t']).filter(|field| !field.is_empty()).count(), 6, "{bad:?}: {line}");
                let [FstabLine { source, path }] = &parse_fstab(&text)[..] else { panic!("{bad:?}: {text}") };
                assert_eq!((source, path), (&entry.source, &entry.path), "{bad:?}");
            }
        }
    }

    #[test]
    fn rendered_fstab_is_parsed_back() {
        let mut entries = entries();
        entries.push(entry("LABEL=a b", "/mnt/with blank\tand\\", FilesystemFormat::Ext4, &[], 2));
        let lines = parse_fstab(&render_fstab(&entries));
        let expected = entries.iter().map(|entry| FstabLine { source: entry.source.clone(), path: entry.path.clone() });
        assert_eq!(lines, expected.collect::<Vec<_>>());
        assert_eq!(parse_fstab("# none\n\n  # indented /boot ext4\n/dev/sda1\n"), []);
    }

    fn flatten(rows: &serde_json::Value, into: &mut Vec<serde_json::Value>) {
        for row in rows.as_array().into_iter().flatten() {
            into.push(row.clone());
            flatten(&row["children"], into);
        }
    }
}
