//! Tests of the parser for lists of resources, and of the manifests for prepared volumes.

use super::*;
use serde_json::json;

fn class() -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": {"fsType": "ext4", "mkfsOptions": "[\"-m\", \"0\"]"}, "mountOptions": ["noatime"]})
}

fn volume(name: &str, uid: u8, spec: Value) -> Value {
    let mut spec = spec;
    spec["nodeName"] = json!("node-1");
    spec["storageClassName"] = json!("fast");
    json!({"apiVersion": "storage.metalk8s.scality.com/v1alpha1", "kind": "Volume",
        "metadata": {"name": name, "uid": format!("9474CDA7-0dbe-40fc-9842-3cb0404a72{uid:02x}")}, "spec": spec})
}

fn problems(list: Value) -> Vec<String> {
    parse_volumes(&list).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn every_volume_type_is_parsed_with_its_class() {
    let list = json!([
        volume("a", 1, json!({"rawBlockDevice": {"devicePath": "/dev/sdb"}})),
        volume("b", 2, json!({"rawBlockDevice": {"discover": {"size": ">= 100"}}, "mode": "Block"})),
        class(),
        volume("c", 3, json!({"lvmLogicalVolume": {"vgName": "vg00", "size": "1Gi"}, "mode": "Filesystem"})),
        volume("d", 4, json!({"sparseLoopDevice": {"size": 4096}})),
    ]);
    let read = parse_volumes(&list).unwrap();
    let sources: Vec<&VolumeSource> = read.iter().map(|volume| &volume.source).collect();
    let hints = [("size".to_owned(), ">= 100".to_owned())].into();
    assert_eq!(
        sources,
        [
            &VolumeSource::Raw("/dev/sdb".into()),
            &VolumeSource::Discover(hints),
            &VolumeSource::Logical { group: "vg00".into(), size_bytes: 1 << 30 },
            &VolumeSource::Sparse { size_bytes: 4096 },
        ]
    );
    assert_eq!(
        read[0].content,
        VolumeContent::Filesystem { format: FilesystemFormat::Ext4, options: vec!["-m".into(), "0".into()] }
    );
    assert_eq!(read[1].content, VolumeContent::Block);
    assert_eq!(read[3].sparse_path(), "/var/lib/metalk8s/storage/sparse/9474cda7-0dbe-40fc-9842-3cb0404a7204");
    assert_eq!(read[2].describe_kind(), "lvmLogicalVolume ext4");
}

/// Volumes in the format of MetalK8s' pillar.
#[test]
fn pillar_of_metalk8s_is_parsed() {
    let text = include_str!("../../../../testdata/volumes/pillar.json");
    let pillar: BTreeMap<String, Value> = serde_json::from_str(text).unwrap();
    let read = parse_volumes(&pillar.into_values().collect()).unwrap();
    let said: Vec<String> =
        read.iter().map(|volume| format!("{} {} {}", volume.name, volume.uid, volume.describe_kind())).collect();
    assert_eq!(
        said,
        [
            "raw-block 1d78810a-3787-4ca4-b712-50a269e42560 rawBlockDevice Block",
            "raw-fs 9474cda7-0dbe-40fc-9842-3cb0404a725a rawBlockDevice ext4",
            "raw-xfs 0f3d3f1a-0dbe-40fc-9842-3cb0404a725b rawBlockDevice xfs",
        ]
    );
}

#[test]
fn example_is_a_storage_class_for_local_volumes() {
    let text = include_str!("../../../../examples/storage-class.yaml");
    let options = marked_yaml::LoaderOptions::default().prevent_coercion(true);
    let mut example = common::yaml::to_json(&common::yaml::read_document(text, options).unwrap());
    for (field, expected) in [
        ("apiVersion", "storage.k8s.io/v1"),
        ("provisioner", "kubernetes.io/no-provisioner"),
        ("volumeBindingMode", "WaitForFirstConsumer"),
    ] {
        assert_eq!(example[field], expected);
    }
    let raw = volume("a", 1, json!({"rawBlockDevice": {"devicePath": "/dev/sdb"}}));
    let read = parse_volumes(&json!([raw, example.take()])).unwrap();
    assert_eq!(
        (read[0].class.mount_options.clone(), read[0].class.fs_type),
        (vec!["noatime".into()], Some(FilesystemFormat::Ext4))
    );
}

#[test]
fn null_and_classes_alone_are_an_empty_list() {
    assert_eq!(parse_volumes(&Value::Null), Ok(Vec::new()));
    assert_eq!(parse_volumes(&json!([class()])), Ok(Vec::new()));
    assert_eq!(problems(json!({"a": 1})), ["volumes: must be a list of Volume and StorageClass resources"]);
}

#[test]
fn reports_every_problem_with_its_path() {
    let mut class = class();
    class["parameters"] = json!({"fsType": "ext3", "mkfsOptions": "-m 0"});
    let mut nameless = volume("A_b", 2, json!({"sparseLoopDevice": {"size": "0"}}));
    nameless["metadata"]["uid"] = json!("9474cda70dbe40fc98423cb0404a7201");
    let list = json!([
        class,
        nameless,
        volume("b", 3, json!({})),
        volume("c", 4, json!({"rawBlockDevice": {}, "mode": "Raw"})),
        volume("d", 4, json!({"rawBlockDevice": {"devicePath": "sdb"}, "sparseLoopDevice": {"size": "1"}})),
        volume("e", 5, json!({"rawBlockDevice": {"discover": {"weight": "1"}}, "mode": "Block"})),
        volume("f", 6, json!({"lvmLogicalVolume": {"vgName": "-x", "size": "1.5Gi"}, "mode": "Block"})),
        {"kind": "Pod"},
        {"kind": "Volume", "apiVersion": "v1"},
    ]);
    let said = problems(list);
    for expected in [
        "volumes[7].kind: must be Volume or StorageClass, found Pod",
        "volumes[8].apiVersion: must be storage.metalk8s.scality.com/v1alpha1 for a Volume, found \"v1\"",
        "volumes[0].parameters.fsType: must be ext4 or xfs, found \"ext3\"",
        "volumes[0].parameters.mkfsOptions: must be a string that contains a JSON list of words, found \"-m 0\"",
        "volumes[1].metadata.name: must be a name of lower-case letters",
        "volumes[1].metadata.uid: must be a UUID, found \"9474cda70dbe40fc98423cb0404a7201\"",
        "volumes[1].spec.sparseLoopDevice.size: must be a whole number with a unit, such as 10Gi or 500M, found \"0\"",
        "volumes[1].spec.storageClassName: parameters.fsType of the storage class fast is missing",
        "volumes[2].spec: must have exactly one of rawBlockDevice, lvmLogicalVolume, sparseLoopDevice, found none",
        "volumes[3].spec.rawBlockDevice: must contain either `devicePath`, or `discover`",
        "volumes[3].spec.mode: must be Filesystem or Block, found \"Raw\"",
        "volumes[4].spec: must have exactly one of rawBlockDevice, lvmLogicalVolume, sparseLoopDevice, found several",
        "volumes[5].spec.rawBlockDevice.discover.weight: ",
        "volumes[6].spec.lvmLogicalVolume.vgName: must be the name of a volume group, found \"-x\"",
        "volumes[6].spec.lvmLogicalVolume.size: must be a whole number",
        "volumes[8].metadata.name: name is missing",
        "volumes[8].metadata.uid: uid is missing",
        "volumes[8].spec.nodeName: nodeName is missing",
    ] {
        assert!(said.iter().any(|line| line.starts_with(expected)), "{expected}\n{}", said.join("\n"));
    }
}

#[test]
fn refuses_duplicate_names_and_uids() {
    let raw = |name: &str, uid| volume(name, uid, json!({"rawBlockDevice": {"devicePath": "/dev/sdb"}}));
    assert_eq!(
        problems(json!([class(), raw("a", 1), raw("a", 2), raw("b", 1), class()])),
        [
            "volumes[4].metadata.name: the storage class fast is in the list twice",
            "volumes[2].metadata.name: the volume with uid 9474cda7-0dbe-40fc-9842-3cb0404a7201 has the same name a",
            "volumes[3].metadata.uid: the volume a has the same uid 9474cda7-0dbe-40fc-9842-3cb0404a7201",
        ]
    );
}

#[test]
fn refuses_other_versions_of_the_resources() {
    let raw = volume("a", 1, json!({"rawBlockDevice": {"devicePath": "/dev/sdb"}}));
    for (index, version, supported) in [
        (0, json!("storage.metalk8s.scality.com/v1alpha1"), true),
        (0, json!("storage.metalk8s.scality.com/v1beta1"), false),
        (0, json!("storage.metalk8s.scality.com/v1alpha10"), false),
        (0, json!("v1alpha1"), false),
        (0, json!(1), false),
        (0, Value::Null, true),
        (1, json!("storage.k8s.io/v1"), true),
        (1, json!("storage.k8s.io/v1beta1"), true),
        (1, json!("storage.k8s.io/v2"), false),
    ] {
        let mut list = json!([raw, class()]);
        list[index]["apiVersion"] = version.clone();
        let place = format!("volumes[{index}].apiVersion: must be storage.");
        match parse_volumes(&list) {
            Ok(_) => assert!(supported, "{version}"),
            Err(found) => {
                let said = problems(list);
                assert!(!supported && found.len() == 1 && said[0].starts_with(&place), "{version}: {said:?}");
            }
        }
    }
}

/// A storage class must not have options that specify another device or another UUID.
#[test]
fn refuses_mkfs_options_that_name_devices_or_uuids() {
    let mut class = class();
    let raw = volume("a", 1, json!({"rawBlockDevice": {"devicePath": "/dev/sdb"}}));
    for (format, options) in [
        ("ext4", "[\"-U\", \"clear\"]"),
        ("ext4", "[\"-J\", \"device=/dev/sda1\"]"),
        ("ext4", "[\"--nosuch\"]"),
        ("xfs", "[\"-l\", \"logdev=/dev/sda1\"]"),
        ("xfs", "[\"-m\", \"uuid=9474cda7-0dbe-40fc-9842-3cb0404a7201\"]"),
    ] {
        class["parameters"] = json!({"fsType": format, "mkfsOptions": options});
        let said = problems(json!([raw, class]));
        assert!(said.iter().all(|line| line.starts_with("volumes[1].parameters.mkfsOptions: ")), "{options}: {said:?}");
    }
}

#[test]
fn refuses_names_beyond_the_limits_of_gpt_or_lvm() {
    let long = "a".repeat(40);
    let block = |source: Value| {
        let mut spec = source;
        spec["mode"] = json!("Block");
        volume(&long, 1, spec)
    };
    assert_eq!(
        problems(json!([block(json!({"rawBlockDevice": {"devicePath": "/dev/sdb"}}))])),
        ["volumes[0].metadata.name: has 40 characters, but at most 36 are supported"]
    );
    let logical = |group: &str| block(json!({"lvmLogicalVolume": {"vgName": group, "size": "1Gi"}}));
    assert!(parse_volumes(&json!([logical("x")])).is_ok());
    // A device mapper name contains each hyphen twice.
    assert!(parse_volumes(&json!([logical(&"g".repeat(84))])).is_ok());
    assert!(parse_volumes(&json!([logical(&"g-".repeat(28))])).is_ok());
    for (group, why) in [("g".repeat(85), "which LVM limits to 124"), ("g-".repeat(29), "which is limited to 127")] {
        let said = problems(json!([logical(&group)]));
        assert!(said.len() == 1 && said[0].contains(why), "{said:?}");
    }
}

#[test]
fn manifest_refers_to_node_and_device_path() {
    let mut resource = volume("db-1", 1, json!({"rawBlockDevice": {"devicePath": "/dev/sdb"}}));
    resource["spec"]["template"] =
        json!({"metadata": {"labels": {"app": "db"}, "name": "other"}, "spec": {"capacity": 1}});
    let read = parse_volumes(&json!([class(), resource])).unwrap();
    let path = "/dev/disk/by-uuid/9474cda7-0dbe-40fc-9842-3cb0404a7201";
    let text = format_manifests([BackedVolume { volume: &read[0], path, size_bytes: 1 << 30 }]);
    let parsed: Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
    assert_eq!(
        parsed["items"][0],
        json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": "db-1", "labels": {"app": "db"}, "ownerReferences": [{
                "apiVersion": "storage.metalk8s.scality.com/v1alpha1", "kind": "Volume", "name": "db-1",
                "uid": "9474cda7-0dbe-40fc-9842-3cb0404a7201", "controller": true, "blockOwnerDeletion": true}]},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1073741824"}, "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "fast", "mountOptions": ["noatime"],
                "local": {"path": path, "fsType": "ext4"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]}]}}}})
    );
    assert!(marked_yaml::parse_yaml(0, &text).is_ok());

    // A resource that was written by hand does not exist in the cluster. A PersistentVolume must not name it as its
    // owner, because Kubernetes removes objects with a nonexistent owner.
    let mut resource = volume("db-1", 1, json!({"rawBlockDevice": {"devicePath": "/dev/sdb"}}));
    resource.as_object_mut().unwrap().remove("apiVersion");
    let read = parse_volumes(&json!([class(), resource])).unwrap();
    let text = format_manifests([BackedVolume { volume: &read[0], path, size_bytes: 1 << 30 }]);
    assert!(!text.contains("ownerReferences"), "{text}");
}

/// The name of a Kubernetes node is its hostname, with or without the domain.
#[test]
fn node_name_matches_hostname_with_or_without_domain() {
    for (node, hostname, is_it) in [
        ("web-1", "web-1", true),
        ("web-1", "WEB-1.rack.example", true),
        ("web-1.rack.example", "web-1", true),
        ("web-1.rack.example", "web-1.Rack.example", true),
        ("web-1.site-b", "web-1.site-a", false),
        ("web-1", "web-2", false),
    ] {
        assert_eq!(is_node(node, hostname), is_it, "{node} {hostname}");
    }
}
