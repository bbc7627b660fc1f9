//! Tests with sets of layouts: those of `testdata/layouts`, and small sets with collisions.

use super::*;
use crate::layout::{LayoutConstraints, read_yaml};
use proptest::prelude::*;

fn layout(id: &str, sizes: &[&str], images: &[(&str, &str)]) -> Layout {
    let images = images.iter().map(|(os, constraint)| ((*os).to_owned(), (*constraint).to_owned()));
    let sizes = sizes.iter().map(|size| (*size).to_owned()).collect();
    Layout {
        id: id.to_owned(),
        constraints: LayoutConstraints { sizes, images: images.collect() },
        ..Layout::default()
    }
}

#[test]
fn lists_sizes_and_images_without_exactly_one_layout() {
    let undecided = |layouts: &[Layout]| {
        let all = set(layouts).find_undecided(["c1", "c2"], ["debian-12", "ubuntu-24.4"]);
        all.into_iter().map(|why| why.message).collect::<Vec<_>>()
    };
    assert_eq!(undecided(&[layout("named", &[], &[]), layout("half", &[], &[("debian", "*")])]), [""; 0]);
    let whole = layout("whole", &["c1", "c2"], &[("debian", "*"), ("ubuntu", "*")]);
    assert_eq!(undecided(std::slice::from_ref(&whole)), [""; 0]);
    let none = |size: &str, image: &str| {
        format!("could not find a matching filesystemLayout for size:{size} and image:{image}")
    };
    assert_eq!(
        undecided(&[layout("one", &["c1"], &[("debian", ">= 12")])]),
        [none("c1", "ubuntu-24.4"), none("c2", "debian-12"), none("c2", "ubuntu-24.4")]
    );
    let two = undecided(&[whole, layout("other", &["c2"], &[("debian", ">= 12")])]);
    assert!(two.len() == 1 && two[0].starts_with("2 layouts match size:c2 and image:debian-12: "), "{two:?}");
}

fn set(layouts: &[Layout]) -> LayoutSet {
    let files: Vec<PathBuf> = layouts.iter().map(|layout| format!("{}.yaml", layout.id).into()).collect();
    LayoutSet::new(files.iter().map(PathBuf::as_path).zip(layouts))
}

fn seeds() -> LayoutSet {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/layouts");
    let layouts = ["default", "firewall", "lvm", "s3-storage", "storage"].map(|name| {
        let text = std::fs::read_to_string(folder.join(name).with_extension("yaml")).unwrap();
        read_yaml(&text).unwrap().layout
    });
    set(&layouts)
}

/// metal-stack's own proposal contains collisions.
#[test]
fn seed_layouts_of_the_proposal_have_two_collisions() {
    let collisions = seeds().find_collisions();
    let found: Vec<_> = collisions
        .iter()
        .map(|found| [&found.first.id, &found.second.id, &found.size, &found.os, &found.example].map(String::as_str))
        .collect();
    assert_eq!(
        found,
        [
            ["default", "s3-storage", "c1-large-x86", "centos", "centos-7.0.0"],
            ["default", "s3-storage", "c1-large-x86", "debian", "debian-10.0.0"],
            ["default", "s3-storage", "c1-large-x86", "ubuntu", "ubuntu-20.4.0"],
            ["lvm", "s3-storage", "s2-xlarge-x86", "centos", "centos-7.0.0"],
            ["lvm", "s3-storage", "s2-xlarge-x86", "debian", "debian-10.0.0"],
            ["lvm", "s3-storage", "s2-xlarge-x86", "ubuntu", "ubuntu-20.4.0"],
        ]
    );
    assert_eq!(
        collisions[1].to_string(),
        "these combinations already exist:c1-large-x86->[debian >= 10]: debian-10.0.0 on c1-large-x86 would get \
         default (default.yaml, \">= 10\") or s3-storage (s3-storage.yaml, \">= 10\")"
    );
}

