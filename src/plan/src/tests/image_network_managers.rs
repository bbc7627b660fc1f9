//! Network managers in the manifest of an image.

use super::image_finishing::{by, contents, finished};
use super::*;
use model::allocation::{AllocatedImage, Allocation, FinisherChoice};
use model::image_boot_contents::BootContents;
use model::inventory::FirmwareType;
use serde_json::{Value, json};

#[test]
fn refuses_network_if_the_image_uses_an_unsupported_manager() {
    let network = json!({"version": 2, "ethernets": {"lan": {"match": {"name": "eth0"}, "dhcp4": true}}});
    let with = |name: &str, installer: Option<&str>| BootContents {
        unsupported_network: (!name.is_empty()).then(|| name.to_owned()),
        installer: installer.map(str::to_owned),
        ..contents()
    };
    for (contents, finish, network, is_refused) in [
        (with("wicked", None), FinisherChoice::Builtin, &network, true),
        (with("initscripts", None), FinisherChoice::Auto, &network, true),
        (with("wicked", None), FinisherChoice::Auto, &Value::Null, false),
        (with("wicked", Some("/install.sh")), FinisherChoice::Auto, &network, false),
        (with("wicked", None), FinisherChoice::None, &network, false),
        (with("", None), FinisherChoice::Auto, &network, false),
    ] {
        let image = AllocatedImage { contents: Some(contents.clone()), ..Default::default() };
        let made =
            finished(&layout(), FirmwareType::Uefi, &Allocation { image, network: network.clone(), ..by(finish) });
        assert_eq!(made.is_err(), is_refused, "{contents:?}");
        if is_refused {
            let said = reasons(made);
            assert!(said.len() == 1 && said[0].contains(&contents.unsupported_network.unwrap()), "{said:?}");
        }
    }
}
