//! Removes logical volumes from a group whose other volumes are preserved.

use super::run_lvm;
use common::error::{Context, Error, Phase, Result};
use model::inventory::is_raid1_part;
use operations::{ExpectedVolume, RemoveVolumes};
use std::collections::BTreeMap;

/// Volumes of a group by name, with their UUIDs and sizes in bytes.
type GroupVolumes = BTreeMap<String, (String, u64)>;

/// Verifies the group, removes volumes, and verifies that only these volumes are gone. No volume is activated, and the
/// freed extents are not discarded.
///
/// # Errors
/// Returns an error, before anything is written, if the group or one of its volumes differs from the plan, or if the
/// group has a volume that the plan does not contain. Also returns an error if LVM fails, or if afterwards the group
/// does not consist of the preserved volumes.
pub fn remove_volumes(remove: &RemoveVolumes) -> Result<()> {
    let group = &remove.group;
    let before = || format!("remove volumes of the volume group {group} (nothing was written)");
    verify_group(remove).context(Phase::Storage, before)?;
    let all = remove.removed.iter().chain(&remove.preserved);
    compare_volumes(&expect_volumes(all), &read_volumes(remove)?).context(Phase::Storage, before)?;
    compare_hidden(remove).context(Phase::Storage, before)?;
    let after = || format!("verify the volume group {group} after volumes were removed");
    let (whole, parts) = split_parts(&remove.removed);
    run_removal(remove, &whole)?;
    let mut found = read_volumes(remove).context(Phase::Storage, after)?;
    let left = list_left(&parts, &found);
    if !left.is_empty() {
        run_removal(remove, &left)?;
        found = read_volumes(remove).context(Phase::Storage, after)?;
    }
    compare_volumes(&expect_volumes(remove.preserved.iter()), &found).context(Phase::Storage, after)?;
    compare_hidden(remove).context(Phase::Storage, after)
}

/// Divides the volumes to remove into volumes that are passed to LVM, and parts of raid1 volumes. The parts are not
/// passed to LVM: LVM refuses to remove a part while its raid1 volume exists, and removes all parts together with the
/// raid1 volume.
fn split_parts(removed: &[ExpectedVolume]) -> (Vec<&str>, Vec<&str>) {
    let names = removed.iter().map(|volume| volume.name.as_str());
    names.partition(|name| !removed.iter().any(|whole| is_raid1_part(name, &whole.name)))
}

fn list_left<'a>(parts: &[&'a str], found: &GroupVolumes) -> Vec<&'a str> {
    parts.iter().copied().filter(|part| found.contains_key(*part)).collect()
}

fn run_removal(remove: &RemoveVolumes, names: &[&str]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let group = &remove.group;
    let paths = names.iter().map(|name| format!("{group}/{name}"));
    run_lvm("lvremove", &remove.physical, paths)
        .map(drop)
        .context(Phase::Storage, || format!("remove volumes of the volume group {group}"))
}

fn expect_volumes<'a>(volumes: impl Iterator<Item = &'a ExpectedVolume>) -> GroupVolumes {
    volumes.map(|volume| (volume.name.clone(), (volume.uuid.clone(), volume.size_bytes))).collect()
}

/// Checks the UUID of the group, and that it consists of the planned number of physical volumes, all of which are
/// present. A UUID that the plan does not contain is not compared.
fn verify_group(remove: &RemoveVolumes) -> Result<()> {
    let lines = read_lines(remove, "vgs", "vg_uuid,pv_count,vg_missing_pv_count", &[])?;
    let [line] = lines.as_slice() else {
        return Err(Error::new(Phase::Storage, format!("lvm reports {} groups with this name", lines.len())));
    };
    let count = remove.physical.len().to_string();
    match line.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [uuid, ..] if !remove.uuid.is_empty() && *uuid != remove.uuid => Err(Error::new(
            Phase::Storage,
            format!("the group has the UUID {uuid}, but the plan was made for {}", remove.uuid),
        )),
        [_, physical, "0"] if *physical == count => Ok(()),
        [_, physical, missing] => {
            let message = format!(
                "the group has {physical} physical volumes, of which {missing} are missing, but the plan was \
                    made for {count} physical volumes"
            );
            Err(Error::new(Phase::Storage, message))
        }
        _ => Err(Error::new(Phase::Storage, "lvm does not report the group's physical volumes")),
    }
}

fn read_volumes(remove: &RemoveVolumes) -> Result<GroupVolumes> {
    parse_volumes(&read_lines(remove, "lvs", "lv_name,lv_uuid,lv_size", &[])?)
}

/// Compares the hidden volumes of the plan with those of the group. Other hidden volumes, such as the parts of raid1
/// volumes, are ignored, because they belong to visible volumes.
fn compare_hidden(remove: &RemoveVolumes) -> Result<()> {
    let lines = read_lines(remove, "lvs", "lv_name,lv_uuid,lv_size", &["--all"])?;
    let expected = expect_volumes(remove.hidden.iter());
    compare_volumes(&expected, &select_hidden(parse_volumes(&lines)?, &expected))
}

