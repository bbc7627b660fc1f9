//! JSON Schema of an image file, `images/*.yaml` of `drophammer serve`. It is written by hand, because the Rust types
//! also contain positions in the file, which would become part of a derived schema.

use serde_json::{Value, json};

pub(crate) fn image_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Image",
        "description": "An image file, in images/ of a server's directory. The file contains either the field `file` or the field `url`.",
        "type": "object",
        "additionalProperties": false,
        "required": ["id"],
        "oneOf": [
            {"required": ["file"], "properties": {"file": {"type": "string"}}},
            {"required": ["url"], "properties": {"url": {"type": "string"}}},
        ],
        "properties": {
            "id": {
                "type": "string",
                "pattern": r"\S",
                "description": "Operating system, hyphen and version, such as debian-13.0.20261101. The constraints of layouts select images by this id.",
                "examples": ["debian-12.0.20261101"],
            },
            "name": {"type": ["string", "null"], "description": "Display name."},
            "description": {"type": ["string", "null"], "description": "Description for display only."},
            "file": {
                "type": ["string", "null"],
                "pattern": "^[^/]",
                "description": "File that contains the image, as a path below images/. The server serves this file.",
                "examples": ["debian-12.tar.zst"],
            },
            "url": location("Location of the image: http://, https://, file:///PATH in the ramdisk, or oci://HOST/REPOSITORY:TAG."),
            "mirrors": {
                "type": ["array", "null"],
                "items": location("Another location of the same image."),
                "description": "Other locations of the same image, in the order in which the agent tries them.",
            },
            "digest": {
                "type": ["string", "null"],
                "pattern": "^(sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$",
                "description": "Digest of the image as downloaded, before decompression; for an image in a registry, the digest of its manifest. For an image in a file, the server computes the digest.",
            },
            "pull_secret": pull_secret_schema(),
            "finish": {
                "enum": ["auto", "image", "builtin", "none", null],
                "default": "auto",
                "description": "Program that makes the image bootable on a machine: auto (the image's installer if the image has one, otherwise drophammer), image (the image's installer), builtin (drophammer), none (no program).",
            },
            "architecture": {
                "enum": ["amd64", "arm64", null],
                "description": "Architecture of the machines for which the image is built. Machines of another architecture refuse the image. If the field is missing, the architecture in the image's manifest applies.",
            },
        },
    })
}

fn location(description: &str) -> Value {
    json!({
        "type": ["string", "null"],
        "pattern": "^(https?://|file:///|oci://|oci\\+http://)",
        "description": description,
    })
}

fn pull_secret_schema() -> Value {
    let word = |description: &str| json!({"type": ["string", "number", "null"], "description": description});
    json!({
        "type": ["object", "null"],
        "description": "Registry credentials. They are sent only to the host and port in `url`, and to `token_service`.",
        "additionalProperties": false,
        "properties": {
            "username": word("User name at the registry."),
            "password": word("Password, or a token that the registry accepts instead."),
            "token_service": {
                "type": "string",
                "description": "Host of the registry's token service, such as gitlab.example.org; required if this host differs from the host in `url`. Append the port if it is not 443: gitlab.example.org:8443.",
            },
            "identitytoken": word("Identity token, which some registries issue during `docker login`, and accept \
            instead of the password."),
        },
        "anyOf": [
            {"required": ["username", "password"]},
            {"required": ["identitytoken"]},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use site::operator_files;
    use std::collections::BTreeSet;

    /// Returns the fields that the error message lists if an unknown field resembles none of the known fields.
    fn known(text: &str) -> BTreeSet<String> {
        let said = operator_files::parse_image(text).unwrap_err();
        let (_, known) = said.split_once("; available: ").unwrap();
        known.lines().next().unwrap().split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn image_schema_has_the_fields_of_the_parser() {
        let schema = image_schema();
        let fields =
            |schema: &Value| schema["properties"].as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(fields(&schema), known("00: 1\n"));
        let secret = known("id: i\nurl: oci://r/d:1\npull_secret: {00: 1}\n");
        assert_eq!(fields(&schema["properties"]["pull_secret"]), secret);
    }

    #[test]
    fn schema_and_parser_agree_on_images() {
        let validator = jsonschema::draft202012::new(&image_schema()).unwrap();
        let hex = "0a".repeat(32);
        for (document, good) in [
            (json!({"id": "i", "file": "d/i.tar.zst", "digest": format!("sha256:{hex}")}), true),
            (json!({"id": "i", "file": "i.tar", "url": null, "name": null, "finish": "none"}), true),
            (json!({"id": "i", "file": "i.tar", "mirrors": ["https://h/i.tar", "file:///mnt/i.tar"]}), true),
            (json!({"id": "i", "url": "oci+http://h:5000/i:1"}), true),
            (json!({"id": "i", "url": "oci://h/i:1", "pull_secret": {"username": "u", "password": 1234}}), true),
            (json!({"id": "i", "url": "oci://h/i:1", "pull_secret": {"identitytoken": "t"}}), true),
            (json!({"id": "i", "url": "oci://h/i:1", "pull_secret": {"username": "u"}}), false),
            (json!({"id": "i", "url": "oci://h/i:1", "pull_secret": {"user": "u", "password": "p"}}), false),
            (json!({"id": "i", "url": "oci://h/i:1", "pull_secret": "p"}), false),
            (json!({"id": "i"}), false),
            (json!({"id": "i", "url": "http://h/i", "file": "i"}), false),
            (json!({"id": " ", "file": "i"}), false),
            (json!({"id": "i", "file": "/i"}), false),
            (json!({"id": "i", "url": "ftp://h/i"}), false),
            (json!({"id": "i", "file": "i", "digest": "md5:00"}), false),
            (json!({"id": "i", "file": "i", "finish": "us"}), false),
            (json!({"id": "i", "file": "i", "architecture": "arm64"}), true),
            (json!({"id": "i", "file": "i", "architecture": "aarch64"}), false),
            (json!({"id": "i", "file": "i", "sha": 1}), false),
        ] {
            let read = operator_files::parse_image(&document.to_string());
            assert_eq!((validator.is_valid(&document), read.is_ok()), (good, good), "{document}: {read:?}");
        }
    }
}
