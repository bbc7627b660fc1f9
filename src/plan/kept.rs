// STUB for the merge: helper "shape" writes this file. Compares nothing but disks.
use super::{Kept, KeptObject};
use crate::control::wire::KeptProof;
use crate::inventory::Inventory;

pub fn compare(kept: &[Kept], inventory: &Inventory) -> Vec<KeptProof> {
    let proof = |kept: &Kept| {
        let is_there = match &kept.object {
            KeptObject::Disk(name) => inventory.disks.iter().any(|disk| disk.name == *name),
            _ => true,
        };
        let after = if is_there { kept.identity.clone() } else { Default::default() };
        KeptProof { object: format!("{:?}", kept.object), before: kept.identity.clone(), after }
    };
    kept.iter().map(proof).collect()
}

pub fn differences(proofs: &[KeptProof]) -> Vec<String> {
    let changed = proofs.iter().filter(|proof| proof.before != proof.after);
    changed.map(|proof| format!("{} was {:?} and is {:?}", proof.object, proof.before, proof.after)).collect()
}
