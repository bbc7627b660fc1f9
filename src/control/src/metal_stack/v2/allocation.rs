//! Parser of the allocation in API v2. It renames the fields to their names in API v1, which images and the other code
//! use.

use super::{keep_label, omitted_layout_values};
use common::error::{Error, Phase, Result};
use model::allocation::{AllocatedImage, Allocation};
use serde_json::{Map, Value, json};

/// Parses an allocation.
///
/// # Errors
/// Fails if the allocation has no id, which the install marker requires, or if the allocation preserves a disk that is
/// not in its layout.
pub(crate) fn parse_allocation(from: &Value) -> Result<Allocation> {
    let id = text_field(from, "uuid");
    if id.is_empty() {
        let message = "the allocation lacks a uuid, which the install marker requires";
        return Err(Error::refusal(Phase::Control, message));
    }
    let image = json_field(from, "image");
    let mut filesystemlayout =
        omitted_layout_values::insert_omitted_values(json_field(from, "filesystemLayout").clone());
    let keeps = keep_label::mark_preserved_disks(from, &mut filesystemlayout)?;
    Ok(Allocation {
        id,
        created: text_field(json_field(from, "meta"), "createdAt"),
        name: text_field(from, "name"),
        project: text_field(from, "project"),
        hostname: text_field(from, "hostname"),
        role: match text_field(from, "allocationType").as_str() {
            "MACHINE_ALLOCATION_TYPE_FIREWALL" => "firewall".to_owned(),
            _ => "machine".to_owned(),
        },
        image: AllocatedImage {
            id: text_field(image, "id"),
            name: text_field(image, "name"),
            url: text_field(image, "url"),
            ..AllocatedImage::default()
        },
        filesystemlayout,
        keeps,
        networks: map_list(json_field(from, "networks"), convert_network),
        ssh_pub_keys: text_list(json_field(from, "sshPublicKeys")),
        user_data: text_field(from, "userdata"),
        dns_servers: map_list(json_field(from, "dnsServers"), Clone::clone),
        ntp_servers: map_list(json_field(from, "ntpServers"), Clone::clone),
        firewall_rules: convert_firewall_rules(json_field(from, "firewallRules")),
        vpn: convert_vpn(json_field(from, "vpn")),
        ..Allocation::default()
    })
}

static NOTHING: Value = Value::Null;

fn json_field<'a>(from: &'a Value, name: &str) -> &'a Value {
    from.get(name).unwrap_or(&NOTHING)
}

fn text_field(from: &Value, name: &str) -> String {
    json_field(from, name).as_str().unwrap_or_default().to_owned()
}

