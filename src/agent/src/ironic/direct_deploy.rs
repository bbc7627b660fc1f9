//! Arguments of the deploy interface `direct`: a whole-disk image and a config drive.

use super::deploy_args::{self, plan_refusal};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::bounded_read::read_whole;
use common::error::Result;
use flate2::read::MultiGzDecoder;
use model::allocation::{AllocatedImage, Allocation, BootOrder, FinisherChoice};
use serde_json::{Map, Value};
use uuid::Uuid;

/// Maximum size of a config drive, in bytes. Ironic's own agent has the same limit.
const DRIVE_BYTES: u64 = 64 << 20;

/// Fields of `image_info` for unsupported features. An image with such a field is refused, because the image would be
/// installed without the feature.
const REFUSED: [(&str, &str); 4] = [
    ("image_server_user", SECRETS),
    ("image_request_authorization", SECRETS),
    ("proxies", "drophammer cannot download images through a proxy"),
    ("oci_pull_secret", SECRETS),
];
/// Fields that a conductor sends only with a partition image. A field identifies a partition image even if its value is
/// empty.
const PARTITION_IMAGE_FIELDS: [&str; 4] = ["root_gb", "root_mb", "image_type", "boot_option"];
const PARTITION_IMAGE: &str = "drophammer writes whole-disk images, but this is a partition image; use a whole-disk image, or \
    the deploy interface `custom-agent` with a layout";
const SECRETS: &str = "the step `write_image` does not send credentials to the image server";

/// Accepted hash algorithms, each with the number of hexadecimal digits of a hash. md5 is rejected, because it is not
/// collision-resistant.
const HASHES: [(&str, usize); 2] = [("sha256", 64), ("sha512", 128)];

/// Supported disk formats. The actual format is detected by content.
const FORMATS: [&str; 2] = ["raw", "qcow2"];

/// Parses the image of `image_info`.
///
/// # Errors
/// Fails if the image cannot be written.
pub(crate) fn parse_image_info(args: &Map<String, Value>) -> Result<AllocatedImage> {
    let Some(info) = args.get("image_info").and_then(Value::as_object) else {
        return Err(plan_refusal("write_image requires image_info"));
    };
    if let Some(word) = PARTITION_IMAGE_FIELDS.iter().find(|word| info.contains_key(**word)) {
        return Err(plan_refusal(&format!("image_info.{word}: {PARTITION_IMAGE}")));
    }
    let given = |word: &str| info.get(word).filter(|value| !value.is_null());
    if let Some((word, why)) = REFUSED.iter().find(|(word, _)| given(word).is_some()) {
        return Err(plan_refusal(&format!("image_info.{word}: {why}")));
    }
    let text = |word: &str| given(word).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(other) = text("disk_format").filter(|format| !FORMATS.contains(format)) {
        return Err(plan_refusal(&format!(
            "image_info.disk_format: {other} is not supported; use {formats}",
            formats = FORMATS.join(" or ")
        )));
    }
    let mut urls = given("urls").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let Some(url) = urls.next().filter(|url| url.starts_with("http://") || url.starts_with("https://")) else {
        return Err(plan_refusal("image_info.urls: the first URL must begin with http:// or https://"));
    };
    let told = text("os_hash_algo").zip(text("os_hash_value"));
    let told = told.filter(|(algorithm, _)| HASHES.iter().any(|(name, _)| name == algorithm));
    let digest = told.map(|(algorithm, value)| format!("{algorithm}:{value}"));
    let Some(digest) = digest.or_else(|| text("checksum").and_then(parse_checksum)) else {
        return Err(plan_refusal(
            "image_info has neither sha256 nor sha512; set image_os_hash_algo and image_os_hash_value of the node",
        ));
    };
    Ok(AllocatedImage {
        id: text("id").map_or_else(|| deploy_args::image_name(url), deploy_args::image_name),
        url: url.to_owned(),
        mirrors: urls.map(str::to_owned).collect(),
        digest: Some(digest),
        finish: Some(FinisherChoice::None),
        ..AllocatedImage::default()
    })
}

/// Detects the algorithm of a checksum by the number of digits in the checksum.
fn parse_checksum(text: &str) -> Option<String> {
    let (name, _) = HASHES.iter().find(|(_, digits)| *digits == text.len())?;
    text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| format!("{name}:{text}"))
}

/// Creates an allocation that contains only the image.
pub(crate) fn image_allocation(image: AllocatedImage) -> Allocation {
    let id = Uuid::new_v4().to_string();
    Allocation { id, image, role: "machine".to_owned(), boot_order: BootOrder::Disk, ..Allocation::default() }
}

