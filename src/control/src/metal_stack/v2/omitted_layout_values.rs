//! Insertion of values that protobuf omits from a layout of API v2. With these values, `layout::read_json` can read the
//! layout, because it supports the field names and enums of v2.
//!
//! * protobuf omits zeros. Therefore the size of a partition or volume that takes the remaining space is missing.
//! * `wipeonreinstall` does not exist in v2. Each installation with API v2 is a first installation, which recreates
//!   all disks, so `true` is inserted.

use serde_json::{Map, Value, json};

/// Returns the layout with the omitted values.
pub fn insert_omitted_values(mut layout: Value) -> Value {
    change_listed_objects(&mut layout, &["disks"], |disk| {
        if !has_value(disk, "wipeonreinstall") {
            disk.insert("wipeonreinstall".to_owned(), json!(true));
        }
        if let Some(partitions) = disk.get_mut("partitions") {
            change_objects(partitions, |partition| insert_zero(partition, "size"));
        }
    });
    change_listed_objects(&mut layout, &["logicalVolumes", "logical_volumes", "logicalvolumes"], |volume| {
        insert_zero(volume, "size")
    });
    layout
}

fn insert_zero(fields: &mut Map<String, Value>, name: &str) {
    if !has_value(fields, name) {
        fields.insert(name.to_owned(), json!(0));
    }
}

/// Returns whether a field has a value. In protobuf's JSON, the value of an absent field may be null.
fn has_value(fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).is_some_and(|value| !value.is_null())
}

/// Calls `change` for each object in the lists of the layout with these names.
fn change_listed_objects(layout: &mut Value, names: &[&str], change: impl Fn(&mut Map<String, Value>)) {
    for name in names {
        if let Some(list) = layout.get_mut(*name) {
            change_objects(list, &change);
        }
    }
}

fn change_objects(list: &mut Value, change: impl Fn(&mut Map<String, Value>)) {
    list.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut).for_each(change);
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::layout;

    /// The three layouts of metal-stack's mini-lab, in protobuf's JSON.
    #[test]
    fn the_layouts_of_mini_lab_are_read() {
        for (name, expected) in [
            ("default", &["/dev/vda1 500", "/dev/vda2 5000", "/dev/vda3 0"][..]),
            ("raid", &["/dev/vda1 500", "/dev/vda2 5000", "/dev/vda3 200", "/dev/vda4 200"]),
            ("lvm", &["/dev/vda1 500", "/dev/vda2 5000", "/dev/vda3 200", "/dev/vda4 200"]),
        ] {
            let text = std::fs::read_to_string(format!(
                "{}/testdata/metal/mini-lab-{name}.json",
                concat!(env!("CARGO_MANIFEST_DIR"), "/../..")
            ))
            .unwrap();
            let read = layout::read_json(&insert_omitted_values(serde_json::from_str(&text).unwrap()));
            let layout = read.unwrap_or_else(|problems| panic!("{name}: {problems:?}")).layout;
            assert!(layout.disks.iter().all(|disk| disk.wipeonreinstall), "{name}");
            let partitions = layout.disks.iter().flat_map(|disk| {
                disk.partitions
                    .iter()
                    .map(|part| format!("{}{} {}", disk.device, part.number, part.size.as_mib().unwrap_or(0)))
            });
            assert_eq!(partitions.collect::<Vec<_>>(), expected, "{name}");
        }
    }

    #[test]
    fn all_unknown_values_are_reported_together() {
        let document = json!({
            "id": "x", "constraints": {},
            "disks": [{"device": "/dev/sda", "partitions": [{"number": 1, "gptType": "GPT_TYPE_TAPE", "label": "efi"}]}],
            "filesystems": [{"device": "/dev/sda1", "path": "/", "format": "FORMAT_MINIX"}],
            "raid": [{"arrayName": "/dev/md1", "devices": ["/dev/sda1"], "level": "RAID_LEVEL_7"}],
        });
        let problems = layout::read_json(&insert_omitted_values(document)).unwrap_err();
        let all: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
        for words in ["given GPTType:GPT_TYPE_TAPE", "FORMAT_MINIX", "RAID_LEVEL_7"] {
            assert!(all.contains(words), "{words}: {all}");
        }
    }

    #[test]
    fn existing_layout_values_are_preserved() {
        let document = json!({"disks": [{"device": "/dev/sda", "wipeonreinstall": false, "partitions": [{"size": "7"}]}, 1],
                              "logicalVolumes": [{"name": "a"}], "raid": null});
        let expected = json!({"disks": [{"device": "/dev/sda", "wipeonreinstall": false, "partitions": [{"size": "7"}]}, 1],
                              "logicalVolumes": [{"name": "a", "size": 0}], "raid": null});
        assert_eq!(insert_omitted_values(document), expected);
    }
}
