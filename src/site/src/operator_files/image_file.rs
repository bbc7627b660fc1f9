//! Parsing and validation of `images/*.yaml`.

use super::yaml_node::{deserialize_node, format_at, get_field, parse_document};
use super::{ImageLocation, ImageSpec, pull_secret};
use marked_yaml::Spanned;
use model::allocation::FinisherChoice;
use model::architecture::Architecture;
use serde::Deserialize;
use std::path::{Component, Path};

/// Supported URLs of an image, as the end of a message such as `… is neither …`.
const SUPPORTED_IMAGE_URLS: &str = "http://, https://, file:///PATH nor oci://HOST/REPOSITORY:TAG";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawImage {
    id: Spanned<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    description: String,
    url: Option<Spanned<String>>,
    file: Option<Spanned<String>>,
    #[serde(default)]
    mirrors: Vec<Spanned<String>>,
    digest: Option<Spanned<String>>,
    pull_secret: Option<pull_secret::RawPullSecret>,
    finish: Option<FinisherChoice>,
    architecture: Option<Architecture>,
}

/// Parses and validates an image file.
///
/// # Errors
/// Fails as [`parse_machine`](super::parse_machine) does.
pub fn parse_image(text: &str) -> Result<ImageSpec, String> {
    let node = parse_document(text)?;
    get_field(&node, "pull_secret").map_or(Ok(()), pull_secret::reject_scalar)?;
    let raw: RawImage = deserialize_node(&node)?;
    let location = match (&raw.url, &raw.file) {
        (Some(url), None) if is_image_url(url) => ImageLocation::Url(url.to_string()),
        (Some(url), None) => return Err(format_at(url, &format!("the url is neither {SUPPORTED_IMAGE_URLS}"))),
        (None, Some(file)) if is_relative_path(file) => ImageLocation::File(file.to_string()),
        (None, Some(file)) => return Err(format_at(file, "`file` must be a path below images/, without `..` in it")),
        (Some(_), Some(file)) => return Err(format_at(file, "the image has both `url` and `file`: specify one")),
        (None, None) => return Err(format_at(&raw.id, "the image has neither `url` nor `file`")),
    };
    let in_registry = |url: &str| url.starts_with("oci");
    for mirror in &raw.mirrors {
        if !is_image_url(mirror) {
            return Err(format_at(mirror, &format!("the mirror is neither {SUPPORTED_IMAGE_URLS}")));
        }
        if in_registry(mirror) != raw.url.as_ref().is_some_and(|url| in_registry(url)) {
            return Err(format_at(
                mirror,
                "mirrors of an image in a registry must be in registries; mirrors of any other image must not be in registries",
            ));
        }
    }
    raw.digest.as_ref().map_or(Ok(()), check_digest)?;
    if raw.id.trim().is_empty() {
        return Err(format_at(&raw.id, "the image's id is empty"));
    }
    let pull_secret = raw.pull_secret.map(|secret| secret.validate(raw.url.as_ref())).transpose()?;
    let digest = raw.digest.map(|digest| digest.to_lowercase());
    let mirrors = raw.mirrors.iter().map(|mirror| mirror.to_string()).collect();
    let (id, pull_secrets) = (raw.id.to_string(), pull_secret.into_iter().collect());
    let (finish, architecture, description) = (raw.finish, raw.architecture, raw.description);
    Ok(ImageSpec {
        id,
        name: raw.name,
        description,
        at: location,
        mirrors,
        digest,
        pull_secrets,
        finish,
        architecture,
        contents: None,
    })
}

fn check_digest(digest: &Spanned<String>) -> Result<(), String> {
    let (kind, hex) = digest.split_once(':').unwrap_or_default();
    let length = [("sha256", 64), ("sha512", 128)].iter().find(|(name, _)| *name == kind).map(|(_, length)| *length);
    if length != Some(hex.len()) || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format_at(digest, "the digest is neither sha256: with 64 nor sha512: with 128 hexadecimal digits"));
    }
    Ok(())
}

fn is_image_url(url: &str) -> bool {
    ["http://", "https://", "file:///", "oci://", "oci+http://"].iter().any(|scheme| url.starts_with(scheme))
}

fn is_relative_path(path: &str) -> bool {
    !path.is_empty()
        && !path.ends_with('/')
        && Path::new(path).components().all(|component| matches!(component, Component::Normal(_)))
}
