//! JSON Schema of `IMAGE.manifest`, which `image pack` writes next to an image. It is written by hand, because the Rust
//! types of manifests do not exist in builds without the code that reads manifests.

use model::image_boot_contents::BootContents;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

pub(crate) fn manifest_schema() -> Value {
    let generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.meta_schema = None;
            settings.inline_subschemas = true;
        })
        .into_generator();
    let contents = generator.into_root_schema_for::<BootContents>().to_value();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Manifest",
        "description": "Manifest of an image, stored next to the image as IMAGE.manifest. The field `contents` describes the unpacked tree; all other fields describe the image as downloaded, before decompression.",
        "type": "object",
        "required": ["version", "size_bytes", "digest", "chunk_bytes", "chunks"],
        "properties": {
            "version": {"const": 1},
            "image": {"type": ["string", "null"], "description": "Id of the image: OS, hyphen, version. A signature of the manifest covers this id."},
            "size_bytes": {"type": "integer", "minimum": 0},
            "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$", "description": "Digest of the whole image."},
            "chunk_bytes": {"type": "integer", "minimum": 65536, "maximum": 4_194_304, "description": "Length of each chunk except the last, in bytes."},
            "contents": contents,
            "chunks": {
                "type": "array",
                "items": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"},
                "description": "SHA-256 of each chunk, in order.",
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageManifest;

    #[test]
    fn schema_and_parser_agree_on_manifests() {
        let validator = jsonschema::draft202012::new(&manifest_schema()).unwrap();
        let made = ImageManifest::compute(&[7; 100_000][..], 100_000).unwrap();
        let contents = BootContents {
            kernels: vec!["/boot/vmlinuz".to_owned()],
            init: Some("/init".to_owned()),
            ..BootContents::default()
        };
        let made =
            serde_json::to_value(ImageManifest { image: Some("os-1".to_owned()), contents: Some(contents), ..made })
                .unwrap();
        let with = |field: &str, value: Value| {
            let mut changed = made.clone();
            changed[field] = value;
            changed
        };
        for (document, good) in [
            (made.clone(), true),
            (with("version", 2.into()), false),
            (with("digest", "md5:00".into()), false),
            (with("chunk_bytes", 1.into()), false),
            (with("chunks", json!(["0a"])), false),
            (with("contents", json!({"kernels": "all"})), false),
        ] {
            let read = ImageManifest::parse(document.to_string().as_bytes());
            assert_eq!((validator.is_valid(&document), read.is_ok()), (good, good), "{document}: {read:?}");
        }
    }
}
