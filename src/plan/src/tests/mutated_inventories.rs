//! Edited or damaged inventories: values of recorded inventories are changed, duplicated or removed. A plan must be
//! made or refused, without a panic.
//!
//! `scripts/fuzz SECONDS SEED mutated` runs the test for longer (DROPHAMMER_FUZZ_SECONDS, DROPHAMMER_FUZZ_SEED).

use super::random_inventories::Random;
use super::*;
use model::layout::read_yaml;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of inventories in a run without DROPHAMMER_FUZZ_SECONDS. They are the same in each run.
const FEW: u64 = 1500;

fn recorded(folder: &str) -> Vec<String> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata").join(folder);
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.is_file()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Changes a random value of the document.
fn mutate(random: &mut Random, value: &mut Value) {
    let goes_deeper = !random.one_in(6);
    match value {
        Value::Array(items) if goes_deeper && !items.is_empty() => {
            let at = random.below(items.len());
            mutate(random, &mut items[at]);
        }
        Value::Object(fields) if goes_deeper && !fields.is_empty() => {
            let at = random.below(fields.len());
            if let Some((_, value)) = fields.iter_mut().nth(at) {
                mutate(random, value);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let at = random.below(items.len());
            match random.below(3) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => items.reverse(),
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let at = random.below(fields.len());
            let key = fields.keys().nth(at).cloned().unwrap_or_default();
            fields.remove(&key);
        }
        other => *other = odd(random, other),
    }
}

fn odd(random: &mut Random, old: &Value) -> Value {
    match (old, random.below(8)) {
        (Value::Number(_), 0..4) => {
            let numbers = [0, 1, 511, 4095, 4096, u64::from(u32::MAX), 1 << 62, i64::MAX as u64, u64::MAX];
            json!(numbers[random.below(numbers.len())])
        }
        (Value::Number(number), _) => json!(number.as_u64().unwrap_or_default() ^ (1 << random.below(63))),
        (Value::String(_), 0..3) => {
            let texts = ["", "sda", "/dev/sda", "/dev/sda1", "md127", "dm-0", "gpt", "dos", "raid1", "\u{1b}[2J\n"];
            json!(texts[random.below(texts.len())])
        }
        (Value::String(text), 3) => json!(text.repeat(40)),
        (Value::String(text), _) => json!(text.replacen(char::is_numeric, &random.below(10).to_string(), 1)),
        (Value::Bool(truth), _) => json!(!truth),
        _ => Value::Null,
    }
}

#[test]
fn fuzz_mutated_inventories() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let time = number("DROPHAMMER_FUZZ_SECONDS").map(Duration::from_secs);
    let drawn = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = number("DROPHAMMER_FUZZ_SEED").unwrap_or_else(|| if time.is_some() { drawn() } else { 1 });
    println!("DROPHAMMER_FUZZ_SEED={seed}");
    let (inventories, began) = (recorded("inventories"), Instant::now());
    let inventories: Vec<Value> = inventories.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let layouts: Vec<Layout> =
        recorded("layouts").iter().filter_map(|text| Some(read_yaml(text).ok()?.layout)).collect();
    assert!(layouts.len() >= 5, "{} layouts", layouts.len());
    let (mut random, mut count, mut read, mut planned) = (Random(seed), 0u64, 0u64, 0u64);
    while time.map_or(count < FEW, |time| began.elapsed() < time) {
        let mut value = inventories[random.below(inventories.len())].clone();
        (0..=random.below(4)).for_each(|_| mutate(&mut random, &mut value));
        count += 1;
        let text = value.to_string();
        let Ok(inventory) = serde_json::from_value::<Inventory>(value) else { continue };
        if inventory.find_impossible_property().is_some() {
            continue;
        }
        read += 1;
        let layout = &layouts[random.below(layouts.len())];
        for mode in [InstallMode::Install, InstallMode::Reinstall] {
            let said = std::panic::catch_unwind(|| match make(layout, &inventory, mode) {
                Ok(plan) => (plan.to_string(), true),
                Err(refusal) => (refusal.to_string(), false),
            });
            let (said, is_planned) = said.unwrap_or_else(|_| panic!("{mode:?} {}: {text}", layout.id));
            planned += u64::from(is_planned);
            assert!(!said.is_empty());
        }
    }
    println!("{count} inventories, {read} of them read, {planned} plans");
    // A run of about a second has too few cases for these limits.
    assert!(count < 1000 || (read > count / 100 && planned > count / 100), "{read} read, {planned} planned of {count}");
}
