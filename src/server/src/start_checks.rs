//! Checks of the options and of the directory before the server starts.

use super::options::ServerConfig;
use api::base_url::check_url_host;
use common::bounded_read::read_prefix;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::architecture::{Architecture, RECOGNIZED_BYTES};
use oidc::settings::OidcSettings;
use pxe::ipxe;
use pxe::pxe_options::PxeOptions;
use site::{boot_value_validation, readable_secrets, yaml_folder};
use std::fs::File;
use std::path::{Path, PathBuf};

pub(crate) fn boot_directory(options: &ServerConfig) -> PathBuf {
    options.boot.clone().unwrap_or_else(|| options.dir.join("boot"))
}

/// Returns problems of the boot directory and of file permissions. While the server runs, the permissions are not
/// checked again.
pub(crate) fn check_at_start(options: &ServerConfig) -> Vec<String> {
    let boot = missing_boot_files(&boot_directory(options)).into_iter();
    let secrets = readable_secrets::find_readable_secrets(&options.dir).into_iter();
    let registries = Some(options.dir.join("registries.json")).filter(|path| readable_secrets::is_world_readable(path));
    // Errors in `oidc.yaml` are ignored here, because invalid settings are reported when the server reads them.
    let oidc = OidcSettings::read_file(&options.dir).ok().flatten().map(|settings| settings.readable_secrets);
    let what = "contains secrets and is readable by all users of this host";
    let secrets = secrets.chain(registries).chain(oidc.unwrap_or_default());
    boot.chain(secrets.map(|path| format!("{} {what}: run chmod o-r {0}", path.display()))).collect()
}

/// Returns a problem for each missing or empty file of the ramdisk, and for each kernel of the wrong architecture.
/// Files for arm64 are optional.
pub(crate) fn missing_boot_files(boot: &Path) -> Vec<String> {
    let files = Architecture::ALL.into_iter().flat_map(|architecture| {
        [ipxe::KERNEL, "initrd"].map(|name| (boot.join(ipxe::boot_file_name(name, architecture)), architecture))
    });
    let missing = files.filter_map(|(path, architecture)| explain_unusable_file(&path, architecture));
    let missing = missing.map(|message| ErrorCode::BootFilesMissing.annotate(message));
    missing.chain(Architecture::ALL.into_iter().filter_map(|architecture| foreign_kernel(boot, architecture))).collect()
}

/// Returns a problem if a kernel or ramdisk for machines of this architecture is missing or empty.
fn explain_unusable_file(path: &Path, architecture: Architecture) -> Option<String> {
    let file = path.display();
    match std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file) {
        None if architecture == Architecture::Amd64 => {
            Some(format!("{file} is missing: machines cannot boot the ramdisk"))
        }
        Some(metadata) if metadata.len() == 0 => Some(format!(
            "{file} is empty: machines cannot boot the ramdisk; create the file again with scripts/build-ramdisk --arch \
             {architecture}"
        )),
        _ => None,
    }
}

/// Returns a problem if the kernel for machines of this architecture is a kernel for another architecture.
fn foreign_kernel(boot: &Path, architecture: Architecture) -> Option<String> {
    let path = boot.join(ipxe::boot_file_name(ipxe::KERNEL, architecture));
    let head = read_prefix(File::open(&path).ok()?, RECOGNIZED_BYTES).ok()?;
    let found = Architecture::recognize(&head).filter(|found| *found != architecture)?;
    Some(ErrorCode::ArchitectureMismatch.annotate(format!(
        "{file} is a kernel for {found}, but {architecture} machines boot this file: replace the file with the vmlinuz of \
         scripts/build-ramdisk --arch {architecture}",
        file = path.display()
    )))
}

/// Checks that the server's directory exists.
///
/// # Errors
/// Returns a message with the command that creates the directory.
fn check_directory(dir: &Path) -> std::result::Result<(), String> {
    let path = dir.display();
    match () {
        () if dir.is_dir() => Ok(()),
        () if dir.exists() => Err(format!("{path} is not a directory; specify the directory of a server")),
        () => Err(format!(
            "{path} does not exist; create the server's directory with `drophammer serve --init {path}`, or specify a directory that contains machines/, layouts/ and images/"
        )),
    }
}

