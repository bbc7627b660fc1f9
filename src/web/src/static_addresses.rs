//! IP addresses that a machine file assigns to the installed system.

use serde_json::{Map, Value};

/// Maximum number of addresses of a machine.
const ADDRESSES: usize = 32;

/// Returns the addresses in the fields `network` and `networks` of an allocation, without their prefix lengths.
pub(crate) fn list_static_addresses(passed_on: &Map<String, Value>) -> Vec<String> {
    let network = passed_on.get("network").and_then(Value::as_object).into_iter().flat_map(Map::values);
    let interfaces = network.filter_map(Value::as_object).flat_map(Map::values);
    let of_interfaces = interfaces.filter_map(|interface| interface.get("addresses")?.as_array()).flatten();
    let networks = passed_on.get("networks").and_then(Value::as_array).into_iter().flatten();
    let of_networks = networks.filter_map(|network| network.get("ips")?.as_array()).flatten();
    let all = of_interfaces.chain(of_networks).filter_map(Value::as_str);
    all.map(|address| address.split('/').next().unwrap_or_default().to_owned()).take(ADDRESSES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_of_both_formats_are_listed() {
        let interface =
            json!({"addresses": ["192.0.2.7/24", "2001:db8::7/64"], "nameservers": {"addresses": ["192.0.2.53"]}});
        for (fields, expected) in [
            (
                json!({"network": {"version": 2, "ethernets": {"eth0": interface}, "bonds": {"b": {"addresses": ["10.0.0.1/8"]}}}}),
                vec!["10.0.0.1", "192.0.2.7", "2001:db8::7"],
            ),
            (json!({"networks": [{"networkid": "internet", "ips": ["192.0.2.7", 5]}, {}]}), vec!["192.0.2.7"]),
            (json!({"network": null, "networks": "none"}), vec![]),
            (json!({"network": {"ethernets": []}, "networks": [5]}), vec![]),
            (json!({}), vec![]),
        ] {
            let mut found = list_static_addresses(fields.as_object().unwrap());
            found.sort();
            assert_eq!(found, expected, "{fields}");
        }
    }

    #[test]
    fn number_of_addresses_is_limited() {
        let fields = json!({"networks": [{"ips": vec!["192.0.2.7"; ADDRESSES + 1]}]});
        assert_eq!(list_static_addresses(fields.as_object().unwrap()).len(), ADDRESSES);
    }
}
