//! Allocations in metal-api's format (`v1.MachineAllocation`), with the fields that drophammer adds. Networks,
//! servers and firewall rules in a machine file may lack fields that metal-api's clients require. The responses
//! contain empty values for these fields.

use super::images::EXPIRY;
use super::layouts::fill_partition_types;
use model::allocation::{AllocatedImage, Allocation};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::mem::discriminant;

/// Creation time of an allocation that has not been served to the machine yet: the zero time of metal-api.
const UNKNOWN_TIME: &str = "0001-01-01T00:00:00Z";
const ROLES: [&str; 2] = ["machine", "firewall"];
const PROTOCOLS: [&str; 2] = ["tcp", "udp"];

/// Allocation of a machine.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct AllocationResponse(Value);

impl AllocationResponse {
    /// Converts an allocation from which the secrets have been removed.
    pub(super) fn new(allocation: &Allocation) -> AllocationResponse {
        let mut document = json!(allocation);
        let created = if allocation.created.is_empty() { UNKNOWN_TIME } else { &allocation.created };
        let role = ROLES.into_iter().find(|role| *role == allocation.role).unwrap_or(ROLES[0]);
        document["created"] = json!(created);
        document["role"] = json!(role);
        document["creator"] = json!("");
        document["description"] = json!("");
        document["image"]["expirationDate"] = json!(EXPIRY);
        document["networks"] = complete_networks(&allocation.networks);
        document["dns_servers"] = complete_servers(&allocation.dns_servers, "ip");
        document["ntp_servers"] = complete_servers(&allocation.ntp_servers, "address");
        document["firewall_rules"] = complete_rules(&allocation.firewall_rules);
        fill_partition_types(&mut document["filesystemlayout"]);
        AllocationResponse(document)
    }
}

impl JsonSchema for AllocationResponse {
    fn schema_name() -> Cow<'static, str> {
        "MachineAllocation".into()
    }

    fn json_schema(schemas: &mut SchemaGenerator) -> Schema {
        let mut image = AllocatedImage::json_schema(schemas).to_value();
        add_texts(&mut image, &["expirationDate"]);
        let mut allocation = Allocation::json_schema(schemas).to_value();
        add_texts(&mut allocation, &["creator", "description"]);
        allocation["properties"]["image"] = image;
        Schema::from(allocation.as_object().cloned().unwrap_or_default())
    }
}

/// Adds required text fields to the schema of an object.
fn add_texts(schema: &mut Value, names: &[&str]) {
    for name in names {
        schema["properties"][*name] = json!({"type": "string"});
        schema["required"].as_array_mut().into_iter().for_each(|required| required.push(json!(name)));
    }
}

/// Returns the objects in a list of a machine file. Inserts the default values from `defaults` for fields that are
/// missing in an object or have the wrong type.
fn complete_objects(list: &Value, defaults: &Value) -> Vec<Map<String, Value>> {
    let objects = list.as_array().into_iter().flatten().filter_map(Value::as_object);
    let complete = |object: &Map<String, Value>| {
        let mut object = object.clone();
        for (name, default) in defaults.as_object().into_iter().flatten() {
            let is_same = object.get(name).is_some_and(|value| discriminant(value) == discriminant(default));
            if !is_same {
                object.insert(name.clone(), default.clone());
            }
        }
        object
    };
    objects.map(complete).collect()
}

fn complete_networks(networks: &Value) -> Value {
    let defaults = json!({
        "asn": 0, "destinationprefixes": [], "ips": [], "nat": false, "nattypev2": "", "networkid": "", "networktype": "",
        "networktypev2": "", "prefixes": [], "private": false, "projectid": "", "underlay": false, "vrf": 0,
    });
    json!(complete_objects(networks, &defaults))
}

