//! `drophammer image add`: downloads or copies an image into a server's directory, and writes the image file that
//! describes it.

mod new_files;

use clap::{Args, ValueEnum};
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::format_bytes;
use common::output::print_text;
use common::yaml::block_writer::to_block_yaml;
use image::image_import::{self, SIDECAR_SUFFIXES};
use image::{ImageSource, ResolvedImage, SignatureKey, SignatureKeys, StatedFormat};
use model::architecture::Architecture;
use new_files::{store_file, store_text};
use serde_json::{Map, Value, json};
use site::operator_files::{ImageLocation, parse_image};
use site::yaml_folder::list_yaml_files;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// Options of `drophammer image add`.
#[derive(Debug, Args)]
pub struct AddImageOptions {
    /// URL or path of the image.
    #[arg(value_name = "URL|FILE")]
    pub source: String,
    /// The server's directory. A running server may use this directory at the same time.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Id of the image, such as debian-12.0.20261101 [default: the id in the image's manifest].
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Display name of the image.
    #[arg(long)]
    pub name: Option<String>,
    /// `sha256:HEX` or `sha512:HEX` of the image as served [default: read from the files next to the image; the digest
    /// of a local file is computed].
    #[arg(long)]
    pub digest: Option<String>,
    /// Public key of a trusted signer, or a file with the key; can be specified several times. If a key is specified, a
    /// signature is required.
    #[arg(long, value_name = "KEY|FILE")]
    pub key: Vec<String>,
    /// Format of the image [default: recognized by its first bytes]. An image whose format is not recognized is added
    /// only with this option.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<FormatChoice>,
    /// Architecture of the machines for which the image is built, amd64 or arm64 [default: the architecture in the
    /// image's manifest]. Machines of another architecture refuse the image.
    #[arg(long, value_name = "ARCHITECTURE")]
    pub architecture: Option<Architecture>,
}

/// Value of `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatChoice {
    /// Root filesystem as a tar archive, which may be compressed.
    Tar,
    /// Raw disk image, which may be compressed.
    Raw,
    /// qcow2, which may be compressed.
    Qcow2,
}

impl FormatChoice {
    fn to_stated(self) -> StatedFormat {
        match self {
            FormatChoice::Tar => StatedFormat::Tar,
            FormatChoice::Raw => StatedFormat::Raw,
            FormatChoice::Qcow2 => StatedFormat::Qcow2,
        }
    }
}

/// Adds an image to a server's directory. The image file is written last, so the server never sees an incomplete image.
///
/// # Errors
/// Returns an error if the image cannot be fetched, does not match its digest, or cannot be written.
pub fn add_image(options: &AddImageOptions) -> Result<CommandOutcome> {
    report_refusal(copy_into_site(options).and_then(|text| print_text(&text)).map(|()| CommandOutcome::Good))
}

/// Paths of the files of an image.
struct ImageFiles {
    image: PathBuf,
    /// Path of the image file, which describes the image to the server.
    description: PathBuf,
}

fn copy_into_site(options: &AddImageOptions) -> Result<String> {
    let folder = options.dir.join("images");
    if !folder.is_dir() {
        let why = "is not a server's directory, because it has no subdirectory images; create a server's directory with \
                   `drophammer serve --init DIR`";
        return Err(add_refusal(format!("{} {why}", options.dir.display())));
    }
    let resolved = resolve_source(options)?;
    let manifest = resolved.parts.first().and_then(|part| part.manifest.as_ref());
    let id = options.id.clone().or_else(|| manifest.and_then(|manifest| manifest.image.clone()));
    let id = id.ok_or_else(|| add_refusal("the id of the image is missing: specify --id ID"))?;
    let files = name_files(&folder, &resolved.url, &id)?;
    let contents = manifest.and_then(|manifest| manifest.contents.as_ref());
    let architecture = choose_architecture(options.architecture, contents.and_then(|contents| contents.architecture))?;
    let text = describe_image(&id, options.name.as_deref(), &files.image, architecture, &resolved)?;
    let stated = options.format.map(FormatChoice::to_stated);
    let copy = |file: &mut BufWriter<File>| image_import::copy_image(&resolved, stated, file);
    let copied = store_file(&files.image, read_source_size(&resolved.url), copy)?;
    let rest =
        store_sidecars(&resolved.url, &files.image).and_then(|()| store_text(&files.description, text.as_bytes()));
    // After a failure, the image is removed, because the existing file would prevent another attempt to add the image.
    rest.inspect_err(|_| remove_image(&files.image))?;
    Ok(format!(
        "{id} is added: {file} ({size}, {format}), {digest}\nInstall it on a new machine, or reinstall a machine:\n  drophammer machine add --name NAME --image {id} --layout LAYOUT --ssh-key FILE\n  drophammer machine reinstall NAME --image {id}\n",
        file = files.image.display(),
        size = format_bytes(copied.size_bytes),
        format = copied.format.map_or_else(|| "format as stated".to_owned(), |format| format.to_string()),
        digest = resolved.digest
    ))
}

