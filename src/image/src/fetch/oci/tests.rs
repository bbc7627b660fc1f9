//! Images from well-behaved and malicious registries on the loopback interface.

use super::*;
use crate::fetch::{parse_given_digest, resolve_image};
use crate::testing::{Tar, compress, pace};
use crate::{ImageSource, IncomingImage, PayloadKind};
use linux::http;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use testing::http::{Request, ResponseBehavior, Server};

mod passwords;
mod platforms;
mod signatures;
mod tokens;

use tokens::{tokens, unauthorized};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

/// Contents of a registry with the single repository `os/debian`. The keys are paths below the repository.
#[derive(Default, Clone)]
struct Contents(BTreeMap<String, Vec<u8>>);

impl Contents {
    fn blob(&mut self, bytes: &[u8]) -> String {
        self.0.insert(format!("blobs/{}", sha256(bytes)), bytes.to_vec());
        sha256(bytes)
    }

    fn layer(&mut self, kind: &str, bytes: &[u8]) -> Value {
        json!({"mediaType": kind, "digest": self.blob(bytes), "size": bytes.len()})
    }

    /// Adds a manifest under its digest and under a tag, and returns its descriptor.
    fn manifest(&mut self, tag: &str, manifest: &Value) -> Value {
        let bytes = serde_json::to_vec(manifest).unwrap();
        let digest = sha256(&bytes);
        self.0.insert(format!("manifests/{tag}"), bytes.clone());
        self.0.insert(format!("manifests/{digest}"), bytes.clone());
        json!({"mediaType": MANIFEST, "digest": digest, "size": bytes.len()})
    }

    fn act(&self, request: &Request) -> ResponseBehavior {
        let name = request.path.strip_prefix("/v2/os/debian/").unwrap_or_default();
        match self.0.get(name) {
            Some(bytes) => ResponseBehavior { body: Some(bytes.clone()), ..ResponseBehavior::default() },
            None => ResponseBehavior::status(404),
        }
    }

    fn serve(self) -> Server {
        Server::start(Vec::new(), move |request| self.act(request))
    }
}

/// Returns a registry that contains an image of one layer as `debian:12`, and the image's descriptor.
fn image() -> (Contents, Value) {
    let mut contents = Contents::default();
    let layer = contents.layer(LAYER, &compress("zstd", &Tar::new().file("etc/hostname", b"server").end()));
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [layer]});
    let descriptor = contents.manifest("12", &manifest);
    (contents, descriptor)
}

fn url(server: &Server, name: &str) -> String {
    server.url(&format!("os/debian{name}")).replace("http://", "oci://")
}

fn reach_at(url: String, digest: Option<String>) -> Result<ResolvedImage> {
    let digest = parse_given_digest(digest.as_deref(), &url)?;
    let source = ImageSource { url, digest, ..ImageSource::default() };
    resolve_image(&http::new_client()?, &source, &pace())
}

fn refusal(contents: Contents) -> String {
    reach_at(url(&contents.serve(), ":12"), None).unwrap_err().to_string()
}

#[test]
fn layers_of_an_image_are_unpacked_in_order() {
    let mut contents = Contents::default();
    let lower = compress("gzip", &Tar::new().file("which", b"lower").file("low", b"").end());
    let upper = compress("zstd", &Tar::new().file("which", b"upper").file("high", b"").end());
    let layers = [
        contents.layer("application/vnd.docker.image.rootfs.diff.tar.gzip", &lower),
        contents.layer("application/vnd.oci.image.layer.v1.tar+zstd", &upper),
    ];
    let docker = "application/vnd.docker.distribution.manifest.v2+json";
    let manifest = contents.manifest("12", &json!({"schemaVersion": 2, "mediaType": docker, "layers": layers}));
    let server = contents.serve();
    let reached = reach_at(url(&server, ":12"), None).unwrap();
    assert!(reached.layered);
    assert_eq!(reached.digest.to_string(), manifest["digest"]);
    assert_eq!(reached.size_bytes(), Some((lower.len() + upper.len()) as u64));
    let digests: Vec<_> = reached.parts.iter().map(|part| part.digest.to_string()).collect();
    assert_eq!(digests, [sha256(&lower), sha256(&upper)]);

    let root = tempfile::tempdir().unwrap();
    let incoming = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap();
    let seen = Mutex::new(Vec::new());
    let burned = incoming
        .burn_to_root(root.path(), &Default::default(), &|progress| seen.lock().unwrap().push(progress))
        .unwrap();
    assert_eq!(fs::read_to_string(root.path().join("which")).unwrap(), "upper");
    // The progress only increases, and covers all layers.
    let seen = seen.into_inner().unwrap();
    assert!(seen.is_sorted_by_key(|progress| progress.bytes), "{seen:?}");
    let (total, last) = ((lower.len() + upper.len()) as u64, seen.last().unwrap());
    assert!(seen.iter().all(|progress| progress.total_bytes == Some(total)), "{seen:?}");
    assert_eq!((last.bytes, burned.bytes), (total, total));
    assert!(root.path().join("low").exists() && root.path().join("high").exists());
}

