//! Golden tests of trees and pictures, and tests of properties that the trees and pictures of all layouts have.

use super::*;
use model::layout::graph::testing::{any_layout, disk, raid, rich, seeds};
use model::layout::{DiskSpec, Layout, PartitionType, RaidLevel};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn place(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

/// Compares the drawing with the file. If `UPDATE_GOLDEN` is set in the environment, rewrites the file.
fn golden(path: &str, found: &str) {
    let file = place(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, found).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{path} is not up to date; UPDATE_GOLDEN=1 cargo test writes it\n{found}");
}

fn all() -> Vec<(&'static str, Layout)> {
    seeds().into_iter().chain(rich()).collect()
}

#[test]
fn drawn_trees_match_the_recorded_files() {
    for (name, layout) in all() {
        golden(&format!("testdata/trees/{name}.txt"), &terminal::draw_tree(&LayoutGraph::from_layout(&layout), false));
    }
}

#[test]
fn trees_fit_into_100_columns() {
    for (name, layout) in all() {
        for line in terminal::draw_tree(&LayoutGraph::from_layout(&layout), false).lines() {
            assert!(line.chars().count() <= 100, "{name}: {line}");
            assert_eq!(line, line.trim_end(), "{name}");
        }
    }
}

#[test]
fn the_picture_in_the_docs_is_up_to_date() {
    let (_, layout) = seeds().into_iter().find(|(name, _)| *name == "storage").unwrap();
    golden("docs/storage.svg", &diagram::draw_svg(&LayoutGraph::from_layout(&layout)));
}

#[test]
fn the_trees_in_the_docs_are_up_to_date() {
    let (_, layout) = seeds().into_iter().find(|(name, _)| *name == "storage").unwrap();
    let tree = terminal::draw_tree(&LayoutGraph::from_layout(&layout), false);
    assert_eq!(testing::docs::code_blocks(include_str!("../../../../../docs/desk.md"), "text"), [tree.trim_end()]);
    let guide = include_str!("../../../../../docs/mirror-lvm.md");
    let layout = model::layout::read_yaml(&testing::docs::code_blocks(guide, "yaml")[0]).unwrap().layout;
    let tree = terminal::draw_tree(&LayoutGraph::from_layout(&layout), false);
    assert_eq!(testing::docs::code_blocks(guide, "text")[0], tree.trim_end());
}

/// The layouts contain as many devices as fit into a document of the maximum size.
#[test]
fn the_largest_layouts_are_drawn() {
    let chain = |number: usize| {
        raid(&format!("/dev/md/{number}"), RaidLevel::Raid1, &[&format!("/dev/md/{}", number + 1)], 0, &[])
    };
    let deep = Layout { raid: (0..1500).map(chain).collect(), ..Layout::default() };
    let parts: Vec<(u32, &str, u64, PartitionType)> =
        (1..=20).map(|number| (number, "", 1, PartitionType::Linux)).collect();
    let disks: Vec<DiskSpec> = (0..100).map(|number| disk(&format!("/dev/nvme{number}n1"), true, &parts)).collect();
    let members: Vec<String> = (0..100).map(|number| format!("/dev/nvme{number}n1p1")).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    let wide = Layout { disks, raid: vec![raid("/dev/md0", RaidLevel::Raid6, &members, 10, &[])], ..Layout::default() };
    for layout in [deep, wide] {
        let graph = LayoutGraph::from_layout(&layout);
        assert!(terminal::draw_tree(&graph, false).lines().count() >= graph.nodes.len());
        assert!(diagram::draw_svg(&graph).ends_with("</svg>\n"));
    }
}

#[test]
fn invalid_layout_is_not_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("layout.svg");
    let draw =
        |layout: &str| run_tree(&TreeOptions { layout: place(layout), svg: Some(Some(picture.clone())) }).unwrap();
    assert_eq!(draw("testdata/layouts/bad/no-root.yaml"), CommandOutcome::Refused);
    assert!(!picture.exists());
    assert_eq!(draw("testdata/layouts/default.yaml"), CommandOutcome::Good);
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
}

/// Boxes in one column do not overlap vertically, and columns do not overlap horizontally.
#[test]
fn boxes_do_not_overlap() {
    for (name, layout) in all() {
        let graph = LayoutGraph::from_layout(&layout);
        let sizes: Vec<(f64, f64)> =
            (0..graph.nodes.len()).map(|node| (100.0, 20.0 + (node % 3) as f64 * 10.0)).collect();
        let boxes = diagram::placement::place_nodes(&graph, &sizes).boxes;
        for (index, one) in boxes.iter().enumerate() {
            for other in &boxes[index + 1..] {
                let beside = one.x + one.width <= other.x || other.x + other.width <= one.x;
                let apart = one.y + one.height <= other.y || other.y + other.height <= one.y;
                assert!(beside || apart, "{name}: {one:?} {other:?}");
            }
        }
    }
}

fn texts(document: &roxmltree::Document) -> String {
    document.descendants().filter_map(|node| node.text()).collect::<Vec<_>>().join("\n")
}

/// If `DRAWINGS=FOLDER` is set in the environment, also writes the pictures to this folder.
#[test]
fn a_picture_names_every_device() {
    for (name, layout) in all() {
        let graph = LayoutGraph::from_layout(&layout);
        let picture = diagram::draw_svg(&graph);
        let document = roxmltree::Document::parse(&picture).unwrap();
        let texts = texts(&document);
        for node in &graph.nodes {
            assert!(texts.contains(node.name.as_str()), "{name}: {}", node.name);
        }
        if let Some(folder) = std::env::var_os("DRAWINGS") {
            std::fs::write(Path::new(&folder).join(format!("{name}.svg")), picture).unwrap();
        }
    }
}

#[test]
fn text_of_the_layout_is_never_markup() {
    let (_, mut layout) = seeds().remove(0);
    layout.id = "<script>\"&'\u{0}\u{ffff}".to_owned();
    layout.filesystems[0].label = Some("</text><a b='\"".to_owned());
    let picture = diagram::draw_svg(&LayoutGraph::from_layout(&layout));
    let document = roxmltree::Document::parse(&picture).unwrap();
    assert!(!document.descendants().any(|node| matches!(node.tag_name().name(), "script" | "a")));
    assert!(texts(&document).contains("</text><a b='\""));
}

#[test]
fn tree_is_colored_only_on_request() {
    for (_, layout) in all() {
        let graph = LayoutGraph::from_layout(&layout);
        let plain = terminal::draw_tree(&graph, false);
        assert!(!plain.contains('\x1b'));
        let colored = common::format::terminal_escaping::render_styles(&terminal::draw_tree(&graph, true));
        assert!(colored.contains("\x1b["));
        let mut stripped = String::new();
        for part in colored.split('\x1b') {
            stripped += part.split_once('m').filter(|_| part.starts_with('[')).map_or(part, |(_, rest)| rest);
        }
        let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(lines(&stripped), lines(&plain));
    }
}

proptest! {
    #[test]
    fn any_layout_can_be_drawn(layout in any_layout()) {
        let graph = LayoutGraph::from_layout(&layout);
        let tree = terminal::draw_tree(&graph, false);
        prop_assert!(!tree.chars().any(|c| c.is_control() && c != '\n'));
        let picture = diagram::draw_svg(&graph);
        prop_assert!(roxmltree::Document::parse(&picture).is_ok(), "{picture}");
        prop_assert_eq!(picture, diagram::draw_svg(&graph));
    }
}
