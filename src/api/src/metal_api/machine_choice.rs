//! Selection of the machine for an allocation request: the requested machine, or a free machine that has the requested
//! size and whose disks fit the layout.

use super::api_refusal::{ApiRefusal, ApiResult};
use super::machine_file_edits::check_templates;
use super::machines::{check_no_migration, unknown_machine};
use crate::AppState;
use common::error_code::ErrorCode;
use plan::disk_capacity::find_capacity_problems;
use serde_json::{Map, Value};
use site::operator_files::{MachineSpec, suggest_name};

/// Returns the requested machine, or a free machine of the requested size that has registered. The layout must fit the
/// machine's disks, and the machine must not be part of a migration.
pub(super) async fn choose_machine(app: &AppState, request_fields: &Map<String, Value>) -> ApiResult<String> {
    let directory = app.directory();
    let text = |name: &str| request_fields.get(name).and_then(Value::as_str);
    if let Some(uuid) = text("uuid") {
        let id = uuid.to_lowercase();
        let machine = directory.find_machine(&id).ok_or_else(|| unknown_machine(&directory, &id))?;
        return match (machine.explain_lock(), &machine.allocation, text("sizeid")) {
            (Some(why), ..) => {
                Err(ApiRefusal::unprocessable(format!("machine is {why}")).with_error_code(ErrorCode::MachineLocked))
            }
            (_, Some(_), _) => Err(ApiRefusal::unprocessable("machine is already allocated")),
            (_, _, Some(size)) if machine.size.as_deref() != Some(size) => {
                Err(ApiRefusal::unprocessable(format!("machine {id:?} does not have the requested size: {size}")))
            }
            _ => {
                check_no_migration(app, &id).await?;
                check_machine_fit(app, &id, request_fields).await.map(|()| id)
            }
        };
    }
    let none = || ApiRefusal::unprocessable("when no machine id is given, a size id must be specified");
    let size = text("sizeid").ok_or_else(none)?;
    let is_free = |machine: &&MachineSpec| {
        machine.size.as_deref() == Some(size) && machine.allocation.is_none() && machine.locked.is_none()
    };
    let mut free: Vec<&MachineSpec> = directory.machines().filter(is_free).collect();
    free.sort_unstable_by_key(|machine| &machine.id);
    let mut misfit = None;
    for machine in free {
        let id = &machine.id;
        if app.state.find_registration(id).await?.is_some()
            && app.state.find_live_migration(id).await?.is_none()
            && check_templates(app, machine, &directory.known).await?.is_ok()
        {
            match check_machine_fit(app, id, request_fields).await {
                Ok(()) => return Ok(id.clone()),
                Err(why) => drop(misfit.get_or_insert(why)),
            }
        }
    }
    Err(misfit.unwrap_or_else(|| ApiRefusal::unprocessable("no machine available")))
}

/// Checks that the machine has the requested networks, and that the layout fits its registered disks. If the request
/// does not name a layout, checks the layout that applies to the machine's size and the image. An unknown layout is
/// ignored here, because it is reported later together with the problems of the other fields.
async fn check_machine_fit(app: &AppState, id: &str, request_fields: &Map<String, Value>) -> ApiResult<()> {
    let directory = app.directory();
    if let Some(machine) = directory.find_machine(id) {
        select_networks(machine, request_fields.get("networks"))?;
    }
    let known = &directory.known;
    let text = |name: &str| request_fields.get(name).and_then(Value::as_str);
    let selected = || {
        let size = directory.find_machine(id)?.size.as_deref()?;
        Some(known.set.select(size, text("imageid")?).ok()?.id.as_str())
    };
    let layout = text("filesystemlayoutid").or_else(selected).and_then(|layout| known.layouts.get(layout));
    let (Some(layout), Some(inventory)) = (layout, app.read_inventory(id).await?) else { return Ok(()) };
    let misfits = find_capacity_problems(layout, &inventory);
    if misfits.is_empty() {
        return Ok(());
    }
    let words: Vec<&str> = misfits.iter().map(|misfit| misfit.message.as_str()).collect();
    let (layout, machine, words) = (&layout.id, directory.display_name(id), words.join("; "));
    let why = format!("filesystemlayout {layout} does not fit the disks of machine {machine}: {words}");
    Err(ApiRefusal::unprocessable(why).with_problems(misfits))
}

/// Returns the requested networks as the machine file describes them, in the order of the request.
pub(super) fn select_networks(machine: &MachineSpec, request_fields: Option<&Value>) -> ApiResult<Vec<Value>> {
    let ids = || machine.networks.iter().filter_map(|network| network["networkid"].as_str());
    let select = |(index, one): (usize, &Value)| {
        let Some(id) = one.get("networkid").and_then(Value::as_str) else {
            return Err(ApiRefusal::bad_request(format!("networks[{index}].networkid should not be empty")));
        };
        let described = machine.networks.iter().find(|network| network["networkid"] == id);
        described.cloned().ok_or_else(|| {
            let others = if machine.networks.is_empty() { String::new() } else { suggest_name(id, ids()) };
            ApiRefusal::unprocessable(format!(
                "network {id:?} is not in the file of machine {machine}: add the network to `networks` in that file{others}", machine = machine.id))
        })
    };
    match request_fields {
        None => Ok(Vec::new()),
        Some(Value::Array(request_fields)) => request_fields.iter().enumerate().map(select).collect(),
        Some(_) => Err(ApiRefusal::bad_request("networks must be a list")),
    }
}