/// Returns DNS or NTP servers as objects. In a machine file, they may be plain addresses.
fn complete_servers(servers: &Value, field: &str) -> Value {
    let as_object = |server: &Value| if server.is_string() { json!({ (field): server }) } else { server.clone() };
    let Some(servers) = servers.as_array() else { return Value::Null };
    let servers: Vec<Value> = servers.iter().map(as_object).collect();
    json!(complete_objects(&json!(servers), &json!({ (field): "" })))
}

fn complete_rules(rules: &Value) -> Value {
    let Some(rules) = rules.as_object() else { return Value::Null };
    let mut rules = rules.clone();
    for (direction, peers) in [("egress", "to"), ("ingress", "from")] {
        let Some(list) = rules.get_mut(direction) else { continue };
        let mut complete = complete_objects(list, &json!({"ports": [], (peers): []}));
        for rule in &mut complete {
            let protocol = rule.get("protocol").and_then(Value::as_str).map(str::to_lowercase);
            match protocol.filter(|protocol| PROTOCOLS.contains(&protocol.as_str())) {
                Some(protocol) => rule.insert("protocol".to_owned(), json!(protocol)),
                None => rule.remove("protocol"),
            };
        }
        *list = json!(complete);
    }
    Value::Object(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_always_contains_fields_required_by_clients() {
        let allocation = Allocation {
            role: "gateway".to_owned(),
            networks: json!([{"asn": 42, "ips": ["10.0.0.1"], "vrf": "red"}, "internet", null]),
            dns_servers: json!(["10.0.0.53", {"ip": "10.0.0.54"}, {}, 7]),
            ntp_servers: json!("pool.ntp.org"),
            firewall_rules: json!({"egress": [{"protocol": "TCP", "to": ["0.0.0.0/0"]}, {"protocol": "icmp"}]}),
            filesystemlayout: json!({"disks": [{"partitions": [{"number": 1}, {"number": 2, "gpttype": "fd00"}]}]}),
            ..Allocation::default()
        };
        let AllocationResponse(shown) = AllocationResponse::new(&allocation);
        assert_eq!(
            shown["networks"],
            json!([{
                "asn": 42, "destinationprefixes": [], "ips": ["10.0.0.1"], "nat": false, "nattypev2": "", "networkid": "",
                "networktype": "", "networktypev2": "", "prefixes": [], "private": false, "projectid": "",
                "underlay": false, "vrf": 0,
            }])
        );
        assert_eq!(shown["dns_servers"], json!([{"ip": "10.0.0.53"}, {"ip": "10.0.0.54"}, {"ip": ""}]));
        assert_eq!((&shown["ntp_servers"], &shown["role"]), (&Value::Null, &json!("machine")));
        let egress = json!([{"protocol": "tcp", "to": ["0.0.0.0/0"], "ports": []}, {"to": [], "ports": []}]);
        assert_eq!(shown["firewall_rules"], json!({ "egress": egress }));
        let partitions = &shown["filesystemlayout"]["disks"][0]["partitions"];
        assert_eq!(partitions, &json!([{"number": 1, "gpttype": "8300"}, {"number": 2, "gpttype": "fd00"}]));
        assert_eq!((&shown["created"], &shown["creator"]), (&json!(UNKNOWN_TIME), &json!("")));
        assert_eq!(shown["image"]["expirationDate"], EXPIRY);
    }

    #[test]
    fn values_of_the_file_and_of_the_record_are_unchanged() {
        let allocation = Allocation {
            role: "firewall".to_owned(),
            created: "2026-01-01T00:00:00Z".to_owned(),
            firewall_rules: Value::Null,
            ..Allocation::default()
        };
        let AllocationResponse(shown) = AllocationResponse::new(&allocation);
        assert_eq!((&shown["role"], &shown["created"]), (&json!("firewall"), &json!("2026-01-01T00:00:00Z")));
        assert_eq!((&shown["firewall_rules"], &shown["filesystemlayout"]), (&Value::Null, &Value::Null));
    }
}
