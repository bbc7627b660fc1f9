//! Platforms that indexes and configurations declare.

use super::*;

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const OWN: &str = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };

#[test]
fn entries_without_a_complete_platform_do_not_hide_the_image() {
    let (mut contents, ours) = image();
    let with = |platform: Value| {
        let mut entry = ours.clone();
        entry["platform"] = platform;
        entry
    };
    let own = with(json!({"os": "linux", "architecture": OWN}));
    let empty = json!({"os": "linux", "architecture": ""});
    for other in
        [json!({}), json!({"os": "linux"}), json!({"architecture": OWN}), json!(null), empty, json!({"os": null})]
    {
        let document = contents.manifest("other", &json!({"layers": []}));
        let mut entry = document.clone();
        entry["platform"] = other.clone();
        contents.manifest("12", &json!({"mediaType": INDEX, "manifests": [entry, own.clone()]}));
        let reached = reach_at(url(&contents.clone().serve(), ":12"), None);
        assert_eq!(reached.unwrap().digest.to_string(), ours["digest"], "{other}");
    }
    // A single entry need not declare a platform. If several entries do not declare their platforms, none can be
    // selected.
    for platform in [json!(null), json!({})] {
        contents.manifest("12", &json!({"manifests": [with(platform.clone())]}));
        assert_eq!(reach_at(url(&contents.clone().serve(), ":12"), None).unwrap().digest.to_string(), ours["digest"]);
        contents.manifest("12", &json!({"manifests": [with(platform.clone()), with(platform)]}));
        assert!(refusal(contents.clone()).ends_with("the entries of the index do not declare their platforms"));
    }
}

#[test]
fn config_of_a_bare_manifest_declares_its_platform() {
    for (config, reason) in [
        (json!({"os": "linux", "architecture": OWN}), None),
        (json!({"os": "linux", "architecture": "s390x"}), Some("only images for: linux/s390x")),
        (json!({"os": "windows", "architecture": OWN}), Some("only images for: windows/")),
        (json!({}), None),
        (json!("no object"), None),
    ] {
        let (mut contents, _) = image();
        let layer = contents.layer(LAYER, &compress("zstd", &Tar::new().file("a", b"").end()));
        let config = contents.layer(CONFIG, &serde_json::to_vec(&config).unwrap());
        let manifest = contents.manifest("12", &json!({"mediaType": MANIFEST, "config": config, "layers": [layer]}));
        let reached = reach_at(url(&contents.clone().serve(), ":12"), None);
        match reason {
            None => assert_eq!(reached.unwrap().digest.to_string(), manifest["digest"]),
            Some(reason) => assert!(reached.unwrap_err().to_string().contains(reason), "{reason}"),
        }
        // The result is the same if the manifest is the only entry of an index without platforms.
        contents.manifest("12", &json!({"manifests": [manifest]}));
        assert_eq!(reach_at(url(&contents.serve(), ":12"), None).is_err(), reason.is_some());
    }
}

/// Registries also serve indexes that Go programs would not write: with `null`, missing fields, or values of another
/// type.
#[test]
fn unusual_entries_of_other_platforms_do_not_hide_the_image() {
    let (mut contents, ours) = image();
    let mut own = ours.clone();
    own["platform"] = json!({"os": "Linux", "architecture": OWN.to_uppercase()});
    let digest = ours["digest"].clone();
    for other in [
        json!({"mediaType": null, "digest": digest, "size": 7, "platform": {"os": "linux", "architecture": "s390x"}}),
        json!({"digest": digest, "platform": {"os": "linux", "architecture": "s390x"}}),
        json!({"size": 7}),
        json!({"digest": digest, "size": 7, "platform": "linux/s390x"}),
        json!({"digest": digest, "size": 7, "platform": {"os": "linux", "architecture": OWN, "variant": "v3"}}),
    ] {
        contents.manifest("12", &json!({"mediaType": null, "config": null, "manifests": [other, own]}));
        let reached = reach_at(url(&contents.clone().serve(), ":12"), None);
        assert_eq!(reached.unwrap().digest.to_string(), ours["digest"], "{other}");
    }
    // Without a digest, the entry for this machine cannot be used.
    own.as_object_mut().unwrap().remove("digest");
    contents.manifest("12", &json!({"manifests": [own]}));
    assert!(reach_at(url(&contents.serve(), ":12"), None).is_err());
}

#[test]
fn only_the_variant_that_every_processor_supports_is_selected() {
    let default = if OWN == "amd64" { "v1" } else { "v8" };
    for (variants, is_accepted) in [
        (&["v9", default][..], true),
        (&["v9", ""], true),
        (&["", default], true),
        (&["v9"], false),
        (&["v9", "v10"], false),
    ] {
        let (mut contents, ours) = image();
        let mut entries = Vec::new();
        for variant in variants {
            let mut entry = ours.clone();
            entry["platform"] = json!({"os": "linux", "architecture": OWN, "variant": variant});
            entries.push(entry);
        }
        contents.manifest("12", &json!({"manifests": entries}));
        if is_accepted {
            assert!(reach_at(url(&contents.serve(), ":12"), None).is_ok(), "{variants:?}");
        } else {
            let refused = refusal(contents);
            assert!(refused.contains(&format!("only images for: linux/{OWN}/v9")), "{refused}");
        }
    }
}
