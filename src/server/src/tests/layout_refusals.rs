//! Comparison of the refusals of `/v1/filesystemlayout` with those of metal-api, case by case. `--nocapture` prints the
//! table.

use super::*;

const AT: &str = "/v1/filesystemlayout";

/// Relation of this server's response to metal-api's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseRelation {
    /// Status and text are the same. Additional fields are allowed.
    Same,
    /// This server responds with another status, for this reason.
    Ours(u16, &'static str),
}
use ResponseRelation::{Ours, Same};

fn layout() -> Value {
    json!({
        "id": "t",
        "constraints": {"sizes": ["z1"], "images": {"debian": "*"}},
        "disks": [{"device": "/dev/sda", "partitions": [{"number": 1, "size": 500}, {"number": 2, "size": 0}]},
                  {"device": "/dev/sdb"}, {"device": "/dev/sdc"}],
        "raid": [{"arrayname": "/dev/md/r", "devices": ["/dev/sda1", "/dev/sdb"], "level": "1"}],
        "volumegroups": [{"name": "vg", "devices": ["/dev/sda2", "/dev/sdc"]}],
        "logicalvolumes": [{"name": "lv", "volumegroup": "vg", "size": 1000, "lvmtype": "raid1"}],
        "filesystems": [{"path": "/", "device": "/dev/md/r", "format": "ext4", "label": "root"},
                        {"path": "/srv", "device": "/dev/vg/lv", "format": "ext4"}]
    })
}