/// Removes the brackets that LVM adds to the names of hidden volumes, and returns those volumes that are expected.
fn select_hidden(found: GroupVolumes, expected: &GroupVolumes) -> GroupVolumes {
    let hidden = found.into_iter().filter_map(|(name, volume)| {
        let name = name.strip_prefix('[')?.strip_suffix(']')?.to_owned();
        expected.contains_key(&name).then_some((name, volume))
    });
    hidden.collect()
}

fn parse_volumes(lines: &[Vec<String>]) -> Result<GroupVolumes> {
    let volume = |line: &Vec<String>| match line.as_slice() {
        [name, uuid, size] => Ok((name.clone(), (uuid.clone(), size.parse().unwrap_or_default()))),
        _ => Err(Error::new(Phase::Storage, format!("cannot parse the report of lvm: {}", line.join("|")))),
    };
    lines.iter().map(volume).collect()
}

fn read_lines(remove: &RemoveVolumes, command: &str, fields: &str, options: &[&str]) -> Result<Vec<Vec<String>>> {
    let args = ["--noheadings", "--nosuffix", "--units", "b", "--separator", "|", "-o", fields, &remove.group];
    let output = run_lvm(command, &remove.physical, options.iter().chain(&args))?;
    let lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

/// Compares all volumes of the group with the expected ones, and lists every difference.
fn compare_volumes(expected: &GroupVolumes, found: &GroupVolumes) -> Result<()> {
    let mut differences = Vec::new();
    for (name, (uuid, size)) in expected {
        match found.get(name) {
            None => differences.push(format!("{name} is missing")),
            Some(is) if is != &(uuid.clone(), *size) => differences.push(format!(
                "volume {name} has the UUID {} and {} bytes, but the plan was made for the UUID {uuid} \
                    and {size} bytes",
                is.0, is.1
            )),
            Some(_) => {}
        }
    }
    let others = found.keys().filter(|name| !expected.contains_key(*name));
    differences.extend(others.map(|name| format!("volume {name} is not in the plan")));
    if differences.is_empty() { Ok(()) } else { Err(Error::new(Phase::Storage, differences.join("; "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volumes(volumes: &[(&str, &str, u64)]) -> GroupVolumes {
        volumes.iter().map(|(name, uuid, size)| ((*name).to_owned(), ((*uuid).to_owned(), *size))).collect()
    }

    #[test]
    fn parts_are_removed_after_their_volume_unless_they_are_gone_with_it() {
        let removed = ["root_rmeta_0", "root", "swap", "root_rimage_1", "tmp_rmeta_0", "root_rmeta_x", "root_rmeta_"];
        let removed = removed.map(|name| ExpectedVolume {
            name: name.to_owned(),
            uuid: String::new(),
            size_bytes: 0,
            ranges: Vec::new(),
        });
        let (whole, parts) = split_parts(&removed);
        assert_eq!(whole, ["root", "swap", "tmp_rmeta_0", "root_rmeta_x", "root_rmeta_"]);
        assert_eq!(parts, ["root_rmeta_0", "root_rimage_1"]);
        assert_eq!(list_left(&parts, &volumes(&[("data", "u1", 8)])), [""; 0]);
        assert_eq!(list_left(&parts, &volumes(&[("data", "u1", 8), ("root_rimage_1", "u2", 4)])), ["root_rimage_1"]);
    }

    #[test]
    fn expected_hidden_volumes_are_compared_by_their_names_without_brackets() {
        let expected = volumes(&[("data_tdata", "u1", 8), ("lvol0_pmspare", "u2", 4)]);
        let all =
            [("data", "u0", 8), ("[data_tdata]", "u1", 8), ("[lvol0_pmspare]", "u2", 4), ("[m_rimage_0]", "u3", 4)];
        compare_volumes(&expected, &select_hidden(volumes(&all), &expected)).unwrap();
        let changed = [("data", "u0", 8), ("[data_tdata]", "u1", 12), ("lvol0_pmspare", "u2", 4)];
        let error = compare_volumes(&expected, &select_hidden(volumes(&changed), &expected)).unwrap_err().to_string();
        assert!(
            error.contains(
                "volume data_tdata has the UUID u1 and 12 bytes, but the plan was made for the UUID u1 and 8 bytes"
            ),
            "{error}"
        );
        assert!(error.contains("lvol0_pmspare is missing"), "{error}");
    }

    #[test]
    fn every_difference_of_a_group_is_listed() {
        let planned = volumes(&[("data", "u1", 8), ("root", "u2", 4)]);
        compare_volumes(&planned, &planned).unwrap();
        let found = volumes(&[("data", "u9", 8), ("more", "u3", 1)]);
        let error = compare_volumes(&planned, &found).unwrap_err().to_string();
        for part in [
            "volume data has the UUID u9 and 8 bytes, but the plan was made for the UUID u1 and 8 bytes",
            "root is missing",
            "more is not in the plan",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(compare_volumes(&planned, &volumes(&[("data", "u1", 9), ("root", "u2", 4)])).is_err());
        assert!(compare_volumes(&volumes(&[]), &planned).is_err());
    }
}