fn resolve_source(options: &AddImageOptions) -> Result<ResolvedImage> {
    let url = image_import::parse_location(&options.source)?;
    let keys = options.key.iter().map(|key| agent::image_burn_command::read_public_key(key));
    let keys = SignatureKeys(keys.collect::<Result<Vec<SignatureKey>>>()?);
    let digest = image::parse_given_digest(options.digest.as_deref(), &url)?;
    let mut source = ImageSource { url, digest, keys, id: options.id.clone(), ..ImageSource::default() };
    if let Some(path) = image_import::local_path(&source)
        && source.digest.is_none()
        && source.keys.0.is_empty()
        && !SIDECAR_SUFFIXES.iter().any(|suffix| with_suffix(&path, suffix).exists())
    {
        source.digest = Some(image_import::compute_digest(&path)?);
    }
    image::resolve_image(&source)
}

/// Returns the paths of the files to create.
fn name_files(folder: &Path, url: &str, id: &str) -> Result<ImageFiles> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default().replace("%20", "-");
    let is_plain = |name: &str| {
        !name.starts_with('.')
            && !name.is_empty()
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-+".contains(letter))
    };
    if !is_plain(&name) || name.ends_with(".yaml") {
        return Err(add_refusal(format!("{url}: the file name {name:?} cannot be used in images/; rename the file")));
    }
    if !is_plain(id) {
        return Err(add_refusal(format!("the id {id:?} must consist of letters, digits and `._-+`")));
    }
    let files = ImageFiles { image: folder.join(name), description: folder.join(format!("{id}.yaml")) };
    // The sidecar files must also not exist: a file that remains from an earlier image with this name would be used for
    // the new image.
    let sidecars = SIDECAR_SUFFIXES.iter().map(|suffix| with_suffix(&files.image, suffix));
    let mut all = [files.image.clone(), files.description.clone()].into_iter().chain(sidecars);
    match all.find(|path| path.exists()) {
        Some(path) => Err(add_refusal(format!(
            "{file} already exists: {remedy}",
            file = path.display(),
            remedy = describe_remedy(&files, &path, url)
        ))),
        None => Ok(files),
    }
}

/// Returns the remedy for a file that already exists. The name of the image file consists of the id, and the names of
/// all other files are those of the source.
fn describe_remedy(files: &ImageFiles, existing: &Path, url: &str) -> String {
    if existing == files.description {
        return "specify another --id, or remove the existing image with `drophammer image delete`".to_owned();
    }
    let rename = match url.starts_with("file:") {
        true => "rename the source file",
        false => "download the image, and add it as a file with another name",
    };
    let folder = files.image.parent().unwrap_or(Path::new(""));
    let name = files.image.file_name().unwrap_or_default().to_string_lossy();
    match find_image_with_file(folder, &name) {
        Some(id) => format!("{rename}, or remove image {id}, which uses the file"),
        None => format!("{rename}, or remove the existing file, which no image uses"),
    }
}

/// Returns the id of the image whose image file names this file.
fn find_image_with_file(folder: &Path, name: &str) -> Option<String> {
    let paths = list_yaml_files(folder).ok()?;
    let images = paths.iter().filter_map(|path| parse_image(&fs::read_to_string(path).ok()?).ok());
    let mut users = images.filter(|image| matches!(&image.at, ImageLocation::File(file) if file == name));
    users.next().map(|image| image.id)
}

/// Returns the architecture of the image, as stated by the operator or found in the manifest.
fn choose_architecture(stated: Option<Architecture>, found: Option<Architecture>) -> Result<Option<Architecture>> {
    match (stated, found) {
        (Some(stated), Some(found)) if stated != found => Err(add_refusal(format!(
            "according to its manifest, the image is for {found}, but --architecture is {stated}"
        ))
        .with_code(ErrorCode::ArchitectureMismatch)),
        (stated, found) => Ok(stated.or(found)),
    }
}