#[test]
fn opaque_whiteout_of_the_root_preserves_foreign_files() {
    let mut contents = Contents::default();
    let lower = compress("gzip", &Tar::new().file("low", b"").end());
    let upper = compress("gzip", &Tar::new().file(".wh..wh..opq", b"").file("high", b"").end());
    let layers = [contents.layer(LAYER, &lower), contents.layer(LAYER, &upper)];
    contents.manifest("12", &json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers}));
    let reached = reach_at(url(&contents.serve(), ":12"), None).unwrap();
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("photos")).unwrap();
    fs::write(root.path().join("photos/mine"), "mine").unwrap();
    let incoming = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap().among_others();
    incoming.burn_to_root(root.path(), &Default::default(), &|_| ()).unwrap();
    let there = |name: &str| root.path().join(name).exists();
    assert_eq!(["photos/mine", "low", "high"].map(there), [true, false, true]);
}

#[test]
fn image_for_this_machine_is_selected_from_an_index() {
    let (mut contents, ours) = image();
    let platform = |os: &str, architecture: &str, of: &Value| {
        let mut descriptor = of.clone();
        descriptor["platform"] = json!({"os": os, "architecture": architecture});
        descriptor
    };
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let other = contents.manifest("other", &json!({"layers": []}));
    for kind in [INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"] {
        let manifests = [
            platform("linux", "s390x", &other),
            platform("windows", architecture, &other),
            platform("unknown", "unknown", &other),
            other.clone(),
            platform("linux", architecture, &ours),
        ];
        let index = contents.manifest("12", &json!({"mediaType": kind, "manifests": manifests}));
        let server = contents.clone().serve();
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        for digest in [None, Some(word(&index["digest"])), Some(word(&ours["digest"]))] {
            assert_eq!(reach_at(url(&server, ":12"), digest).unwrap().digest.to_string(), ours["digest"]);
        }
        let by_digest = format!("@{}", word(&index["digest"]));
        assert_eq!(reach_at(url(&server, &by_digest), None).unwrap().digest.to_string(), ours["digest"]);
        let error = reach_at(url(&server, ":12"), Some(sha256(b"x"))).unwrap_err().to_string();
        let said = format!(
            "the image's manifest has the digest {} (the index has the digest {})",
            word(&ours["digest"]),
            word(&index["digest"])
        );
        assert!(error.contains(&said) && error.contains(&sha256(b"x")), "{error}");
    }

    contents
        .manifest("12", &json!({"manifests": [platform("linux", "s390x", &ours), platform("plan9", "mips", &ours)]}));
    let error = refusal(contents.clone());
    assert!(error.contains("no image for linux/") && error.contains("linux/s390x, plan9/mips"), "{error}");

    let inner = contents.manifest("inner", &json!({"manifests": []}));
    contents.manifest("12", &json!({"manifests": [platform("linux", architecture, &inner)]}));
    assert!(refusal(contents.clone()).contains("the index contains another index"));

    let mut longer = platform("linux", architecture, &ours);
    longer["size"] = json!(7);
    contents.manifest("12", &json!({"manifests": [longer]}));
    let error = refusal(contents);
    assert!(error.contains("bytes, but 7 bytes are expected"), "{error}");
}

