//! `drophammer serve --init`: creates the folders of a server's directory, with a sample layout. Existing files are not
//! changed.

use super::ServerConfig;
use common::command_outcome::CommandOutcome;
use common::error::{Context, Error, Phase, Result};
use common::format::format_columns;
use common::output::print_text;
use site::yaml_folder::list_yaml_files;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Folders of a server's directory. They may contain secrets, so other users cannot read them.
const SITE_DIRECTORIES: [&str; 5] = ["machines", "layouts", "images", "sizes", "boot"];
const DIRECTORY_MODE: u32 = 0o750;

const SAMPLE_LAYOUT: &str = include_str!("../../../examples/site/layouts/one-disk.yaml");
const SAMPLE_FILE: &str = "layouts/one-disk.yaml";

/// Creates the missing folders and files of the directory, and prints how to start the server and how to log in.
///
/// # Errors
/// Returns an error if a folder or file cannot be created.
pub(crate) fn create_site(options: &ServerConfig) -> Result<CommandOutcome> {
    let created = create_missing_files(&options.dir)?;
    print_text(&describe_site(options, &created)).map(|()| CommandOutcome::Good)
}

/// Creates the folders, and the sample layout if there is no layout yet. Returns the paths that were created.
fn create_missing_files(dir: &Path) -> Result<Vec<String>> {
    let mut created = Vec::new();
    let mut builder = DirBuilder::new();
    builder.mode(DIRECTORY_MODE);
    for folder in SITE_DIRECTORIES {
        let path = dir.join(folder);
        let what = || format!("create {}", path.display());
        fs::create_dir_all(dir).context(Phase::Serve, what)?;
        match builder.create(&path) {
            Ok(()) => created.push(format!("{folder}/")),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => {}
            Err(error) => return Err(Error::with_source(Phase::Serve, what(), error)),
        }
    }
    let layouts =
        list_yaml_files(&dir.join("layouts")).context(Phase::Serve, || format!("read {}/layouts", dir.display()))?;
    if layouts.is_empty() {
        let path = dir.join(SAMPLE_FILE);
        create_file(&path, SAMPLE_LAYOUT).context(Phase::Serve, || format!("create {}", path.display()))?;
        created.push(SAMPLE_FILE.to_owned());
    }
    Ok(created)
}

/// Creates a file. Removes the file if its content cannot be written, for example because the filesystem is full: the
/// next attempt would otherwise consider the incomplete file as one of the operator.
fn create_file(path: &Path, content: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let written = file.write_all(content.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

fn describe_site(options: &ServerConfig, created: &[String]) -> String {
    let dir = options.dir.display();
    let created =
        if created.is_empty() { "nothing to create: all folders exist".to_owned() } else { created.join(", ") };
    let boot = super::start_checks::boot_directory(options);
    let rows = [
        ("directory", dir.to_string()),
        ("created", created),
        (
            "kernel, ramdisk",
            format!("{0}/vmlinuz, {0}/initrd (from scripts/build-ramdisk, or --boot DIR)", boot.display()),
        ),
        ("start", format!("drophammer serve {dir}")),
        ("page", page_url(options)),
        (
            "operator's token",
            format!("{dir}/{file} (created at the first start)", file = store::token_hash::OPERATOR_FILE),
        ),
    ];
    format_columns(&rows.map(|(name, value)| [name.to_owned(), value]))
}

/// Returns the address of the web page according to the options.
fn page_url(options: &ServerConfig) -> String {
    let (scheme, address) = match (&options.tls, options.operator_listen) {
        (None, address) => ("http", address.unwrap_or(options.listen)),
        (Some(tls), address) => ("https", address.unwrap_or(tls.listen)),
    };
    if let (Some(url), None) = (&options.url, options.operator_listen) {
        return url.trim_end_matches('/').to_owned() + "/";
    }
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => host_name(),
        IpAddr::V6(ip) if ip.is_unspecified() => host_name(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    format!("{scheme}://{host}:{}/", address.port())
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ServeArgs, ServeOptions};
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct ServeCli {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn config(arguments: &[&str]) -> ServerConfig {
        let cli = ServeCli::try_parse_from([&["serve"], arguments].concat()).unwrap();
        let options: ServeOptions = cli.serve.options.unwrap();
        options.into()
    }

    #[test]
    fn a_new_directory_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("new/site");
        let created = create_missing_files(&dir).unwrap();
        assert_eq!(created, ["machines/", "layouts/", "images/", "sizes/", "boot/", SAMPLE_FILE]);
        let layout = model::layout::read_yaml(&fs::read_to_string(dir.join(SAMPLE_FILE)).unwrap()).unwrap();
        assert_eq!(layout.notes, []);
        let found = crate::site_check::find_problems(&config(&[dir.to_str().unwrap()])).unwrap();
        let is_known = |message: &str| message.ends_with("is missing: machines cannot boot the ramdisk (DH-701)");
        assert!(found.layouts == 1 && found.problems.iter().all(|problem| is_known(&problem.message)), "{found:?}");
    }

    #[test]
    fn existing_files_are_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("layouts")).unwrap();
        fs::write(folder.path().join("layouts/mine.yaml"), "mine").unwrap();
        assert_eq!(create_missing_files(folder.path()).unwrap(), ["machines/", "images/", "sizes/", "boot/"]);
        assert_eq!(create_missing_files(folder.path()).unwrap(), [""; 0]);
        assert_eq!(fs::read_to_string(folder.path().join("layouts/mine.yaml")).unwrap(), "mine");
        assert!(!folder.path().join(SAMPLE_FILE).exists());
        fs::remove_dir(folder.path().join("boot")).unwrap();
        fs::write(folder.path().join("boot"), "a file").unwrap();
        assert!(create_missing_files(folder.path()).unwrap_err().to_string().contains("create "));
        // A dangling symbolic link is not followed.
        fs::remove_file(folder.path().join("layouts/mine.yaml")).unwrap();
        fs::remove_file(folder.path().join("boot")).unwrap();
        std::os::unix::fs::symlink("/nowhere/x", folder.path().join("boot")).unwrap();
        assert!(create_missing_files(folder.path()).is_err());
    }

    #[test]
    fn the_address_of_the_page_is_printed() {
        for (arguments, expected) in [
            (&["--listen", "10.0.0.1:8080"][..], "http://10.0.0.1:8080/"),
            (&["--listen", "localhost:80"], "http://127.0.0.1:80/"),
            (&["--listen", "[::1]:8080"], "http://[::1]:8080/"),
            (&["--url", "http://install.rack:8080"], "http://install.rack:8080/"),
            (&["--operator-listen", "127.0.0.1:8081", "--url", "http://h:1"], "http://127.0.0.1:8081/"),
            (&["--tls-cert", "c", "--tls-key", "k", "--tls-listen", "10.0.0.1:8443"], "https://10.0.0.1:8443/"),
        ] {
            assert_eq!(page_url(&config(&[&["d"], arguments].concat())), expected);
        }
        assert!(page_url(&config(&["d"])).ends_with(":8080/"));
        let text = describe_site(&config(&["/srv/d", "--listen", "10.0.0.1:8080"]), &[]);
        assert!(text.contains("drophammer serve /srv/d\n") && text.contains("/srv/d/operator.token"), "{text}");
    }
}
