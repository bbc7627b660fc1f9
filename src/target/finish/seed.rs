//! cloud-init's seed on a filesystem of its own: it looks for one that is called CIDATA, wherever that lies.

use super::Say;
use super::boot::Esp;
use super::esp::{self, OnEsp};
use super::user_data::SEED;
use crate::error::{Context, Phase, Result};
use crate::plan::Seed;
use crate::target::Root;

const FILES: [&str; 3] = ["meta-data", "user-data", "network-config"];

/// Brings the seed from the tree to its own filesystem.
///
/// # Errors
/// It cannot be mounted or written.
pub fn bring(root: &Root, seed: Option<&Seed>, say: Say) -> Result<()> {
    let Some(Seed { device, path }) = seed else { return Ok(()) };
    let in_tree = |name: &str| format!("{SEED}/{name}");
    let texts = FILES.into_iter().filter_map(|name| Some((name, root.read(&in_tree(name)).ok()?)));
    let files: Vec<OnEsp> = texts.map(|(name, text)| OnEsp::text(format!("/{name}"), text)).collect();
    if files.is_empty() {
        say(&format!("WARNING: the image has no cloud-init: {device} is for its seed, and has none"));
        return Ok(());
    }
    let on = Esp { device: device.clone(), path: path.clone() };
    esp::fill(root, &[on], &files).context(Phase::Target, || "cloud-init's seed")?;
    FILES.into_iter().try_for_each(|name| root.remove(&in_tree(name)))?;
    say(&format!("cloud-init finds its seed on {device}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{said, tree};
    use super::*;

    #[test]
    fn the_seed_lies_where_the_layout_has_a_filesystem_for_it() {
        let seed = Seed { device: "/dev/sda3".into(), path: Some("/seed".to_owned()) };
        let (_dir, root) = tree(&[
            ("var/lib/cloud/seed/nocloud/meta-data", "instance-id: a-1\n"),
            ("var/lib/cloud/seed/nocloud/user-data", "#cloud-config\n{}\n"),
        ]);
        let (done, lines) = said(|say| bring(&root, Some(&seed), say));
        done.unwrap();
        assert_eq!(lines, ["cloud-init finds its seed on /dev/sda3"]);
        assert_eq!(root.read("/seed/meta-data").unwrap(), "instance-id: a-1\n");
        assert_eq!(root.read("/seed/user-data").unwrap(), "#cloud-config\n{}\n");
        // Secrets are in one place only, and what there is none of is not made up.
        assert!(!root.has("/var/lib/cloud/seed/nocloud/user-data") && !root.has("/seed/network-config"));

        let (done, lines) = said(|say| bring(&tree(&[]).1, Some(&seed), say));
        done.unwrap();
        assert_eq!(lines, ["WARNING: the image has no cloud-init: /dev/sda3 is for its seed, and has none"]);
        said(|say| bring(&root, None, say)).0.unwrap();
    }
}
