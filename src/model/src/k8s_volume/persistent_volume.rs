//! PersistentVolumes for prepared volumes. They equal the PersistentVolumes that the MetalK8s operator creates, but
//! lack the finalizer, which only a running operator could remove.

use super::volume_list_parser::{VOLUME, VOLUME_VERSION};
use super::{K8sVolume, VolumeContent};
use serde_json::{Map, Value, json};

/// Volume with its device on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackedVolume<'a> {
    pub volume: &'a K8sVolume,
    /// Persistent device path: `/dev/disk/by-uuid/…`.
    pub path: &'a str,
    pub size_bytes: u64,
}

/// Formats input for `kubectl apply -f`: a single list in JSON, which is also valid YAML.
pub fn format_manifests<'a>(volumes: impl IntoIterator<Item = BackedVolume<'a>>) -> String {
    let items: Vec<Value> = volumes.into_iter().map(|backed| build_persistent_volume(&backed)).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    // Serialization cannot fail, because strings and numbers can always be represented as JSON.
    format!("# PersistentVolumes of this node, made by drophammer: kubectl apply -f\n{list:#}\n")
}

/// Builds a PersistentVolume from the volume's template. Properties of the volume replace those of the template.
fn build_persistent_volume(BackedVolume { volume, path, size_bytes }: &BackedVolume) -> Value {
    let part = |name: &str| volume.template.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut metadata, mut spec): (Map<String, Value>, Map<String, Value>) = (part("metadata"), part("spec"));
    metadata.insert("name".to_owned(), json!(volume.name));
    if volume.is_exported {
        let owner = json!({"apiVersion": VOLUME_VERSION, "kind": VOLUME, "name": volume.name, "uid": volume.uid.to_string(),
            "controller": true, "blockOwnerDeletion": true});
        metadata.insert("ownerReferences".to_owned(), json!([owner]));
    }
    let mode = match volume.content {
        VolumeContent::Filesystem { .. } => "Filesystem",
        VolumeContent::Block => "Block",
    };
    let mut local = json!({"path": path});
    if let Some(format) = volume.class.fs_type {
        local["fsType"] = json!(format.name());
    }
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [volume.node]});
    let own = [
        ("accessModes", json!(["ReadWriteOnce"])),
        ("capacity", json!({"storage": size_bytes.to_string()})),
        ("volumeMode", json!(mode)),
        ("persistentVolumeReclaimPolicy", json!("Retain")),
        ("storageClassName", json!(volume.class.name)),
        ("local", local),
        ("nodeAffinity", json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}})),
    ];
    spec.extend(own.map(|(name, value)| (name.to_owned(), value)));
    if !volume.class.mount_options.is_empty() {
        spec.insert("mountOptions".to_owned(), json!(volume.class.mount_options));
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec})
}