/// Decodes the config drive, which a conductor sends as gzip in base64.
///
/// # Errors
/// Fails if the drive has another format, or exceeds the size limit.
pub(crate) fn decode_config_drive(args: &Map<String, Value>) -> Result<Option<Vec<u8>>> {
    let refuse = |why: &str| Err(plan_refusal(&format!("configdrive: {why}")));
    let within = args.get("image_info").and_then(|info| info.get("configdrive"));
    let text = match args.get("configdrive").filter(|drive| !drive.is_null()).or(within) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text,
        Some(_) => return refuse("the config drive must be gzip data in base64"),
    };
    if text.starts_with("http://") || text.starts_with("https://") {
        return refuse(
            "drophammer does not fetch a config drive from a URL; set [deploy] configdrive_use_object_store = false in the conductor's configuration",
        );
    }
    let packed: String = text.split_whitespace().collect();
    let Ok(packed) = STANDARD.decode(packed) else { return refuse("the config drive is not base64") };
    match read_whole(MultiGzDecoder::new(packed.as_slice()), DRIVE_BYTES) {
        Err(error) => refuse(&format!("the config drive is not gzip data: {error}")),
        Ok(None) => refuse("the unpacked config drive is larger than 64 MiB"),
        Ok(content) => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use serde_json::json;
    use std::io::Write;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// Returns `image_info` as Ironic 39 sends it.
    fn info() -> Value {
        json!({"id": "disk.raw", "urls": ["http://h/disk.raw"], "disk_format": "raw", "container_format": "bare",
            "stream_raw_images": true, "os_hash_algo": "sha512", "os_hash_value": "ab", "node_uuid": "n"})
    }

    #[test]
    fn whole_disk_image_is_parsed_and_others_are_refused() {
        let image = |change: fn(&mut Value)| {
            let mut info = info();
            change(&mut info);
            super::parse_image_info(&map(json!({"image_info": info}))).map_err(|error| error.to_string())
        };
        let read = image(|_| ()).unwrap();
        assert_eq!((read.id.as_str(), read.url.as_str()), ("disk", "http://h/disk.raw"));
        assert_eq!((read.digest.as_deref(), read.finish), (Some("sha512:ab"), Some(FinisherChoice::None)));
        let read = image(|info| {
            info["os_hash_value"] = json!(null);
            info["checksum"] = json!("0".repeat(64));
        });
        assert_eq!(read.unwrap().digest.unwrap()[..8], *"sha256:0");
        for (change, why) in [
            (
                (|info| info["root_mb"] = json!(100)) as fn(&mut Value),
                "image_info.root_mb: drophammer writes whole-disk",
            ),
            (|info| info["root_gb"] = json!(null), "image_info.root_gb: drophammer writes whole-disk"),
            (|info| info["image_type"] = json!("partition"), "this is a partition image"),
            (|info| info["image_request_authorization"] = json!("YQ=="), "does not send credentials"),
            (|info| info["disk_format"] = json!("vmdk"), "vmdk is not supported; use raw or qcow2"),
            (|info| info["urls"] = json!(["file:///etc/passwd"]), "image_info.urls"),
            (|info| info["os_hash_algo"] = json!(null), "neither sha256 nor sha512"),
            (|info| info["os_hash_algo"] = json!("md5"), "neither sha256 nor sha512"),
        ] {
            let error = image(change).unwrap_err();
            assert!(error.contains(why) && error.contains("nothing was written"), "{error}");
        }
        assert!(super::parse_image_info(&Map::new()).is_err());
    }

    #[test]
    fn config_drive_is_unpacked_within_limits() {
        let pack = |content: &[u8]| {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            gzip.write_all(content).unwrap();
            STANDARD.encode(gzip.finish().unwrap())
        };
        let drive = |given: Value| {
            super::decode_config_drive(&map(json!({"configdrive": given}))).map_err(|error| error.to_string())
        };
        assert_eq!(drive(json!(null)).unwrap(), None);
        assert_eq!(drive(json!(pack(b"an ISO"))).unwrap().unwrap(), b"an ISO");
        assert_eq!(
            super::decode_config_drive(&map(json!({"image_info": {"configdrive": pack(b"x")}}))).unwrap().unwrap(),
            b"x"
        );
        for (given, why) in [
            (json!({"meta_data": {}}), "must be gzip"),
            (json!("http://swift/x"), "configdrive_use_object_store"),
            (json!("*"), "not base64"),
            (json!("aGVsbG8="), "not gzip"),
            (json!(pack(&vec![0; 65 << 20])), "larger than 64 MiB"),
        ] {
            assert!(drive(given).unwrap_err().contains(why), "{why}");
        }
    }
}