#[test]
fn selects_the_matching_layout() {
    let seeds = seeds();
    for (size, image, id) in [
        ("c1-xlarge-x86", "debian-12.0.20261101", "default"),
        ("c1-large-x86", "firewall-2.0.20261101", "firewall"),
        ("s3-large-x86", "centos-7", "storage"),
    ] {
        assert_eq!(seeds.select(size, image).unwrap().id, id);
    }
    for (size, image, said) in [
        (
            "c1-xlarge-x86",
            "debian-9.0.1",
            "could not find a matching filesystemLayout for size:c1-xlarge-x86 and image:debian-9.0.1\n  \
             default (default.yaml) accepts debian \">= 10\"\n  \
             firewall (firewall.yaml) does not accept debian, but firewall \">= 2\"",
        ),
        (
            "n1",
            "debian-10",
            "could not find a matching filesystemLayout for size:n1 and image:debian-10\n  \
             none of the layouts lists this size; listed sizes: c1-large-x86, c1-xlarge-x86, s2-xlarge-x86, s3-large-x86",
        ),
        (
            "c1-large-x86",
            "debian-10",
            "2 layouts match size:c1-large-x86 and image:debian-10: change their constraints so that only one matches, or name the layout in the allocation\n  \
             default (default.yaml) accepts debian \">= 10\"\n  s3-storage (s3-storage.yaml) accepts debian \">= 10\"",
        ),
        ("c1", "debian", "invalid format for os image, expected <os>-<major>.<minor>[.<patch>]: debian"),
        ("c1", "debian-12.0-rc1", "image:debian-12.0-rc1 has \"rc1\" after its last hyphen: invalid semantic version"),
    ] {
        assert_eq!(seeds.select(size, image).unwrap_err().to_string(), said);
    }
}

#[test]
fn unselectable_layouts_have_no_collisions() {
    let layouts = [
        layout("development", &[], &[]),
        layout("by-name", &["c1"], &[]),
        layout("nowhere", &[], &[("debian", "*")]),
        layout("not-valid", &["c1"], &[("debian", ">=10")]),
        layout("real", &["c1"], &[("debian", "*")]),
    ];
    let set = set(&layouts);
    assert_eq!((set.find_collisions(), set.find_duplicates()), (vec![], vec![]));
    assert_eq!(set.select("c1", "debian-7").unwrap().id, "real");
    let said = set.select("c1", "suse-7").unwrap_err();
    assert_eq!(
        said.nearest[0],
        "by-name (by-name.yaml) does not accept any image, so it is used only by allocations that specify it"
    );
}

#[test]
fn duplicate_ids_are_reported() {
    let [one, other] = [layout("a", &["c1"], &[("debian", "*")]), layout("b", &["c1"], &[])];
    let set = LayoutSet::new([(Path::new("1"), &one), (Path::new("2"), &other), (Path::new("3"), &one)]);
    let said: Vec<String> = set.find_duplicates().iter().map(DuplicateLayout::to_string).collect();
    assert_eq!(said, ["3: id: filesystemlayout:a already exists, in 1"]);
    assert_eq!(set.find_collisions(), []);
}

#[test]
fn number_of_reported_collisions_is_limited() {
    let names: Vec<String> = (0..3000).map(|number| number.to_string()).collect();
    let sizes: Vec<&str> = names.iter().map(String::as_str).collect();
    let images: Vec<(&str, &str)> = sizes.iter().map(|os| (*os, "*")).collect();
    let layouts = ["a", "b"].map(|id| layout(id, &sizes, &images));
    assert_eq!(set(&layouts).find_collisions().len(), MAXIMUM_COLLISIONS);
}

proptest! {
    /// If there is no collision, no two layouts accept the same image. The layouts of a collision both accept its
    /// example.
    #[test]
    fn collisions_exist_exactly_if_selection_is_ambiguous(
        constraints in prop::collection::vec("(=|!=|>|<|>=|<=|~|\\^) [0-3](\\.[0-2]){0,2}|\\*", 2..5),
        version in "[0-4]\\.[0-3]\\.[0-3]",
    ) {
        let layouts: Vec<Layout> = constraints
            .iter()
            .zip(["a", "b", "c", "d"])
            .map(|(constraint, id)| layout(id, &["s"], &[("os", constraint)]))
            .collect();
        let set = set(&layouts);
        let takers = |image: &str| {
            let image = ImageId::parse(image).unwrap();
            set.members.iter().filter(|member| member.accepts("s", &image)).map(|member| &member.id).collect::<Vec<_>>()
        };
        let collisions = set.find_collisions();
        for found in &collisions {
            let takers = takers(&found.example);
            prop_assert!(takers.contains(&&found.first.id) && takers.contains(&&found.second.id), "{}", found);
        }
        if takers(&format!("os-{version}")).len() > 1 {
            prop_assert!(!collisions.is_empty());
        }
    }
}
