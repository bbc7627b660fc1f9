//! Streams of the command-line tools, with options that change the framing. Streams that these tools reject must be
//! rejected here.

use super::*;
use std::process::{Command, Stdio};

fn through_tool(tool: &str, arguments: &str, input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(tool)
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap_or_else(|error| panic!("{tool}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let output = thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{tool} {arguments}");
    output.stdout
}

/// Returns text, noise, zeros and repetitions, each longer than one block.
fn varied() -> Vec<u8> {
    let text: Vec<u8> =
        (0..100_000).flat_map(|number: u32| format!("line {} of a text\n", number * 7919).into_bytes()).collect();
    [text, noise(1_500_000), vec![0; 2 << 20], noise(300_000).repeat(3)].concat()
}

#[track_caller]
fn comes_back(tool: &str, arguments: &str, content: &[u8]) {
    let packed = through_tool(tool, arguments, content);
    let unpacker = if tool == "pzstd" { "zstd" } else { tool };
    assert!(through_tool(unpacker, "-dc", &packed) == content, "{tool} itself, {arguments}");
    let twice = [&packed[..], &packed].concat();
    for how in [ONE, DecodeParameters { buffer_bytes: 10_007, ..SEVERAL }] {
        assert!(decoded(&packed, how).unwrap() == content, "{tool} {arguments} {how:?}");
    }
    assert!(decoded(&twice, SEVERAL).unwrap() == [content, content].concat(), "{tool} {arguments} twice");
    for how in [ONE, SEVERAL] {
        assert!(refused(&packed[..packed.len() - 1], how).contains("is truncated: "), "{tool} {arguments}");
    }
}

#[test]
fn zstd_output_of_the_tools_is_decoded() {
    let content = varied();
    for arguments in [
        "-1",
        "-3 --no-check",
        "-19 --long=27 -T2",
        "-5 -T2 -B1M",
        "--fast=5",
        "--rsyncable -T2",
        "-3 --format=zstd --no-compress-literals",
    ] {
        comes_back("zstd", &format!("{arguments} -c"), &content);
    }
    comes_back("zstd", &format!("-3 -c --stream-size={}", content.len()), &content);
    comes_back("zstd", "-3 -c", b"");
    comes_back("zstd", "-3 -c", b"x");
    comes_back("pzstd", "-p 2 -c", &content);
    comes_back("pzstd", "-p 3 -1 -c", &content.repeat(4));
}

#[test]
fn lz4_output_of_the_tool_is_decoded() {
    let content = varied();
    for size in 4..=7 {
        for more in ["", "-BD", "-BX", "-BX -BD --no-frame-crc", "-9 -BD"] {
            comes_back("lz4", &format!("-q -B{size} {more} -c"), &content);
        }
    }
    for (arguments, content) in [("-c", &b""[..]), ("-BX -c", b""), ("-c", b"x"), ("-BD -BX -c", b"x")] {
        comes_back("lz4", arguments, content);
    }
    // lz4 writes the content size only if its input is a file.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &content).unwrap();
    for more in ["", "-BD", "-B4 -BX"] {
        comes_back("lz4", &format!("{more} --content-size -c {}", file.path().display()), &content);
    }
    let legacy = through_tool("lz4", "-l -c", &content);
    assert!(refused(&legacy, ONE).contains("unknown compression: the image begins with 02 21 4c 18"));
}

#[test]
fn gzip_output_of_the_tool_is_decoded() {
    let content = varied();
    for arguments in ["-1 -c", "-9 -c", "-n -c"] {
        comes_back("gzip", arguments, &content);
    }
    comes_back("gzip", "-c", b"");
}

#[test]
fn xz_output_of_the_tool_is_decoded() {
    let content = varied();
    for arguments in [
        "-0",
        "-6 -T2 --block-size=1MiB",
        "-9",
        "-1 --check=none",
        "-1 --check=crc32",
        "-1 --check=sha256",
        "--x86 --lzma2=preset=1",
        "--arm64 --lzma2=preset=1",
        "--delta=dist=4 --lzma2=preset=0,dict=4KiB,lc=0,lp=2,pb=0",
        "-0 --flush-timeout=1",
    ] {
        comes_back("xz", &format!("{arguments} -c"), &content);
    }
    comes_back("xz", "-c", b"");
    let (one, two) = (through_tool("xz", "-c", b"one"), through_tool("xz", "-0 -c", b"two"));
    for padding in 0..=12 {
        let zeroes = vec![0; padding];
        let packed = [&one[..], &zeroes, &two, &zeroes].concat();
        for how in EACH {
            match padding % 4 {
                0 => assert_eq!(decoded(&packed, how).unwrap(), b"onetwo", "{padding}"),
                _ => assert!(
                    refused(&packed, how).contains("unexpected data after the end of the xz stream"),
                    "{padding}"
                ),
            }
        }
    }
    let lzma = through_tool("xz", "--format=lzma -c", &content);
    assert!(refused(&lzma, ONE).contains("unknown compression"));
}