/// Returns a note if the server's directory contains neither documents nor a database.
pub(crate) fn note_empty_directory(dir: &Path) -> Option<String> {
    let is_empty = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    is_empty.then(|| {
        format!(
            "{path} is empty: `drophammer serve --init {path}` creates its folders, with a sample layout",
            path = dir.display()
        )
    })
}

pub(crate) fn check_options(options: &ServerConfig) -> Result<()> {
    let refuse = |what: String| Err(Error::new(Phase::Serve, what));
    check_directory(&options.dir).or_else(refuse)?;
    if let Some(url) = &options.url {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let host = rest.map(|rest| rest.split('/').next().unwrap_or_default());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:[]".contains(&byte);
        if host.is_none_or(|host| boot_value_validation::validate_host(host).is_err()) || !url.bytes().all(plain) {
            return refuse(format!("--url {url}: must be a URL such as http://10.0.0.1:8080"));
        }
        let without_dns = options.pxe.as_ref().is_some_and(PxeOptions::assigns_without_dns);
        check_url_host(url, without_dns).or_else(refuse)?;
    }
    boot_value_validation::validate_cmdline(&options.cmdline).or_else(|why| refuse(format!("--cmdline: {why}")))
}

/// Refuses to start if the database was lost. During a reinstall, a machine has no install marker, and only the
/// database records that the machine is being reinstalled. Without this record, the server would treat the machine as
/// a new one, and all of its disks would be wiped. The operator's token is created after the database, so a token
/// without a database proves that the database was lost.
pub(crate) fn refuse_lost_database(dir: &Path) -> Result<()> {
    let database = dir.join(store::DATABASE);
    let has_token = dir.join(store::token_hash::OPERATOR_FILE).exists();
    if !has_token || !yaml_folder::has_machine_files(dir) || !store::database_file::is_new_database(&database)? {
        return Ok(());
    }
    let message = format!(
        "{} is missing or empty, although {} shows that it existed. Without this file, the server would treat a machine in the middle of a reinstall as a new machine, and its preserved disks would be wiped. Restore a backup with `drophammer serve restore`. If no \
         machine is in the middle of a reinstall, remove {1} and start the server again: the server recreates both files",
        database.display(),
        store::token_hash::OPERATOR_FILE
    );
    Err(Error::new(Phase::Serve, message).with_code(ErrorCode::DatabaseMissing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_empty_boot_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in [("initrd", ""), ("vmlinuz-arm64", ""), ("initrd-arm64", "x")] {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        let problems = missing_boot_files(dir.path());
        for (problem, (file, why)) in problems.iter().zip([
            ("/vmlinuz", " is missing: machines cannot boot the ramdisk (DH-701)"),
            ("/initrd", "create the file again with scripts/build-ramdisk --arch amd64 (DH-701)"),
            ("/vmlinuz-arm64", "create the file again with scripts/build-ramdisk --arch arm64 (DH-701)"),
        ]) {
            assert!(problem.contains(file) && problem.ends_with(why), "{problem}");
        }
        assert_eq!(problems.len(), 3, "{problems:?}");
    }

    #[test]
    fn kernels_for_another_architecture_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let arm64 = [&[0; 0x38][..], b"ARM\x64"].concat();
        for (name, content) in [("vmlinuz", &arm64[..]), ("initrd", b"x"), ("vmlinuz-arm64", &arm64)] {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        let [problem] = &missing_boot_files(dir.path())[..] else { panic!("one problem is expected") };
        assert!(problem.contains("/vmlinuz is a kernel for arm64, but amd64 machines boot this file"), "{problem}");
        std::fs::write(dir.path().join("vmlinuz"), "unknown").unwrap();
        assert_eq!(missing_boot_files(dir.path()), Vec::<String>::new());
    }
}
