//! The allocation of a machine in the format of the agent.

use super::secrets;
use crate::allocation;
use crate::facts::PreparedVolume;
use crate::marker::RecordedVolume;
use crate::pull::Secret;
use crate::serve::App;
use crate::serve::api_error::ApiError;
use crate::serve::directory::Directory;
use crate::serve::input::Location;
use crate::serve::resolve::{Assigned, resolve};
use crate::serve::state::{ATTEMPTS, Standing};
use crate::serve::wanted;
use crate::steps::Steps;
use serde_json::Value;

/// Returns the machine's allocation with its installation state, or `None` if it cannot be carried out; the reason has been logged when the
/// directory was read.
pub async fn assigned(app: &App, directory: &Directory, id: &str) -> Result<Option<(Assigned, Standing)>, ApiError> {
    let Some(machine) = directory.machine(id) else { return Ok(None) };
    let Some(allocation) = &machine.allocation else { return Ok(None) };
    let standing = wanted::standing(app, id, allocation, &directory.known).await?.without_unconfirmed_order();
    let assigned = resolve(machine, &standing, &directory.known).ok().flatten();
    Ok(assigned.map(|assigned| (assigned, standing)))
}

/// Converts an allocation for the agent. Without an order, an installed machine gets its identity, so that it boots its system, and an
/// image without a URL, so that it cannot install it. Secrets are released separately by `api::secrets`, except the parameters of an OS
/// definition, which its `verify` needs before the plan.
pub fn on_the_wire(
    assigned: &Assigned,
    standing: Standing,
    base: &str,
    with_parameters: bool,
) -> allocation::Allocation {
    let Assigned { allocation, image, layout, steps, installs, approved, .. } = assigned;
    let place = match &image.at {
        Location::Url(url) => url.clone(),
        Location::File(file) => format!("{base}/images/{}", percent_encoded(file)),
    };
    let succeeded = standing.is_installed();
    let told = allocation.told();
    let has_volumes = !told.volumes.is_null() || !standing.volumes.is_empty();
    let prepared_volumes = has_volumes.then(|| standing.volumes.iter().map(recorded_volume).collect());
    allocation::Allocation {
        created: standing.created,
        image: allocation::Image {
            id: image.id.clone(),
            name: image.name.clone(),
            url: if *installs { place } else { String::new() },
            mirrors: if *installs { image.mirrors.clone() } else { Vec::new() },
            digest: image.digest.clone().filter(|_| *installs),
            pull_secrets: Vec::new(),
            finish: image.finish,
            contents: image.contents.clone().filter(|_| *installs),
        },
        filesystemlayout: layout.clone(),
        definition: allocation.definition.told(with_parameters).filter(|_| *installs),
        user_data: String::new(),
        console_password: String::new(),
        disk_key_withheld: !with_parameters && *installs && !told.disk_key.is_empty(),
        disk_key: Secret::default(),
        separate_secrets: secrets::separate(assigned, with_parameters),
        vpn: Value::Null,
        reinstall: standing.order.is_some(),
        fencing: match &standing.order {
            Some(order) => order.fencing.clone(),
            None => standing.fencing.filter(|_| *installs || !succeeded),
        },
        order: standing.order.map(|order| allocation::Order {
            id: order.id,
            attempt: order.attempts.max(1),
            attempts: ATTEMPTS,
            begun: order.begun,
            without_marker: order.without_marker,
            change_promise: order.change_promise,
            give_up: order.give_up,
            replace_newer: order.replace_newer,
            confirmed: order.confirmed,
            disks: order.disks,
            attempt_record: order.attempt.and_then(|attempt| attempt.record),
        }),
        installed: standing.marker,
        // Agents of earlier versions do not support steps.
        erase: if steps.is_empty() { allocation.erase } else { Steps::told(steps).erase() },
        steps: steps.clone(),
        succeeded,
        attempt_record: standing.first.as_ref().and_then(|first| first.record.clone()),
        begun_on: standing.first.map(|first| first.disks).unwrap_or_default(),
        unremembered: standing.unremembered && !succeeded,
        former_machines: standing.former,
        approved: approved.clone(),
        prepared_volumes,
        ..told
    }
}

/// Converts a volume reported by the last installation. The install marker records its disks.
fn recorded_volume(volume: &PreparedVolume) -> RecordedVolume {
    let PreparedVolume { name, uid, path, .. } = volume.clone();
    RecordedVolume { name, uid, path, ..RecordedVolume::default() }
}

/// Encodes a path for a URL.
pub fn percent_encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
