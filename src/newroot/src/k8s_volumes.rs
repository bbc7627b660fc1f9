//! Kubernetes volumes in the installed system: backing files of sparse volumes, units that attach these files at boot,
//! and manifests.

use super::NewRoot;
use common::error::{Context, Error, Phase, Result};
use linux::storage::k8s_volume_preparation;
use model::install_report::PreparedVolume;
use model::k8s_volume::{BackedVolume, SPARSE, format_manifests};
use operations::{ManifestVolume, SparseVolume, WriteK8sVolumeFiles};

const MANIFESTS: &str = "/etc/metal/volumes.yaml";
const UNIT: &str = "metalk8s-sparse-volume@";
const UNITS: &str = "/etc/systemd/system";

/// systemd unit that attaches the file of a sparse volume to a loop device. MetalK8s creates a unit with the same name,
/// which may replace this unit.
const TEMPLATE: &str = "\
[Unit]
Description=Attach the sparse volume %i
RequiresMountsFor=/var/lib/metalk8s/storage/sparse
AssertFileNotEmpty=/var/lib/metalk8s/storage/sparse/%i

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=60
ExecStart=/bin/flock --exclusive --wait 30 /run/lock/metalk8s-sparse-volume.lock \
    /sbin/losetup --find --partscan --nooverlap /var/lib/metalk8s/storage/sparse/%i
ExecStop=/bin/sh -c '/sbin/losetup --noheadings --output NAME --associated /var/lib/metalk8s/storage/sparse/%i | xargs -r /sbin/losetup --detach'

[Install]
WantedBy=multi-user.target
";

/// Writes the sparse files, systemd units and PersistentVolume manifests for the Kubernetes volumes of the allocation,
/// and returns the volumes. The manifests omit volumes that are marked for deletion.
///
/// # Errors
/// Returns an error if the backing file of a new volume already exists, the file of a preserved volume is missing, or a
/// file cannot be written.
pub fn write_volumes(root: &NewRoot, write: &WriteK8sVolumeFiles, say: &dyn Fn(&str)) -> Result<Vec<PreparedVolume>> {
    for sparse in &write.sparse {
        write_sparse_file(root, sparse)?;
        let preserved = if sparse.make.is_some() { "created" } else { "preserved" };
        say(&format!("volume {}: {} {preserved}", sparse.name, sparse.path));
    }
    if !write.sparse.is_empty() {
        root.write_file(&format!("{UNITS}/{UNIT}.service"), 0o644, TEMPLATE.as_bytes())?;
    }
    for sparse in &write.sparse {
        let name = format!("{UNIT}{}.service", sparse.uid);
        root.create_symlink(&format!("{UNITS}/multi-user.target.wants/{name}"), &format!("{UNITS}/{UNIT}.service"))?;
    }
    let mut done = Vec::new();
    for prepared in &write.volumes {
        let ManifestVolume { volume, device, persistent, size_bytes, .. } = prepared;
        let path = k8s_volume_preparation::persistent_path(persistent)?;
        let measured = || Ok(prepared.size_on(k8s_volume_preparation::read_device_size(device)?));
        let size_bytes = size_bytes.map_or_else(measured, Ok)?;
        done.push(PreparedVolume { name: volume.name.clone(), uid: volume.uid.to_string(), path, size_bytes });
    }
    let volumes = write.volumes.iter().map(|prepared| &prepared.volume).zip(&done);
    let backed = volumes.filter(|(volume, _)| !volume.deleted).map(|(volume, is)| BackedVolume {
        volume,
        path: &is.path,
        size_bytes: is.size_bytes,
    });
    root.write_file(MANIFESTS, 0o644, format_manifests(backed).as_bytes())?;
    Ok(done)
}

fn write_sparse_file(root: &NewRoot, sparse: &SparseVolume) -> Result<()> {
    let SparseVolume { name, uid, path, size_bytes, make } = sparse;
    let what = || format!("file {path} of volume {name}");
    let Some(filling) = make else {
        let found = root.open_file(path).and_then(|file| file.metadata()).context(Phase::Target, what)?;
        return match found.len() == *size_bytes {
            true => Ok(()),
            false => Err(Error::new(
                Phase::Target,
                format!("{file} is {bytes} bytes, but must be {size_bytes} bytes", file = what(), bytes = found.len()),
            )),
        };
    };
    // The file is created with a temporary name, because the next attempt assumes that a file with the final name is
    // complete.
    let unfinished = format!("{path}.new");
    root.remove(&unfinished)?;
    let file = root.create_new_file(&unfinished, 0o600).context(Phase::Target, what)?;
    let fill = || {
        file.set_len(*size_bytes).context(Phase::Target, what)?;
        // The real path is used, because the image may contain arbitrary symlinks.
        let real = root.real_path(&file).context(Phase::Target, what)?;
        k8s_volume_preparation::fill_sparse_file(&real, filling, *uid, name)?;
        file.sync_all().context(Phase::Target, what)?;
        root.rename_new_file(&unfinished, &uid.to_string()).context(Phase::Target, what)
    };
    fill().inspect_err(|_| {
        // The incomplete file is removed, because it may have filled its filesystem.
        if let Err(error) = root.remove(&unfinished) {
            tracing::warn!("{error}");
        }
    })?;
    root.sync_dir(SPARSE)
}

#[cfg(test)]
mod tests;
