//! Reads tars with GNU tar, libarchive and Python, to compare the results with those of this crate. Names in the tars
//! must be plain words.

use crate::testing::reader;
use crate::tree::tar_member::MemberKind;
use crate::tree::tar_parser::TarParser;
use common::encoding::decode_hex;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use testing::reference_implementation::ReferenceProcess;

/// Member: name without `./` and trailing slash, type as in `ls -l` (`h` for a hard link), length, and link target.
pub(crate) type Listed = (String, char, u64, String);

/// Members of an archive, and the concatenated contents of all files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub members: Vec<Listed>,
    pub content: Vec<u8>,
}

/// Reading, or the reason why the archive was rejected.
pub(crate) type Verdict = Result<Reading, String>;

/// Maximum size of the output of a program, in bytes; the program is then ended by SIGPIPE.
const MOST_OUTPUT: u64 = 32 << 20;

pub(crate) struct Judges {
    python: ReferenceProcess,
    archive: File,
}

impl Judges {
    pub fn start() -> Judges {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tree/tests/tar_judge.py");
        Judges { python: ReferenceProcess::start_python(script), archive: tempfile::tempfile().unwrap() }
    }

    /// Returns the readings of GNU tar, libarchive and Python.
    pub fn read(&mut self, tar: &[u8]) -> [(&'static str, Verdict); 3] {
        let gnu = &["tar", "--numeric-owner", "--quoting-style=escape", "--full-time", "-P"][..];
        let bsd = &["bsdtar", "--numeric-owner", "-P"];
        [("GNU tar", self.run(tar, gnu, 5)), ("bsdtar", self.run(tar, bsd, 8)), ("Python", self.python(tar))]
    }

    fn python(&mut self, tar: &[u8]) -> Verdict {
        let answer: serde_json::Value = serde_json::from_str(&self.python.ask(tar)).unwrap();
        if let Some(error) = answer["error"].as_str() {
            return Err(error.to_owned());
        }
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let member = |member: &serde_json::Value| {
            let kind = text(&member[1]).chars().next().unwrap();
            (plain(&text(&member[0])), kind, member[2].as_u64().unwrap_or(u64::MAX), plain(&text(&member[3])))
        };
        let members = answer["members"].as_array().unwrap().iter().map(member).collect();
        Ok(Reading { members, content: decode_hex(answer["content"].as_str().unwrap()).unwrap() })
    }

    /// Runs a tar program twice, for the list and for the contents. `fields` is the number of fields before the name in
    /// the lines of the list.
    fn run(&mut self, tar: &[u8], program: &[&str], fields: usize) -> Verdict {
        self.archive.set_len(0).unwrap();
        self.archive.seek(SeekFrom::Start(0)).unwrap();
        self.archive.write_all(tar).unwrap();
        let list = self.output(program, "-tvf")?;
        let content = self.output(program, "-xOf")?;
        let list = String::from_utf8_lossy(&list).into_owned();
        Ok(Reading { members: list.lines().map(|line| listed(line, fields)).collect(), content })
    }

    fn output(&mut self, program: &[&str], action: &str) -> Result<Vec<u8>, String> {
        self.archive.seek(SeekFrom::Start(0)).unwrap();
        let mut errors = tempfile::tempfile().unwrap();
        let mut process = Command::new(program[0])
            .args(&program[1..])
            .args([action, "-"])
            .env("LC_ALL", "C")
            .stdin(self.archive.try_clone().unwrap())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program[0]));
        let mut output = Vec::new();
        // For members whose content is missing, bsdtar prints as many bytes as the declared size, which may be 16 GiB.
        process.stdout.take().unwrap().take(MOST_OUTPUT).read_to_end(&mut output).unwrap();
        let status = process.wait().unwrap();
        let mut reason = String::new();
        errors.seek(SeekFrom::Start(0)).unwrap();
        errors.read_to_string(&mut reason).unwrap_or_default();
        match status.success() {
            true => Ok(output),
            false => Err(reason.trim().to_owned()),
        }
    }
}

