//! The schema of an image's file, `images/*.yaml` of `drophammer serve`; written here for the same reason as that of machines.

use serde_json::{Value, json};

pub fn schema() -> Value {
    let place = |description: &str| {
        json!({
            "type": ["string", "null"],
            "pattern": "^(https?://|file:///|oci://|oci\\+http://)",
            "description": description,
        })
    };
    let word = |description: &str| json!({"type": ["string", "number", "null"], "description": description});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Image",
        "description": "A file of images/, as `drophammer serve` reads it. It has a file or a url.",
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
                "description": "OS, hyphen, version. Constraints of layouts look at it.",
                "examples": ["debian-12.0.20261101"],
            },
            "name": {"type": ["string", "null"], "description": "For people."},
            "description": {"type": ["string", "null"], "description": "For people."},
            "file": {
                "type": ["string", "null"],
                "pattern": "^[^/]",
                "description": "A path below images/, which the server serves.",
                "examples": ["debian-12.tar.zst"],
            },
            "url": place("Where the image is: http://, https://, file:///PATH in the ramdisk, or oci://HOST/REPOSITORY:TAG."),
            "mirrors": {
                "type": ["array", "null"],
                "items": place("Another place with the same image."),
                "description": "Other places with the same image, in the order in which they are tried.",
            },
            "digest": {
                "type": ["string", "null"],
                "pattern": "^(sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$",
                "description": "Of the file as it travels; of an image in a registry that of its manifest. That of a file is computed.",
            },
            "pull_secret": {
                "type": ["object", "null"],
                "description": "For a registry that wants a password. It goes to host and port of url alone, and to token_service.",
                "additionalProperties": false,
                "properties": {
                    "username": word("As the registry knows it."),
                    "password": word("Its password, or a token that the registry takes in its place."),
                    "token_service": {
                        "type": "string",
                        "description": "Host of the registry's token service, with a port other than 443, if it is not that of url: gitlab.example.org.",
                    },
                    "identitytoken": word("What `docker login` keeps where the registry gives it in place of the password."),
                },
                "anyOf": [
                    {"required": ["username", "password"]},
                    {"required": ["identitytoken"]},
                ],
            },
            "finish": {
                "enum": ["auto", "image", "builtin", "none", null],
                "default": "auto",
                "description": "What makes the image boot on a machine: its installer if it has one or else drophammer, its installer, drophammer, nobody.",
            },
        },
    })
}

#[cfg(feature = "serve")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::input;
    use std::collections::BTreeSet;

    /// What the reader says that there is, when it is asked for something that nothing is like.
    fn known(text: &str) -> BTreeSet<String> {
        let said = input::image(text).unwrap_err();
        let (_, known) = said.split_once("; available: ").unwrap();
        known.lines().next().unwrap().split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn the_schema_has_the_fields_of_the_reader() {
        let schema = schema();
        let fields =
            |schema: &Value| schema["properties"].as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(fields(&schema), known("00: 1\n"));
        let secret = known("id: i\nurl: oci://r/d:1\npull_secret: {00: 1}\n");
        assert_eq!(fields(&schema["properties"]["pull_secret"]), secret);
    }

    #[test]
    fn schema_and_reader_agree_on_images() {
        let validator = jsonschema::draft202012::new(&schema()).unwrap();
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
            (json!({"id": "i", "file": "i", "sha": 1}), false),
        ] {
            let read = input::image(&document.to_string());
            assert_eq!((validator.is_valid(&document), read.is_ok()), (good, good), "{document}: {read:?}");
        }
    }
}
