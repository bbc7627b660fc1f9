//! Tests that compare the examples in `docs/` with the program.

mod compared_commands;
mod error_codes;
mod links;
mod messages;
mod rescue_shell;
mod traceability_tables;

use common::diagnostic::join_problems;
use links::pages;
use model::allocation::AssignedMachine;
use model::deploy_steps::StepList;
use model::layout;
use plan::{InstallMode, PlanRequest, PlanSubject};
use std::fs;
use testing::docs::code_blocks;
use uuid::Uuid;

/// The pages about layouts.
pub(crate) const LAYOUT_PAGES: &str = concat!(
    include_str!("../../../docs/layouts.md"),
    include_str!("../../../docs/arrays.md"),
    include_str!("../../../docs/hints.md"),
    include_str!("../../../docs/encryption.md"),
    include_str!("../../../docs/cloud-images.md"),
    include_str!("../../../docs/mirror-lvm.md"),
);

/// The pages about machine files and image files.
const MACHINE_PAGES: &str =
    concat!(include_str!("../../../docs/machine.md"), include_str!("../../../docs/image-file.md"));

/// The pages about the steps for Ironic.
const IRONIC_PAGES: &str =
    concat!(include_str!("../../../docs/ironic-steps.md"), include_str!("../../../docs/ironic-direct.md"));

#[test]
fn the_layouts_in_the_docs_are_valid_and_canonical() {
    let blocks = code_blocks(LAYOUT_PAGES, "yaml");
    assert_eq!(blocks.len(), 7);
    for block in blocks {
        let parsed = layout::read_yaml(&block).unwrap_or_else(|problems| panic!("{block}{}", join_problems(&problems)));
        assert_eq!(parsed.notes, [], "{block}");
    }
}

#[test]
fn documented_spellings_are_parsed_as_canonical() {
    let text = include_str!("../../../docs/layouts.md");
    let example = &code_blocks(text, "yaml")[0];
    let spellings = [
        ("wipeonreinstall: true", "wipe: true"),
        ("gpttype: ef00", "type: GPTBoot"),
        ("gpttype: \"8300\"", "type: GPTLinux"),
        ("createoptions: [\"-F\", \"32\"]", "options: \"-F 32\""),
        ("createoptions: [\"-F\", \"32\"]", "createoptions: [\"-F 32\"]"),
        (
            "mountoptions: [noatime, nosuid, nodev, mode=1777, size=512M]",
            "mountoptions: \"noatime, nosuid,nodev,mode=1777,size=512M\"",
        ),
        ("gpttype: \"8300\"", "gpttype: 8300"),
        ("size: 500,", "size: \"500\","),
        ("sizes: [c1-large-x86]", "size: [c1-large-x86]"),
        ("\">= 12\"", "\">=12\""),
    ];
    let canonical = layout::read_yaml(example).unwrap().layout;
    for (canonical_spelling, other) in spellings {
        assert!(example.contains(canonical_spelling), "{canonical_spelling}");
        let parsed = layout::read_yaml(&example.replace(canonical_spelling, other)).unwrap();
        assert_eq!(parsed.layout, canonical, "{other}");
        assert!(!parsed.notes.is_empty(), "{other}");
    }
}