/// Parses one line of the output of `-tv`.
fn listed(line: &str, fields: usize) -> Listed {
    let words: Vec<&str> = line.split_whitespace().collect();
    // GNU tar lists contiguous files with the letter `C`; they count as regular files.
    let kind = line.chars().next().map_or('?', |kind| if kind == 'C' { '-' } else { kind });
    let size_at = if fields == 5 { 2 } else { 4 };
    let size = words.get(size_at).and_then(|size| size.parse().ok()).unwrap_or(0);
    let rest = words.get(fields..).unwrap_or_default().join(" ");
    let (name, link) = match kind {
        'l' => rest.split_once(" -> ").unwrap_or((&rest, "")),
        'h' => rest.split_once(" link to ").unwrap_or((&rest, "")),
        _ => (rest.as_str(), ""),
    };
    let size = if kind == '-' { size } else { 0 };
    (plain(name), kind, size, plain(link))
}

/// Normalizes a path: `./a//b/` becomes `a/b`.
fn plain(name: &str) -> String {
    name.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
}

/// Returns the members and contents that this crate reads, or the reason why it rejects the archive.
pub(crate) fn read_ours(tar: &[u8]) -> Verdict {
    let mut members = TarParser::new(reader(tar, 700));
    let mut reading = Reading { members: Vec::new(), content: Vec::new() };
    while let Some(member) = members.next_member().map_err(|error| error.to_string())? {
        let name = plain(&String::from_utf8_lossy(&member.path));
        let link = |link: &[u8]| plain(&String::from_utf8_lossy(link));
        let (kind, size, link) = match &member.kind {
            MemberKind::File { size } => ('-', *size, String::new()),
            MemberKind::Sparse(map) => ('-', map.file_size, String::new()),
            MemberKind::Directory => ('d', 0, String::new()),
            MemberKind::Symlink(target) => ('l', 0, link(target)),
            MemberKind::HardLink(target) => ('h', 0, link(target)),
            MemberKind::CharacterDevice { .. } => ('c', 0, String::new()),
            MemberKind::BlockDevice { .. } => ('b', 0, String::new()),
            MemberKind::Fifo => ('p', 0, String::new()),
        };
        reading.members.push((name, kind, size, link));
        let content = content(&mut members, &member.kind).map_err(|error| error.to_string())?;
        reading.content.extend(content);
    }
    Ok(reading)
}

fn content(members: &mut TarParser, kind: &MemberKind) -> std::io::Result<Vec<u8>> {
    let whole = |size: u64| vec![(0, size)];
    let (segments, size) = match kind {
        MemberKind::File { size } if *size < 1 << 20 => (whole(*size), *size),
        MemberKind::Sparse(map) if map.file_size < 1 << 20 => (map.segments.clone(), map.file_size),
        _ => return Ok(Vec::new()),
    };
    let mut content = vec![0; usize::try_from(size).unwrap()];
    for (offset, length) in segments {
        let start = usize::try_from(offset).unwrap();
        members.read_exact(&mut content[start..start + usize::try_from(length).unwrap()])?;
    }
    Ok(content)
}

/// Returns whether two of the readings differ. Readers that rejected the archive are ignored.
pub(crate) fn disagree(verdicts: &[(&str, Verdict)]) -> bool {
    let readings = verdicts.iter().filter_map(|(_, verdict)| verdict.as_ref().ok());
    let readings: Vec<Reading> = readings.map(without_holes).collect();
    readings.windows(2).any(|pair| pair[0] != pair[1])
}

/// Removes zero bytes from the content, because bsdtar does not print a hole at the end of a file.
fn without_holes(reading: &Reading) -> Reading {
    let content = reading.content.iter().copied().filter(|byte| *byte != 0).collect();
    Reading { members: reading.members.clone(), content }
}

/// Asserts that at least two readers accept the archive, and that all readers that accept it agree with this crate.
pub(crate) fn assert_agreement(judges: &mut Judges, tar: &[u8], ours: &Reading, what: &str) {
    let verdicts = judges.read(tar);
    let accepted = verdicts.iter().filter(|(_, verdict)| verdict.is_ok()).count();
    for (name, verdict) in &verdicts {
        if let Ok(reading) = verdict {
            let is_same =
                if *name == "bsdtar" { without_holes(reading) == without_holes(ours) } else { reading == ours };
            assert!(is_same, "{what}: {name} reads something else: {:?}, not {:?}", reading.members, ours.members);
        }
    }
    assert!(accepted >= 2, "{what}: {verdicts:?}");
}
