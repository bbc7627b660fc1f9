//! Documents of the operator that contain secrets. The files of these documents must not be world-readable.

use crate::documents::SiteDocuments;
use crate::yaml_folder::{is_yaml, list_yaml_files, read_text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Fields that contain secrets.
pub const SECRET_FIELDS: [&str; 7] =
    ["user_data:", "console_password:", "disk_key:", "vpn:", "pull_secret:", "bmc:", "os_parameters:"];

/// Folder with OS definitions, and with the files that contain their site-wide parameters.
pub const OS_FOLDER: &str = "os";

/// Returns whether a file's contents include a field for secrets.
fn has_secrets(text: &str) -> bool {
    text.lines().any(|line| SECRET_FIELDS.iter().any(|name| line.trim_start().starts_with(name)))
}

/// Returns whether a file with parameters of OS definitions has contents that can be secret: any parameter can be a
/// secret, and each parameter is a text `KEY=VALUE`.
fn has_parameters(text: &str) -> bool {
    text.contains('=')
}

/// Returns whether a document of the server's directory can contain secrets. `relative` is the path of the document in
/// this directory.
pub(crate) fn can_contain_secrets(relative: &str, text: &str) -> bool {
    let path = Path::new(relative);
    let is_parameter_file = path.parent() == Some(Path::new(OS_FOLDER)) && is_yaml(path);
    relative == "registries.json" || has_secrets(text) || is_parameter_file && has_parameters(text)
}

/// Returns the files in the folders for machines, images and OS definitions of a server's directory that contain
/// secrets and are world-readable.
pub fn find_readable_secrets(dir: &Path) -> Vec<PathBuf> {
    let mut found = find_readable(&dir.join("machines"), has_secrets);
    found.extend(find_readable(&dir.join("images"), has_secrets));
    found.extend(find_readable(&dir.join(OS_FOLDER), has_parameters));
    found
}

fn find_readable(folder: &Path, is_secret: fn(&str) -> bool) -> Vec<PathBuf> {
    let documents = SiteDocuments::of_directory(folder);
    let files = list_yaml_files(folder).unwrap_or_default().into_iter().filter(|path| is_world_readable(path));
    files.filter(|path| matches!(read_text(&documents, path), Ok(Ok(text)) if is_secret(&text))).collect()
}

/// Returns whether the file is world-readable. Does not read the content of the file.
pub fn is_world_readable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn world_readable_secrets_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let open = write("machines/a.yaml", "id: a\nallocation:\n  user_data: x\n", 0o644);
        write("machines/b.yaml", "id: b\nallocation:\n  user_data: x\n", 0o640);
        write("machines/c.yaml", "id: c\n# no user_data: here\n", 0o644);
        let password = write("machines/d.yaml", "id: d\nallocation:\n  console_password: x\n", 0o604);
        let parameters = write("machines/e.yaml", "id: e\nallocation:\n  os_parameters: [key=x]\n", 0o644);
        let registry = write("images/e.yaml", "id: e\npull_secret: {username: u, password: p}\n", 0o644);
        let site_wide = write("os/parameters.yaml", "web: [key=x]\n", 0o644);
        write("os/empty.yaml", "{}\n", 0o644);
        write("os/closed.yaml", "db: [key=x]\n", 0o640);
        write("os/web/create", "key=x\n", 0o755);
        assert_eq!(find_readable_secrets(dir.path()), [open, password, parameters, registry, site_wide]);
        assert!(find_readable_secrets(&dir.path().join("none")).is_empty());
    }

    #[test]
    fn documents_that_can_contain_secrets_are_recognized() {
        for (relative, text, expected) in [
            ("registries.json", "{}", true),
            ("machines/a.yaml", "id: a\n", false),
            ("machines/a.yaml", "id: a\nallocation:\n  os_parameters: [key=x]\n", true),
            ("os/parameters.yaml", "web: [key=x]\n", true),
            ("os/parameters.yaml", "{}\n", false),
            ("os/web/create", "key=x\n", false),
            ("os/web/settings.yaml", "key=x\n", false),
        ] {
            assert_eq!(can_contain_secrets(relative, text), expected, "{relative}: {text}");
        }
    }
}