/// Checks that the pages document exactly the steps that are offered to Ironic, and that the agent accepts the
/// documented steps.
#[test]
fn documented_ironic_steps_match_the_offered_steps() {
    use model::deploy_steps::{OFFERED, TemplateStep};
    let text = IRONIC_PAGES;
    for offer in &OFFERED {
        let name = format!("`{}.{}`", offer.interface, offer.step);
        assert!(text.contains(&name), "{name}");
    }
    for block in code_blocks(text, "json") {
        let steps: Vec<TemplateStep> = serde_json::from_str(&block).unwrap_or_else(|error| panic!("{block}: {error}"));
        for step in steps {
            let is_this = |offer: &&model::deploy_steps::OfferedStep| {
                (offer.interface, offer.step) == (&*step.interface, &*step.step)
            };
            let offer = OFFERED.iter().find(is_this).unwrap_or_else(|| panic!("{step:?}"));
            for (name, value) in &step.args {
                assert!(offer.arguments.iter().any(|taken| taken.name == name), "{name} of {step:?}");
                match name.as_str() {
                    "layout" => {
                        drop(layout::read_json(value).unwrap_or_else(|problems| panic!("{}", join_problems(&problems))))
                    }
                    "raid_config" => drop(model::ironic_raid::RaidConfig::parse_config(value).unwrap()),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn documented_allocation_is_parsed() {
    let blocks = code_blocks(include_str!("../../../docs/api-allocation.md"), "json");
    assert_eq!(blocks.len(), 1);
    let machine: AssignedMachine = serde_json::from_str(&blocks[0]).unwrap();
    assert_eq!(machine.allocation.unwrap().hostname, "storage-7");
}

#[test]
fn documented_extents_are_parsed() {
    let block = &code_blocks(include_str!("../../../docs/extents.md"), "json")[0];
    let plan: serde_json::Value = serde_json::from_str(&format!("{{{block}}}")).unwrap();
    let extents: Vec<operations::StageExtents> = serde_json::from_value(plan["extents"].clone()).unwrap();
    assert_eq!((extents.len(), extents[1].disks[0].device.as_str()), (2, "/dev/sda"));
}

/// Checks that each expression in the table of root device hints in `docs/hints.md` is valid.
#[test]
fn the_hints_in_the_docs_are_understood() {
    let text = include_str!("../../../docs/hints.md");
    let mut of = "";
    let mut found = 0;
    let table = text.split("| value | expression | matches |").nth(1).unwrap().split("\n\n").next().unwrap();
    for row in table.lines().filter(|row| row.contains('`')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        of = if cells[1].is_empty() { of } else { cells[1] };
        let hint = if of == "numbers" { "size" } else { "model" };
        for expression in cells[2].split('`').skip(1).step_by(2) {
            let hints = [(hint.to_owned(), expression.to_owned())].into();
            assert_eq!(layout::root_device_hints::check_hints(&hints), [], "{expression}");
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}

/// Checks that the program accepts each `drophammer image …` command line on the pages about packing and signing.
#[test]
fn the_commands_about_images_in_the_docs_are_understood() {
    use clap::Parser;
    let pages = concat!(include_str!("../../../docs/packing.md"), include_str!("../../../docs/signing.md"));
    let blocks = code_blocks(pages, "sh").join("\n");
    let commands: Vec<_> = blocks.lines().filter(|line| line.starts_with("drophammer ")).collect();
    assert_eq!(commands.len(), 3);
    for command in commands {
        crate::cli::Cli::try_parse_from(command.split_whitespace())
            .unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

#[test]
fn documented_manifest_and_key_are_parsed() {
    let manifest = &code_blocks(include_str!("../../../docs/images.md"), "json")[0];
    let manifest = image::ImageManifest::parse(manifest.as_bytes()).unwrap();
    assert_eq!(manifest.chunks.len(), 2);
    let text = include_str!("../../../docs/signing.md");
    let key = text.split("`drophammer.key=").nth(1).unwrap().split('`').next().unwrap();
    let keys = image::SignatureKeys::read(&[key.to_owned()], std::path::Path::new("/no/such/directory")).unwrap();
    assert_eq!(keys.0.len(), 1);
}

/// Checks that the output of `drophammer plan` contains each line of an example. `…` in an example stands for omitted
/// lines.
fn assert_plan_is_printed(mode: InstallMode, layout: &str, inventory: &str, shown: &str) {
    let layout = layout::read_yaml(layout).unwrap().layout;
    let inventory: model::inventory::Inventory = serde_json::from_str(inventory).unwrap();
    let subject = PlanSubject {
        machine: inventory.system.uuid.clone().unwrap_or_default(),
        image: "the image".to_owned(),
        url: "the image's server".to_owned(),
        ..PlanSubject::default()
    };
    let request = PlanRequest { mode, steps: StepList::default(), subject, assigned: Default::default(), claim: None };
    let printed = plan::make_plan(&layout, &inventory, request, &mut Uuid::new_v4).unwrap().to_string();
    let printed: Vec<&str> = printed.lines().collect();
    let shown: Vec<&str> = shown.lines().filter(|line| line.trim() != "…").collect();
    assert!(shown.len() > 15, "{}", shown.len());
    for line in shown {
        assert!(printed.contains(&line), "{line}\n{}", printed.join("\n"));
    }
}

#[test]
fn documented_plans_match_the_printed_plans() {
    assert_plan_is_printed(
        InstallMode::Reinstall,
        include_str!("../../../testdata/resized/layout.yaml"),
        include_str!("../../../testdata/resized/as-installed.json"),
        &code_blocks(include_str!("../../../README.md"), "text")[0],
    );
    let guide = include_str!("../../../docs/mirror-lvm.md");
    assert_plan_is_printed(
        InstallMode::Install,
        &code_blocks(guide, "yaml")[0],
        include_str!("../../../testdata/inventories/five-sata.json"),
        &code_blocks(guide, "text")[1],
    );
}

#[test]
fn documented_preview_matches_the_recorded_preview() {
    let printed: Vec<&str> = include_str!("../../../testdata/plans/preview.txt").lines().collect();
    let shown = &code_blocks(include_str!("../../../docs/reinstall.md"), "text")[0];
    assert!(shown.lines().count() > 8, "{shown}");
    for line in shown.lines() {
        assert!(printed.contains(&line), "{line}");
    }
}

#[test]
fn documented_machines_and_images_are_valid() {
    use site::operator_files::{parse_image, parse_machine};
    let of_machine = code_blocks(MACHINE_PAGES, "yaml");
    let [whole, least, an_image] = &of_machine[..] else { panic!("{of_machine:?}") };
    assert_eq!(parse_machine(whole).unwrap().macs.len(), 2);
    assert!(parse_machine(least).unwrap().allocation.is_some());
    parse_image(an_image).unwrap();

    let tutorial = concat!(include_str!("../../../docs/start.md"), include_str!("../../../docs/start-machine.md"));
    let of_start = code_blocks(tutorial, "yaml");
    let [a_layout, first] = &of_start[..] else { panic!("{of_start:?}") };
    assert_eq!(a_layout.trim_end(), include_str!("../../../examples/site/layouts/one-disk.yaml").trim_end());
    let parsed = layout::read_yaml(a_layout).unwrap_or_else(|problems| panic!("{}", join_problems(&problems)));
    let first = parse_machine(first).unwrap().allocation.unwrap();
    assert_eq!(first.image.as_str(), "debian-12.0.20261122");
    assert_eq!(first.filesystemlayout.as_deref(), Some(&parsed.layout.id));
}

/// Checks that each network configuration on the page is valid in a machine file.
#[test]
fn documented_networks_are_valid() {
    let blocks = code_blocks(include_str!("../../../docs/network.md"), "yaml");
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        let network = block.lines().map(|line| format!("    {line}\n")).collect::<String>();
        let text = format!(
            "id: 4c4c4544-0051-3010-8031-b2c04f333633\nallocation:\n  id: a\n  hostname: h\n  image: i\n  network:\n{network}"
        );
        let machine = site::operator_files::parse_machine(&text).unwrap_or_else(|why| panic!("{block}\n{why}"));
        let document = &machine.allocation.unwrap().passed_on["network"];
        let network = netconfig::NetworkConfig::parse(document).unwrap();
        assert!(!network.render(netconfig::NetworkBackend::Networkd, &[]).is_empty());
    }
}

/// Checks that the page lists all fields of network devices, as the parser's message about an unknown field does.
#[test]
fn every_field_of_a_network_is_in_the_docs() {
    let page = include_str!("../../../docs/network.md");
    let qqq = serde_json::json!({"qqq": 1, "parameters": {"qqq": 1}, "match": {"qqq": 1}, "nameservers": {"qqq": 1}, "routes": [{"qqq": 1}]});
    let document = serde_json::json!({"ethernets": {"a": qqq}, "bonds": {"b": qqq}, "vlans": {"c": qqq}, "qqq": 1});
    let problems = netconfig::NetworkConfig::parse(&document).unwrap_err();
    let lists = problems.iter().filter_map(|problem| problem.message.split_once("\"qqq\"; supported: "));
    let known: Vec<&str> = lists.flat_map(|(_, known)| known.split(", ")).collect();
    assert!(known.len() > 40, "{known:?}");
    for field in known {
        assert!(page.contains(&format!("`{field}`")), "{field}");
    }
}

/// Checks that the page lists all fields of machine files and image files. The fields are taken from the parser's
/// message about an unknown field, which lists all fields if the name does not resemble one of them.
#[test]
fn every_machine_and_image_field_is_documented() {
    use site::operator_files::{parse_image, parse_machine};
    let page = MACHINE_PAGES;
    let of_machine = parse_machine("qqq: 1\n").unwrap_err();
    let of_allocation = parse_machine("id: 4c4c4544-0051-3010-8031-b2c04f333633\nallocation: {qqq: 1}\n").unwrap_err();
    let of_image = parse_image("qqq: 1\n").unwrap_err();
    for (error, least) in [(of_machine, 7), (of_allocation, 16), (of_image, 6)] {
        let known = error.split_once("; available: ").unwrap_or_else(|| panic!("{error}")).1;
        let known: Vec<&str> = known.lines().next().unwrap_or_default().split(", ").collect();
        assert!(known.len() >= least, "{error}");
        for field in known {
            assert!(page.contains(&format!("`{field}`")), "{field}: {error}");
        }
    }
}

#[test]
fn documented_dhcp_configurations_match_the_server() {
    let script = pxe::ipxe::start_script("http://10.0.0.1:8080");
    assert!(
        code_blocks(include_str!("../../../docs/dhcp-router.md"), "text")
            .iter()
            .any(|block| *block == script.trim_end()),
        "{script}"
    );
    let kea: serde_json::Value =
        serde_json::from_str(&code_blocks(include_str!("../../../docs/dhcp-kea.md"), "json")[0]).unwrap();
    let dnsmasq = &code_blocks(include_str!("../../../docs/dhcp-dnsmasq.md"), "conf")[0];
    let classes = kea["Dhcp4"]["client-classes"].as_array().unwrap();
    let files: Vec<&str> = classes.iter().filter_map(|class| class["boot-file-name"].as_str()).collect();
    assert_eq!(files.len(), 4);
    for file in files {
        assert!(dnsmasq.contains(&format!(",{file}")), "{file}");
    }
    // Both configurations assign one lease to each NIC, and do not respond to firmware for which they have no boot
    // file.
    assert_eq!(kea["Dhcp4"]["match-client-id"], false);
    assert_eq!(classes.last().unwrap()["name"], "DROP");
    assert!(dnsmasq.contains("\ndhcp-ignore-clid\n") && dnsmasq.contains("\ndhcp-ignore=tag:firmware,"), "{dnsmasq}");
}

/// Checks that the program accepts each command line in the code blocks: each line that begins with `drophammer`.
#[test]
fn the_commands_in_the_docs_are_understood() {
    use clap::Parser;
    let mut found = 0;
    for page in pages() {
        for line in fs::read_to_string(&page).unwrap().lines() {
            // Code blocks in lists are indented further.
            let code = line.strip_prefix("    ").map(str::trim_start);
            let Some(command) = code.filter(|line| line.starts_with("drophammer ")) else { continue };
            // A trailing comment and redirections of the shell are ignored.
            let command = command.split("  #").next().unwrap_or_default();
            let words = command.split_whitespace().take_while(|word| ![">", "|", "&&"].contains(word));
            crate::cli::Cli::try_parse_from(words)
                .unwrap_or_else(|error| panic!("{}: {command}: {error}", page.display()));
            found += 1;
        }
    }
    assert!(found > 15, "{found}");
}

#[test]
fn systemd_unit_is_valid_and_unprivileged() {
    let unit = include_str!("../../../docs/drophammer-serve.service");
    let has = |line: &str| unit.lines().any(|has| has == line);
    for line in [
        "User=drophammer",
        "CapabilityBoundingSet=",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "ReadWritePaths=/srv/drophammer",
        "SystemCallFilter=@system-service",
        "Type=notify",
        "WatchdogSec=60",
        "MemoryMax=1G",
        "LimitCORE=0",
    ] {
        assert!(has(line), "{line}");
    }
    assert!(has("ExecStart=/usr/local/bin/drophammer serve /srv/drophammer"));
    // The paths in the unit file do not exist on this machine.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drophammer-serve.service");
    fs::write(&file, unit.replace("/usr/local/bin/drophammer", "/bin/true")).unwrap();
    for args in [&["verify"][..], &["security", "--offline=true", "--threshold=20"]] {
        // Without systemd, this check is skipped.
        let Ok(said) = std::process::Command::new("systemd-analyze").args(args).arg(&file).output() else { return };
        let words = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        assert!(said.status.success() && !words.contains("Unknown key"), "{words}");
    }
}