/// Returns the text of the image file that describes the image.
fn describe_image(
    id: &str,
    name: Option<&str>,
    image: &Path,
    architecture: Option<Architecture>,
    resolved: &ResolvedImage,
) -> Result<String> {
    let file = image.file_name().unwrap_or_default().to_string_lossy();
    let mut fields = Map::new();
    fields.insert("id".to_owned(), json!(id));
    fields.extend(name.map(|name| ("name".to_owned(), json!(name))));
    fields.insert("file".to_owned(), json!(file));
    fields.insert("digest".to_owned(), json!(resolved.digest.to_string()));
    fields.extend(architecture.map(|architecture| ("architecture".to_owned(), json!(architecture))));
    let text = to_block_yaml(&Value::Object(fields));
    parse_image(&text).map_err(|why| add_refusal(format!("the image file would be invalid: {why}")))?;
    Ok(text)
}

/// Stores the manifest, the digest and the signatures next to the image, as far as they exist.
fn store_sidecars(url: &str, image: &Path) -> Result<()> {
    for suffix in SIDECAR_SUFFIXES {
        if let Some(bytes) = image_import::read_sidecar(url, suffix)? {
            store_text(&with_suffix(image, suffix), &bytes)?;
        }
    }
    Ok(())
}

/// Returns the size of the source in bytes, if it is a local file.
fn read_source_size(url: &str) -> Option<u64> {
    let source = ImageSource { url: url.to_owned(), ..ImageSource::default() };
    Some(fs::metadata(image_import::local_path(&source)?).ok()?.len())
}