#[test]
fn refuses_invalid_manifests() {
    let (contents, _) = image();
    let layer = |kind: &str, digest: &str, size: u64| json!({"mediaType": kind, "digest": digest, "size": size});
    let digest = sha256(b"");
    let foreign = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
    let stays = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip";
    let cases = [
        (json!({"layers": []}), "0 layers"),
        (json!({"layers": vec![layer(LAYER, &digest, 1); 513]}), "513 layers"),
        (json!({"layers": [layer(foreign, &digest, 1)]}), "are not stored in the registry"),
        (json!({"layers": [layer(stays, &digest, 1)]}), "are not stored in the registry"),
        (json!({"layers": [layer("application/vnd.cncf.helm.chart", &digest, 1)]}), "is not a tar"),
        (json!({"layers": [layer(LAYER, "sha256:12", 1)]}), "has 2 digits"),
        (json!({"layers": [layer(LAYER, "../../../x", 1)]}), "is not a digest"),
        (json!({"layers": [layer(LAYER, &digest, u64::MAX), layer(LAYER, &digest, 1)]}), "the layer sizes overflows"),
        (json!({"layers": [{"mediaType": LAYER, "digest": digest, "size": -1}]}), "cannot parse the manifest"),
        (json!({"layers": [layer(LAYER, &digest, 1)]}), "cannot fetch the image"),
        (json!({"layers": [], "manifests": []}), "is both a manifest and an index"),
        (json!({"mediaType": INDEX, "layers": []}), "unsupported manifest type: `application/vnd.oci.image.index"),
        (json!({"schemaVersion": 1, "fsLayers": []}), "unsupported manifest type: ``"),
        (json!([]), "cannot parse the manifest"),
    ];
    for (manifest, says) in cases {
        let mut contents = contents.clone();
        contents.manifest("12", &manifest);
        let error = refusal(contents);
        assert!(error.contains(says), "{says}: {error}");
    }
    for (bytes, says) in [
        (b"<html>".to_vec(), "cannot parse the manifest"),
        (vec![b'['; 100_000], "cannot parse the manifest"),
        ([b"{\"layers\":".to_vec(), vec![b'['; 100_000]].concat(), "cannot parse the manifest"),
        (vec![b' '; (4 << 20) + 1], "longer than 4194304 bytes"),
    ] {
        let mut contents = contents.clone();
        contents.0.insert("manifests/12".to_owned(), bytes);
        let error = refusal(contents);
        assert!(error.contains(says) && error.len() < 500, "{says}: {error}");
    }
}

#[test]
fn refuses_content_that_differs_from_its_digest() {
    let (mut contents, descriptor) = image();
    let digest = descriptor["digest"].as_str().unwrap().to_owned();
    contents.0.insert(format!("manifests/{digest}"), b"{\"layers\": []}".to_vec());
    let server = contents.clone().serve();
    let error = reach_at(url(&server, &format!("@{digest}")), None).unwrap_err().to_string();
    assert!(error.contains("has the digest sha256:"), "{error}");

    // A blob of another size is detected before the burn. Another blob of the same size is detected by its digest.
    let (path, blob) = contents.0.iter().find(|(path, _)| path.starts_with("blobs/")).unwrap();
    let (path, blob) = (path.clone(), blob.clone());
    contents.0.insert(path.clone(), blob[1..].to_vec());
    let error = refusal(contents.clone());
    assert!(
        error.contains(&format!("is {} bytes, but the manifest specifies {}", blob.len() - 1, blob.len())),
        "{error}"
    );

    let forge =
        |number: u32| compress("zstd", &Tar::new().file("etc/hostname", format!("{number:06x}").as_bytes()).end());
    let forged = (0..1 << 16).map(forge).find(|forged| forged.len() == blob.len()).unwrap();
    contents.0.insert(path, forged);
    let reached = reach_at(url(&contents.serve(), ":12"), None).unwrap();
    let root = tempfile::tempdir().unwrap();
    let burned = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap().burn_to_root(
        root.path(),
        &Default::default(),
        &|_| (),
    );
    let error = burned.unwrap_err().to_string();
    assert!(error.contains("digest mismatch") && error.contains("/blobs/sha256:"), "{error}");
}

/// Registry with an image of two layers. The upper one does not match its digest.
fn with_a_forged_layer() -> Contents {
    let mut contents = Contents::default();
    let lower = compress("gzip", &Tar::new().file("which", b"lower").file("low", b"").end());
    let upper = compress("zstd", &Tar::new().file(".wh.low", b"").file("which", b"upper").end());
    let forged = compress("zstd", &Tar::new().file(".wh.low", b"").file("which", b"fraud").end());
    assert_eq!(upper.len(), forged.len());
    let layers = [contents.layer(LAYER, &lower), contents.layer(LAYER, &upper)];
    contents.manifest("12", &json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers}));
    contents.0.insert(format!("blobs/{}", sha256(&upper)), forged);
    contents
}