/// Returns the cases, each with the field of [`layout`] to change, its value, metal-api's status and text, and the
/// relation of this server's response to metal-api's. Status 201 without a message means that the layout is accepted.
fn cases() -> Vec<(&'static str, Value, u16, &'static str, ResponseRelation)> {
    vec![
        ("/id", json!("t"), 201, "", Same),
        ("/id", json!(""), 400, "id should not be empty", Same),
        ("/id", json!("default"), 409, "filesystemlayout:default already exists", Same),
        ("/constraints/images", json!({"*": ""}), 400, "just '*' is not allowed as image os constraint", Same),
        ("/constraints/sizes", json!(["z*"]), 400, "no wildcard allowed in size constraint", Same),
        ("/constraints/sizes", json!(["z1", "z1"]), 400, "size z1 is configured more than once", Same),
        (
            "/constraints/images",
            json!({"debian": ">=10"}),
            400,
            "given imageconstraint:>=10 is not valid, missing space between op and version? invalid semantic version",
            Ours(201, "the seed's samples are written so"),
        ),
        ("/constraints/images", json!({"debian": "x 10"}), 400, "given imageconstraint op:x is not supported", Same),
        (
            "/constraints/images",
            json!({"debian": ">= x"}),
            400,
            "given version:x is not valid:invalid semantic version",
            Same,
        ),
        (
            "/disks/0/partitions/1/number",
            json!(1),
            400,
            "device:/dev/sda partition number:1 given more than once",
            Same,
        ),
        (
            "/disks/0/partitions",
            json!([{"number": 1, "size": 0}, {"number": 2, "size": 500}]),
            400,
            "device:/dev/sda variable sized partition not the last one",
            Same,
        ),
        ("/disks/0/partitions/0/size", json!(0), 201, "", Ours(400, "two partitions cannot both take the rest")),
        (
            "/disks/0/partitions/0/gpttype",
            json!("ff00"),
            422,
            "given GPTType:ff00 is not supported, but:8300,8e00,ef00,fd00",
            Same,
        ),
        ("/raid/0/devices/1", json!("/dev/sdx"), 400, "device:/dev/sdx not provided by disk for raid:/dev/md/r", Same),
        (
            "/raid/0/level",
            json!("7"),
            422,
            "given raidlevel:7 is not supported, but:0,1",
            Ours(422, "it knows 5, 6 and 10"),
        ),
        (
            "/raid/0/level",
            json!("6"),
            422,
            "given raidlevel:6 is not supported, but:0,1",
            Ours(400, "it knows level 6, which needs four disks"),
        ),
        (
            "/volumegroups/0/devices/1",
            json!("/dev/sdx"),
            400,
            "device:/dev/sdx not provided by machine for vg:vg",
            Same,
        ),
        ("/logicalvolumes/0/volumegroup", json!("vx"), 400, "volumegroup:vx not configured for lv:lv", Same),
        (
            "/logicalvolumes/0/lvmtype",
            json!("thin"),
            422,
            "given lvmtype:thin is not supported, but:linear,raid1,striped",
            Same,
        ),
        (
            "/logicalvolumes",
            json!([{"name": "lv", "volumegroup": "vg", "size": 0, "lvmtype": "linear"},
                   {"name": "lw", "volumegroup": "vg", "size": 10, "lvmtype": "linear"}]),
            400,
            "lv:lv in vg:vg, variable sized lv must be the last",
            Same,
        ),
        (
            "/volumegroups/0/devices",
            json!(["/dev/sdc"]),
            400,
            "fsl:\"t\" lv:lv in vg:vg is configured for lvmtype:raid1 but has only 1 disk, consider linear instead",
            Same,
        ),
        (
            "/filesystems/1/device",
            json!("/dev/sdx"),
            400,
            "device:/dev/sdx for filesystem:/srv is not configured",
            Same,
        ),
        (
            "/filesystems/1/format",
            json!("zfs"),
            422,
            "given format:zfs is not supported, but:ext3,ext4,none,swap,tmpfs,vfat",
            Ours(422, "it knows btrfs and xfs"),
        ),
        (
            "/filesystems/1/format",
            json!("xfs"),
            422,
            "given format:xfs is not supported, but:ext3,ext4,none,swap,tmpfs,vfat",
            Ours(201, "it knows xfs"),
        ),
        (
            "/filesystems/1/createoptions",
            json!(["-F 32"]),
            400,
            "the given createoption:\"-F 32\" contains whitespace and must be split into separate options",
            Ours(400, "it splits them, as the seed's samples are written, and 32 is no option of mkfs.ext4"),
        ),
        ("/disks/1/wipe_on_reinstal", json!(true), 201, "", Ours(400, "a misspelt name would be taken for false")),
        (
            "/constraints",
            json!({"sizes": ["z2"], "images": {"debian": "*"}}),
            400,
            "these combinations already exist:",
            Same,
        ),
        (
            "/constraints",
            json!({"sizes": ["z2"], "images": {"debian": ">= 9"}}),
            201,
            "",
            Ours(400, "it collides with >= 10, which metal-api does not see"),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_refusals_match_metal_api() {
    let server = Running::start().await;
    let mut other = layout();
    other["id"] = json!("other");
    other["constraints"] = json!({"sizes": ["z2"], "images": {"debian": ">= 10"}});
    assert_eq!(server.v1("PUT", AT, &other).await.status, 201);
    let (mut wrong, mut same, mut rows) = (Vec::new(), 0, Vec::new());
    for (place, value, status, text, goes) in cases() {
        let mut layout = layout();
        let (above, name) = place.rsplit_once('/').unwrap();
        match layout.pointer_mut(above).unwrap() {
            Value::Array(items) => items[name.parse::<usize>().unwrap()] = value.clone(),
            other => other[name] = value.clone(),
        }
        let answer = server.v1("PUT", AT, &layout).await;
        let said = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        if answer.status == 201 {
            assert_eq!(server.v1("DELETE", &format!("{AT}/t"), &Value::Null).await.status, 200);
        }
        let is_same = answer.status == status
            && (text.is_empty()
                || said.lines().any(|line| line == text || (text.ends_with(':') && line.starts_with(text))));
        same += usize::from(is_same);
        let is_right = match goes {
            Same => is_same,
            Ours(ours, _) => !is_same && answer.status == ours,
        };
        let ours = said.lines().next().unwrap_or_default();
        let row = format!("{place} = {value} | {status} {text} | {} {ours} | {goes:?}", answer.status);
        (!is_right).then(|| wrong.push(row.clone()));
        rows.push(row);
    }
    println!("what | metal-api | drophammer | goes\n{}\n{same} of {} the same", rows.join("\n"), rows.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