/// Removes an image that has no image file yet, and the sidecar files of the image.
fn remove_image(image: &Path) {
    let sidecars = SIDECAR_SUFFIXES.iter().map(|suffix| with_suffix(image, suffix));
    sidecars.chain([image.to_owned()]).for_each(|path| drop(fs::remove_file(path)));
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn add_refusal(why: impl Into<String>) -> Error {
    Error::refusal(Phase::Image, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Content that begins like an XFS filesystem.
    const IMAGE: &str = "XFSB, and the rest of the image";

    fn site() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("images")).unwrap();
        dir
    }

    fn options(source: &Path, dir: &Path) -> AddImageOptions {
        let (source, id) = (source.display().to_string(), Some("debian-12.1".to_owned()));
        let (key, dir) = (Vec::new(), dir.to_owned());
        AddImageOptions { source, dir, id, name: None, digest: None, key, format: None, architecture: None }
    }

    fn list_names(dir: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(dir.path().join("images")).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_copied_with_its_sidecars() {
        let (dir, from) = (site(), tempfile::tempdir().unwrap());
        let image = from.path().join("debian.raw");
        fs::write(&image, IMAGE).unwrap();
        let digest = image_import::compute_digest(&image).unwrap().to_string();
        fs::write(from.path().join("debian.raw.sha256"), format!("{}  debian.raw\n", &digest[7..])).unwrap();
        let said =
            copy_into_site(&AddImageOptions { name: Some("Debian: 12".to_owned()), ..options(&image, dir.path()) })
                .unwrap();
        assert!(said.starts_with("debian-12.1 is added: ") && said.contains(&digest), "{said}");
        assert_eq!(list_names(&dir), ["debian-12.1.yaml", "debian.raw", "debian.raw.sha256"]);
        let text = fs::read_to_string(dir.path().join("images/debian-12.1.yaml")).unwrap();
        let spec = parse_image(&text).unwrap();
        assert_eq!((spec.id.as_str(), spec.name.as_str(), spec.digest), ("debian-12.1", "Debian: 12", Some(digest)));
        assert!(matches!(spec.at, ImageLocation::File(file) if file == "debian.raw"));
        let again = copy_into_site(&options(&image, dir.path())).unwrap_err();
        let words = "already exists: rename the source file, or remove image debian-12.1, which uses the file";
        assert!(again.is_refusal() && again.to_string().ends_with(words), "{again}");
        // Another id does not change the name of the file.
        let other = AddImageOptions { id: Some("debian-12.2".to_owned()), ..options(&image, dir.path()) };
        assert!(copy_into_site(&other).unwrap_err().to_string().ends_with(words));
        let renamed = from.path().join("renamed.raw");
        fs::copy(&image, &renamed).unwrap();
        let same_id = copy_into_site(&options(&renamed, dir.path())).unwrap_err().to_string();
        assert!(same_id.contains("debian-12.1.yaml already exists: specify another --id"), "{same_id}");

        for left_over in ["debian.raw", "debian-12.1.yaml"] {
            fs::remove_file(dir.path().join("images").join(left_over)).unwrap();
        }
        let refused = copy_into_site(&options(&image, dir.path())).unwrap_err();
        assert!(refused.is_refusal() && refused.to_string().contains("debian.raw.sha256 already exists"), "{refused}");
        assert_eq!(list_names(&dir), ["debian.raw.sha256"], "files of others are not removed");
    }

    #[test]
    fn architecture_is_stated_or_read_from_the_manifest() {
        let (amd64, arm64) = (Some(Architecture::Amd64), Some(Architecture::Arm64));
        for (stated, found, chosen) in
            [(None, None, None), (arm64, None, arm64), (None, arm64, arm64), (amd64, amd64, amd64)]
        {
            assert_eq!(choose_architecture(stated, found).unwrap(), chosen);
        }
        let error = choose_architecture(arm64, amd64).unwrap_err();
        assert_eq!((error.is_refusal(), error.code()), (true, ErrorCode::ArchitectureMismatch));
        assert!(error.to_string().contains("the image is for amd64, but --architecture is arm64"), "{error}");

        let (dir, from) = (site(), tempfile::tempdir().unwrap());
        let image = from.path().join("debian.raw");
        fs::write(&image, IMAGE).unwrap();
        copy_into_site(&AddImageOptions { architecture: arm64, ..options(&image, dir.path()) }).unwrap();
        let text = fs::read_to_string(dir.path().join("images/debian-12.1.yaml")).unwrap();
        assert_eq!(parse_image(&text).unwrap().architecture, arm64);
    }

    #[test]
    fn unknown_image_format_is_accepted_if_stated() {
        let (dir, from) = (site(), tempfile::tempdir().unwrap());
        let image = from.path().join("appliance.raw");
        fs::write(&image, [0xa5, 0x5a, 0x17, 0xee, 0x01].repeat(1000)).unwrap();
        let stated = AddImageOptions { format: Some(FormatChoice::Raw), ..options(&image, dir.path()) };
        let text = copy_into_site(&stated).unwrap();
        assert!(text.contains("appliance.raw (5.00 kB, format as stated), sha256:"), "{text}");
        assert_eq!(list_names(&dir), ["appliance.raw", "debian-12.1.yaml"]);
    }

    #[test]
    fn refused_images_leave_no_files() {
        let (dir, from) = (site(), tempfile::tempdir().unwrap());
        let image = from.path().join("debian.raw");
        fs::write(&image, IMAGE).unwrap();
        let wrong = Some(format!("sha256:{}", "0".repeat(64)));
        let damaged = from.path().join("damaged.raw");
        fs::write(&damaged, IMAGE).unwrap();
        fs::write(from.path().join("damaged.raw.sha256"), format!("{}  damaged.raw\n", "0".repeat(64))).unwrap();
        let random = from.path().join("random.raw");
        fs::write(&random, [0xa5, 0x5a, 0x17, 0xee, 0x01].repeat(1000)).unwrap();
        let archive = from.path().join("debian.zip");
        fs::write(&archive, b"PK\x03\x04....").unwrap();
        for (add_options, words) in [
            (options(&damaged, dir.path()), "but sha256:0000"),
            (AddImageOptions { digest: wrong, ..options(&image, dir.path()) }, "but sha256:0000"),
            (options(&archive, dir.path()), "zip archive"),
            (options(&random, dir.path()), "is not recognized: the image begins with a5 5a 17 ee; accepted are a tar"),
            (
                AddImageOptions { format: Some(FormatChoice::Tar), ..options(&image, dir.path()) },
                "the detected format is raw disk image with XFS, but --format tar",
            ),
            (AddImageOptions { id: None, ..options(&image, dir.path()) }, "specify --id ID"),
            (AddImageOptions { id: Some("../a".to_owned()), ..options(&image, dir.path()) }, "must consist of letters"),
            (AddImageOptions { digest: Some("md5:0".to_owned()), ..options(&image, dir.path()) }, "md5"),
            (options(&image, from.path()), "is not a server's directory"),
            (options(Path::new("/no/such/image"), dir.path()), "/no/such/image"),
        ] {
            let error = copy_into_site(&add_options).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
            assert_eq!(list_names(&dir), [""; 0], "{words}");
        }
    }
}