#[test]
fn layer_replaces_no_file_before_verification() {
    let server = with_a_forged_layer().serve();
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("which"), "mine").unwrap();
    let reached = reach_at(url(&server, ":12"), None).unwrap();
    let incoming = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap().among_others();
    let error = incoming.burn_to_root(root.path(), &Default::default(), &|_| ()).unwrap_err().to_string();
    assert!(error.contains("digest mismatch") && error.ends_with("nothing was unpacked"), "{error}");
    // The lower layer was verified. No file and no whiteout of the upper layer was applied.
    assert_eq!(fs::read_to_string(root.path().join("which")).unwrap(), "lower");
    let mut names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["low", "which"]);
}

#[test]
fn image_with_a_forged_layer_leaves_no_files() {
    let server = with_a_forged_layer().serve();
    let root = tempfile::tempdir().unwrap();
    let reached = reach_at(url(&server, ":12"), None).unwrap();
    let incoming = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap();
    let error = incoming.burn_to_root(root.path(), &Default::default(), &|_| ()).unwrap_err().to_string();
    assert!(error.contains("nothing was unpacked"), "{error}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "a lower layer alone can look like a system");
}

#[test]
fn redirected_blob_is_fetched_without_the_token() {
    let (contents, _) = image();
    let storage = contents.clone().serve();
    let (tokens, last) = tokens("token");
    let challenge = format!("Bearer realm=\"{}\"", tokens.url("token"));
    let elsewhere = storage.url("v2/os/debian/");
    let server = Server::start(Vec::new(), move |request| {
        if request.authorization.as_ref() != Some(&*last.lock().unwrap()) {
            return unauthorized(&challenge);
        }
        match request.path.strip_prefix("/v2/os/debian/").filter(|path| path.starts_with("blobs/")) {
            Some(blob) => ResponseBehavior {
                headers: vec![("Location", format!("{elsewhere}{blob}"))],
                ..ResponseBehavior::status(307)
            },
            None => contents.act(request),
        }
    });
    let reached = reach_at(url(&server, ":12"), None).unwrap();
    let root = tempfile::tempdir().unwrap();
    IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace())
        .unwrap()
        .burn_to_root(root.path(), &Default::default(), &|_| ())
        .unwrap();
    assert!(root.path().join("etc/hostname").exists());
    let requests = storage.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request.authorization.is_none()), "{requests:?}");
}

#[test]
fn unavailable_registry_is_replaced_by_a_mirror() {
    let (contents, descriptor) = image();
    let (down, up) = (Server::start(Vec::new(), |_| ResponseBehavior::status(503)), contents.serve());
    let source = ImageSource { url: url(&down, ":12"), mirrors: vec![url(&up, ":12")], ..ImageSource::default() };
    let reached = resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap();
    assert_eq!(
        (reached.digest.to_string().as_str(), &reached.url),
        (descriptor["digest"].as_str().unwrap(), &url(&up, ":12"))
    );
    assert!(reached.parts[0].mirrors.is_empty());
}

#[test]
fn refuses_md5_digests() {
    for digest in ["md5:0123456789abcdef0123456789abcdef", "MD5:0123456789abcdef0123456789abcdef"] {
        let why = parse_strong_digest(digest).unwrap_err();
        assert!(why.contains("md5 digests can be forged"), "{why}");
    }
    assert!(
        parse_strong_digest(&sha256(b"")).is_ok()
            && parse_strong_digest(&format!("sha512:{}", "0a".repeat(64))).is_ok()
    );
}

#[test]
fn layer_with_md5_digest_is_not_requested() {
    let mut contents = Contents::default();
    let md5 = "md5:0123456789abcdef0123456789abcdef";
    contents.0.insert(format!("blobs/{md5}"), b"forged".to_vec());
    let layer = json!({"mediaType": LAYER, "digest": md5, "size": 6});
    contents.manifest("12", &json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [layer]}));
    let server = contents.serve();
    let error = reach_at(url(&server, ":12"), None).unwrap_err().to_string();
    assert!(error.contains("md5 digests can be forged"), "{error}");
    assert!(
        !server.requests().iter().any(|request| request.path.contains("blobs")),
        "the layer is rejected before its blob is requested"
    );
}
