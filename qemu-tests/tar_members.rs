//! Additional members of a tar, written exactly as the scenario specifies. Libraries refuse to write some of them.

use crate::host_tools::{Context, Result};
use crate::scenario_image::TarMember;
use tar::{EntryType, Header};

const TAR_BLOCK_BYTES: usize = 512;

/// Appends members to the tar.
///
/// # Errors
/// Fails if the tar cannot be read, or a member does not fit into a header.
pub fn append_members(mut tar: Vec<u8>, members: &[TarMember]) -> Result<Vec<u8>> {
    tar.truncate(find_end(&tar)?);
    for member in members {
        tar.extend(build_header(member)?.as_bytes());
        tar.extend(member.text.iter().flat_map(|text| text.bytes()));
        tar.resize(tar.len().next_multiple_of(TAR_BLOCK_BYTES), 0);
    }
    tar.extend([0; 2 * TAR_BLOCK_BYTES]);
    Ok(tar)
}

/// Returns the offset of the end of the last member.
fn find_end(tar: &[u8]) -> Result<usize> {
    let mut archive = tar::Archive::new(tar);
    let mut end = 0;
    for entry in archive.entries().context("the tar")?.raw(true) {
        let entry = entry.context("the tar")?;
        let body = entry.raw_file_position() as usize;
        end = (body + entry.size() as usize).next_multiple_of(TAR_BLOCK_BYTES);
    }
    Ok(end)
}

fn build_header(member: &TarMember) -> Result<Header> {
    let mut header = Header::new_ustar();
    let mode = member.mode.as_deref().unwrap_or("0644");
    header.set_mode(u32::from_str_radix(mode, 8).context(format!("{}: mode {mode}", member.path))?);
    header.set_uid(member.uid.into());
    header.set_gid(member.gid.into());
    header.set_mtime(0);
    header.set_size(member.text.as_ref().map_or(0, |text| text.len() as u64));
    // `set_path` would refuse the paths of hostile members.
    fill_field(&mut header.as_old_mut().name, &member.path)?;
    let link = member.symlink.as_ref().or(member.hard_link.as_ref());
    if let Some(link) = link {
        fill_field(&mut header.as_old_mut().linkname, link)?;
    }
    let kind = match member {
        TarMember { symlink: Some(_), .. } => EntryType::Symlink,
        TarMember { hard_link: Some(_), .. } => EntryType::Link,
        TarMember { device: Some(device), .. } => device_node(&mut header, device)?,
        TarMember { directory: true, .. } => EntryType::Directory,
        _ => EntryType::Regular,
    };
    header.set_entry_type(kind);
    header.set_cksum();
    Ok(header)
}

fn fill_field(field: &mut [u8], text: &str) -> Result<()> {
    let place = field.get_mut(..text.len()).ok_or(format!("{text}: too long for a tar header"))?;
    place.copy_from_slice(text.as_bytes());
    Ok(())
}

/// Parses `b MAJOR MINOR` or `c MAJOR MINOR`.
fn device_node(header: &mut Header, device: &str) -> Result<EntryType> {
    let wrong = || format!("{device}: a device must be `b MAJOR MINOR` or `c MAJOR MINOR`");
    let [kind, major, minor] = device.split(' ').collect::<Vec<_>>()[..] else { return Err(wrong()) };
    let number = |text: &str| text.parse().map_err(|_| wrong());
    header.set_device_major(number(major)?).context(device)?;
    header.set_device_minor(number(minor)?).context(device)?;
    match kind {
        "b" => Ok(EntryType::Block),
        "c" => Ok(EntryType::Char),
        _ => Err(wrong()),
    }
}

/// Returns whether exactly one of the fields for the type of the member is set.
pub fn has_one_type(member: &TarMember) -> bool {
    let fields = [&member.text, &member.symlink, &member.hard_link, &member.device];
    fields.iter().filter(|kind| kind.is_some()).count() + usize::from(member.directory) == 1
}

/// Tests that every type of member is written as specified, after the existing members, and that the tar ends with
/// zeros.
pub fn self_test() {
    let mut tar = tar::Builder::new(Vec::new());
    let zeros = vec![0; 1500];
    let mut first = Header::new_gnu();
    first.set_size(zeros.len() as u64);
    first.set_mode(0);
    tar.append_data(&mut first, "first", &zeros[..]).expect("a member");
    let tar = tar.into_inner().expect("a tar");
    let path = |path: &str| TarMember { path: path.to_owned(), ..TarMember::default() };
    let members = [
        TarMember { text: Some("x".to_owned()), mode: Some("4755".to_owned()), ..path("../../evil") },
        TarMember { symlink: Some("/etc".to_owned()), ..path("a, b") },
        TarMember { hard_link: Some("/etc/shadow".to_owned()), uid: 7, ..path("link") },
        TarMember { device: Some("b 8 1".to_owned()), ..path("/dev/sda") },
        TarMember { directory: true, ..path("folder") },
    ];
    let whole = append_members(tar, &members).expect("a tar");
    let mut archive = tar::Archive::new(&whole[..]);
    let found: Vec<String> = archive
        .entries()
        .expect("entries")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let (header, path) = (entry.header(), entry.path_bytes());
            let link = entry.link_name_bytes().map(|link| String::from_utf8_lossy(&link).into_owned());
            let (mode, minor) = (header.mode().expect("a mode"), header.device_minor().ok().flatten());
            let kind = header.entry_type();
            format!("{} {kind:?} {mode:o} {} {link:?} {minor:?}", String::from_utf8_lossy(&path), entry.size())
        })
        .collect();
    assert_eq!(
        found,
        [
            "first Regular 0 1500 None None",
            "../../evil Regular 4755 1 None None",
            "a, b Symlink 644 0 Some(\"/etc\") None",
            "link Link 644 0 Some(\"/etc/shadow\") None",
            "/dev/sda Block 644 0 None Some(1)",
            "folder Directory 644 0 None None",
        ]
    );
    assert!(
        append_members(vec![], &[path(&"x".repeat(101))]).expect_err("too long").contains("too long for a tar header")
    );
    let bad = TarMember { device: Some("p 1".to_owned()), ..path("p") };
    assert!(append_members(vec![], &[bad]).expect_err("no device").contains("MAJOR"));
    assert!(members.iter().all(has_one_type) && !has_one_type(&path("nothing")));
    assert!(!has_one_type(&TarMember { text: Some(String::new()), directory: true, ..path("both") }));
}