fn text_list(from: &Value) -> Vec<String> {
    from.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Converts each item of a list. Returns an empty list if `from` is not a list.
fn map_list(from: &Value, spell: impl Fn(&Value) -> Value) -> Value {
    from.as_array().into_iter().flatten().map(spell).collect()
}

/// Renames fields of v2. `names` contains pairs of the names in v2 and in v1. Missing fields are omitted.
fn rename_fields(from: &Value, names: &[(&str, &str)]) -> Map<String, Value> {
    let named = names.iter().filter_map(|(new, old)| Some(((*old).to_owned(), from.get(*new)?.clone())));
    named.collect()
}

/// Parses a number. In protobuf's JSON, 64-bit integers are strings.
fn parse_number(from: &Value) -> Option<u64> {
    from.as_u64().or_else(|| from.as_str()?.parse().ok())
}

fn convert_network(from: &Value) -> Value {
    let names = [
        ("network", "networkid"),
        ("prefixes", "prefixes"),
        ("destinationPrefixes", "destinationprefixes"),
        ("ips", "ips"),
        ("asn", "asn"),
        ("project", "projectid"),
    ];
    let kind = text_field(from, "networkType");
    let lists = ["prefixes", "destinationprefixes", "ips"].map(|name| (name.to_owned(), json!([])));
    let mut fields: Map<String, Value> = lists.into_iter().chain(rename_fields(from, &names)).collect();
    let child = matches!(kind.as_str(), "NETWORK_TYPE_CHILD" | "NETWORK_TYPE_CHILD_SHARED");
    fields.extend([
        ("vrf".to_owned(), json!(parse_number(json_field(from, "vrf")).unwrap_or_default())),
        ("private".to_owned(), json!(child)),
        ("shared".to_owned(), json!(kind == "NETWORK_TYPE_CHILD_SHARED")),
        ("underlay".to_owned(), json!(kind == "NETWORK_TYPE_UNDERLAY")),
        ("nat".to_owned(), json!(text_field(from, "natType") == "NAT_TYPE_IPV4_MASQUERADE")),
    ]);
    Value::Object(fields)
}

fn convert_firewall_rules(from: &Value) -> Value {
    if from.is_null() {
        return Value::Null;
    }
    let rule = |rule: &Value| {
        let names = [("ports", "ports"), ("to", "to"), ("from", "from"), ("comment", "comment")];
        let protocol = text_field(rule, "protocol").trim_start_matches("IP_PROTOCOL_").to_lowercase();
        let mut fields = rename_fields(rule, &names);
        fields.insert("protocol".to_owned(), json!(protocol));
        Value::Object(fields)
    };
    json!({"egress": map_list(json_field(from, "egress"), rule), "ingress": map_list(json_field(from, "ingress"), rule)})
}

fn convert_vpn(from: &Value) -> Value {
    if from.is_null() {
        return Value::Null;
    }
    Value::Object(rename_fields(
        from,
        &[("controlPlaneAddress", "address"), ("authKey", "auth_key"), ("connected", "connected")],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 14] = [
        "uuid",
        "meta",
        "labels",
        "drophammer.keep",
        "filesystemLayout",
        "disks",
        "device",
        "partitions",
        "logicalVolumes",
        "networks",
        "firewallRules",
        "egress",
        "description",
        "vpn",
    ];

    /// Generates arbitrary JSON that contains field names of allocations.
    fn anything() -> impl Strategy<Value = Value> {
        let text =
            prop::sample::select(vec!["", "a", "/dev/sda", "drophammer.keep=/dev/sda,x", "18446744073709551616"]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            text.prop_map(Value::from)
        ];
        leaf.prop_recursive(6, 64, 6, |inner| {
            let fields = prop::collection::vec((prop::sample::select(NAMES.to_vec()), inner.clone()), 0..6);
            let fields =
                fields.prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
            prop_oneof![prop::collection::vec(inner, 0..6).prop_map(Value::Array), fields.prop_map(Value::Object)]
        })
    }

    proptest! {
        #[test]
        fn parser_does_not_panic_on_arbitrary_allocations(mut from in anything()) {
            if let Some(fields) = from.as_object_mut() {
                fields.insert("uuid".to_owned(), json!("a"));
            }
            if let Ok(allocation) = parse_allocation(&from) {
                let _ = allocation.parse_layout();
            }
        }
    }

    #[test]
    fn v2_allocation_is_converted_to_v1_fields() {
        let from = json!({
            "uuid": "a-1", "meta": {"createdAt": "2026-11-24T00:00:00Z"}, "name": "web", "project": "p-1",
            "image": {"id": "debian-12.0.20261101", "url": "http://i/img.tar.lz4", "name": "Debian"},
            "filesystemLayout": {"id": "l", "disks": [{"device": "/dev/sda", "partitions": [{"number": 1}]}]},
            "networks": [
                {"network": "n-1", "prefixes": ["10.0.0.0/24"], "ips": ["10.0.0.1"], "networkType": "NETWORK_TYPE_CHILD",
                 "natType": "NAT_TYPE_NONE", "vrf": "42", "asn": 4200003073u32, "project": "p-1"},
                {"network": "internet", "destinationPrefixes": ["0.0.0.0/0"], "networkType": "NETWORK_TYPE_EXTERNAL",
                 "natType": "NAT_TYPE_IPV4_MASQUERADE", "vrf": "104009", "asn": 7},
            ],
            "hostname": "web-1", "sshPublicKeys": ["ssh-ed25519 A"], "userdata": "#cloud-config",
            "allocationType": "MACHINE_ALLOCATION_TYPE_FIREWALL",
            "firewallRules": {"egress": [{"protocol": "IP_PROTOCOL_TCP", "ports": [443], "to": ["0.0.0.0/0"], "comment": "web"}]},
            "dnsServers": [{"ip": "1.1.1.1"}], "ntpServers": [{"address": "0.pool"}],
            "vpn": {"controlPlaneAddress": "https://v", "authKey": "K"},
        });
        let allocation = parse_allocation(&from).unwrap();
        assert_eq!((allocation.id.as_str(), allocation.role.as_str()), ("a-1", "firewall"));
        assert_eq!(allocation.image.url, "http://i/img.tar.lz4");
        assert_eq!(allocation.filesystemlayout["disks"][0]["partitions"][0]["size"], 0);
        assert_eq!(
            (&allocation.ssh_pub_keys[..], allocation.user_data.as_str()),
            (&["ssh-ed25519 A".to_owned()][..], "#cloud-config")
        );
        let networks = json!([
            {"networkid": "n-1", "prefixes": ["10.0.0.0/24"], "destinationprefixes": [], "ips": ["10.0.0.1"], "vrf": 42,
             "asn": 4200003073u32, "projectid": "p-1", "private": true, "shared": false, "underlay": false, "nat": false},
            {"networkid": "internet", "prefixes": [], "destinationprefixes": ["0.0.0.0/0"], "ips": [], "vrf": 104009,
             "asn": 7, "private": false, "shared": false, "underlay": false, "nat": true},
        ]);
        assert_eq!(allocation.networks, networks);
        let rules = json!({"egress": [{"protocol": "tcp", "ports": [443], "to": ["0.0.0.0/0"], "comment": "web"}], "ingress": []});
        assert_eq!(allocation.firewall_rules, rules);
        assert_eq!(allocation.vpn, json!({"address": "https://v", "auth_key": "K"}));
        assert_eq!(
            (allocation.dns_servers, allocation.ntp_servers),
            (json!([{"ip": "1.1.1.1"}]), json!([{"address": "0.pool"}]))
        );
        assert!(!allocation.reinstall && allocation.order.is_none() && !allocation.succeeded);
    }

    #[test]
    fn missing_fields_are_empty_but_id_is_required() {
        let allocation = parse_allocation(&json!({"uuid": "a"})).unwrap();
        assert_eq!((allocation.role.as_str(), allocation.hostname.as_str()), ("machine", ""));
        assert_eq!((allocation.networks, allocation.vpn), (json!([]), Value::Null));
        for none in [json!({}), json!({"uuid": ""}), json!(7)] {
            assert!(parse_allocation(&none).unwrap_err().is_refusal());
        }
    }
}
