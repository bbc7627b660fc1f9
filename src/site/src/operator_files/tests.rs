//! Tests of valid and invalid machine files and image files.

use super::*;

const ID: &str = "4C4C4544-0051-3010-8052-B4C04F4D3132";

#[test]
fn complete_machine_file_is_parsed() {
    let text = format!(
        "id: {ID}\nname: storage-7\nmacs: [52-54-00-AA-00-01]\nsize: c1\nallocation:\n  id: a1\n  hostname: h\n\
         \x20 project:\n  image: debian-12\n  filesystemlayout: default\n  console_password: 1234\n\
         \x20 networks:\n  - asn: 4200000000\n    private: true\n    ips: [10.0.0.1, \"10\"]\n    vrf: ~\n"
    );
    let machine = parse_machine(&text).unwrap();
    assert_eq!((machine.id, machine.macs), (ID.to_lowercase(), vec!["52:54:00:aa:00:01".to_owned()]));
    assert_eq!(machine.consoles, default_consoles());
    let allocation = machine.allocation.unwrap();
    assert_eq!((&**allocation.image, allocation.console_password.as_str()), ("debian-12", "1234"));
    assert!(machine.locked.is_none() && allocation.project.is_empty());
    let expected = serde_json::json!([{"asn": 4_200_000_000_u64, "private": true, "ips": ["10.0.0.1", "10"]}]);
    assert_eq!(allocation.passed_on["networks"], expected);
    assert_eq!(allocation.passed_on.len(), 1);
}

#[test]
fn settings_for_the_installed_system_are_parsed() {
    let text = format!(
        "id: {ID}\nallocation:\n  id: a1\n  hostname: h\n  image: i\n  finish: builtin\n  kernel_arguments: [quiet, a=1]\n\
         \x20 boot_order: disk\n  network: {{version: 2, ethernets: {{lan: {{addresses: [192.0.2.7/24]}}}}}}\n"
    );
    let allocation = parse_machine(&text).unwrap().allocation.unwrap();
    assert_eq!((allocation.finish, allocation.boot_order), (Some(FinisherChoice::Builtin), BootOrder::Disk));
    let arguments: Vec<&str> = allocation.kernel_arguments.iter().map(|argument| argument.as_str()).collect();
    assert_eq!(arguments, ["quiet", "a=1"]);
    let network = serde_json::json!({"version": 2, "ethernets": {"lan": {"addresses": ["192.0.2.7/24"]}}});
    assert_eq!(allocation.passed_on["network"], network);
    assert_eq!(parse_image("id: i\nfile: i.tar\nfinish: none\n").unwrap().finish, Some(FinisherChoice::None));
    assert!(parse_image("id: i\nfile: i.tar\nfinish: us\n").unwrap_err().starts_with("3:9: "));
}

#[test]
fn machine_without_allocation_is_accepted() {
    for rest in ["", "allocation:", "allocation: null", "allocation: ~"] {
        assert!(parse_machine(&format!("id: {ID}\n{rest}\n")).unwrap().allocation.is_none(), "{rest}");
    }
}

#[test]
fn machine_is_locked_with_or_without_a_reason() {
    let lock = |given: &str| parse_machine(&format!("id: {ID}\n{given}\n")).unwrap().locked;
    assert_eq!(lock("locked: true").unwrap(), "the machine file does not specify a reason");
    assert_eq!(lock("locked: \"holds the only copy\"").unwrap(), "holds the only copy");
    for given in ["", "locked: false", "locked:", "locked: ~"] {
        assert_eq!(lock(given), None, "{given}");
    }
}

#[test]
fn requested_traits_must_be_traits_of_the_machine() {
    let file = |traits: &str, requested: &str| {
        let text = format!(
            "id: {ID}\ntraits: [{traits}]\nallocation: {{id: a, hostname: h, image: i, requested_traits: [{requested}]}}\n"
        );
        parse_machine(&text)
    };
    let good = file("CUSTOM_A, HW_CPU_X86_VMX, CUSTOM_B", "CUSTOM_B, CUSTOM_A").unwrap();
    let requested = good.allocation.unwrap().requested_traits;
    assert_eq!(requested.iter().map(|one| one.as_str()).collect::<Vec<_>>(), ["CUSTOM_B", "CUSTOM_A"]);
    for (traits, requested, says) in [
        ("CUSTOM_a", "", "2:10: \"CUSTOM_a\" is not a trait"),
        (
            "CUSTOM_RAID",
            "CUSTOM_RAIO",
            "3:63: CUSTOM_RAIO is not a trait of this machine; did you mean \"CUSTOM_RAID\"?",
        ),
        ("", "CUSTOM_A", "3:63: CUSTOM_A is not a trait of this machine; none is available"),
    ] {
        let error = file(traits, requested).unwrap_err();
        assert!(error.starts_with(says), "{error}");
    }
}

#[test]
fn invalid_machine_file_is_refused_with_position_and_reason() {
    let cases = [
        ("name: x\n", "id is missing"),
        ("id: 7\n", "1:5: \"7\" is not a UUID"),
        ("id: 00000000-0000-0000-0000-000000000000\n", "1:5: 00000000-0000-0000-0000-000000000000 is a vendor default"),
        ("id: 03000200-0400-0500-0006-000700080009\n", "choose a new UUID and list `macs`"),
        (
            &format!("id: {ID}\nsmbios_uuid: FEFEFEFE-FEFE-FEFE-FEFE-FEFEFEFEFEFE\n"),
            "2:14: FEFEFEFE-FEFE-FEFE-FEFE-FEFEFEFEFEFE is a vendor default",
        ),
        (&format!("id: {ID}\nmac: [x]\n"), "2:1: unknown field \"mac\"; did you mean \"macs\"?"),
        (&format!("id: {ID}\nmacs: [52:54:00:aa:00]\n"), "2:8: \"52:54:00:aa:00\" is not a MAC"),
        (&format!("id: {ID}\nconsoles: ['tty0 init=/bin/sh']\n"), "2:12: \"tty0 init=/bin/sh\" is not a console"),
        (&format!("id: {ID}\nid: {ID}\n"), "2:1: the field \"id\" is specified twice"),
        (&format!("id: {ID}\nzzz: 1\n"), "2:1: unknown field \"zzz\"; available: id, name, project, macs"),
        (&format!("id: {ID}\nallocation: {{id: a, hostnam: h}}\n"), "did you mean \"hostname\"?"),
        (
            &format!("id: {ID}\nallocation: {{id: a, hostname: h, filesystemlayout: l}}\n"),
            "neither `os` nor `image`: specify one",
        ),
        (&format!("id: {ID}\nallocation: {{id: ' ', hostname: h, image: i, filesystemlayout: l}}\n"), "id is empty"),
        (
            &format!("id: {ID}\nallocation: {{id: a, hostname: h, image: i}}\nlocked: no\n"),
            "3:9: `locked` must be true, false, or the reason for the lock",
        ),
        (
            &format!("id: {ID}\nallocation:\n  id: a\n  hostname: h\n  image: i\n  reinstall: true\n"),
            &format!(
                "6:14: reinstalls can no longer be ordered in a file: remove this line, and use `drophammer machine reinstall {ID} --image IMAGE`"
            ),
        ),
        (
            &format!("id: {ID}\nallocation: {{id: a, hostname: h, image: i, give_up: [S1, 'None']}}\n"),
            "is a placeholder that many disks report",
        ),
        (
            &format!("id: {ID}\nallocation: {{id: a, hostname: h, image: i, kernel_arguments: [quiet, 'a b']}}\n"),
            "2:70: a kernel argument must be a single word",
        ),
        (&format!("id: {ID}\nallocation: {{id: a, hostname: h, image: i, finish: us}}\n"), "builtin"),
        ("id: [\n", "2:"),
        ("- 1\n", "mapping"),
        ("", "id is missing"),
    ];
    for (text, expected) in cases {
        let error = parse_machine(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn values_unusable_for_the_installed_system_are_refused() {
    let text = format!(
        "id: {ID}\nallocation:\n  id: a\n  hostname: foo bar\n  image: i\n  ssh_pub_keys:\n  - ssh-rsa AAAA\n  - '-----BEGIN RSA PRIVATE KEY-----'\n\
         \x20 dns_servers: [192.0.2.53, dns.example.org]\n  ntp_servers: 10.0.0.123\n"
    );
    let error = parse_machine(&text).unwrap_err();
    let lines: Vec<&str> = error.lines().collect();
    let expected = [
        "4:13: a hostname must consist of",
        "8:5: the text is a private key",
        "9:16: dns_servers[1]: must be an IP address",
        "10:16: ntp_servers: must be a list",
    ];
    assert_eq!(lines.len(), expected.len(), "{error}");
    lines.iter().zip(expected).for_each(|(line, expected)| assert!(line.starts_with(expected), "{line}"));
    for hostname in ["-x", "a_b", &"a".repeat(80), "\"a\\nb\""] {
        let text = format!("id: {ID}\nallocation: {{id: a, hostname: {hostname}, image: i}}\n");
        let error = parse_machine(&text).unwrap_err();
        assert!(error.starts_with("2:31: a hostname must"), "{hostname}: {error}");
    }
    let text = format!(
        "id: {ID}\nallocation: {{id: a, hostname: h, image: i, dns_servers: [192.0.2.53], ntp_servers: [{{address: t}}]}}\n"
    );
    let allocation = parse_machine(&text).unwrap().allocation.unwrap();
    assert_eq!(allocation.passed_on["dns_servers"], serde_json::json!([{"ip": "192.0.2.53"}]));
    assert_eq!(allocation.passed_on["ntp_servers"], serde_json::json!([{"address": "t"}]));
}

#[test]
fn reports_every_problem_of_a_machine_file() {
    let text = "id: 7
mac: [x]
macs: [52:54:00:aa:00, 52:54:00:aa:00:01]
consoles: ['tty0 init=/bin/sh']
locked: no
allocation:
  hostname: [h]
  hostnam: h
  reinstall: true
  erase: quickly
";
    let error = parse_machine(text).unwrap_err();
    let mut lines: Vec<&str> = error.lines().collect();
    lines.sort_unstable();
    let expected = [
        "10:10: ",
        "1:5: \"7\" is not a UUID",
        "2:1: unknown field \"mac\"; did you mean \"macs\"?",
        "3:8: \"52:54:00:aa:00\" is not a MAC",
        "4:12: \"tty0 init=/bin/sh\" is not a console",
        "5:9: `locked` must be true, false, or the reason for the lock",
        "7:13: ",
        "8:3: unknown field \"hostnam\"; did you mean \"hostname\"?",
        "9:14: reinstalls can no longer be ordered in a file",
    ];
    let is_missing = |line: &&str| line.ends_with(" is missing") || line.contains("neither `os` nor `image`");
    let places: Vec<&str> = lines.iter().copied().filter(|line| !is_missing(line)).collect();
    assert_eq!(places.len(), expected.len(), "{error}");
    for (line, expected) in places.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}: {error}");
    }
    // A field that is present but invalid is not reported as missing.
    let missing: Vec<&str> = lines.iter().copied().filter(is_missing).collect();
    assert_eq!(missing.len(), 2, "{error}");
    assert!(missing.iter().any(|line| line.ends_with("id is missing")), "{error}");
}

#[test]
fn documentation_examples_are_valid() {
    let blocks = |page| testing::docs::code_blocks(page, "yaml");
    let of_machines = blocks(include_str!("../../../../docs/machines.md"));
    let [on_machines, on_sizes] = &of_machines[..] else { panic!("{of_machines:?}") };
    let on_power = &blocks(include_str!("../../../../docs/power.md"))[0];
    let on_images = &blocks(include_str!("../../../../docs/serve.md"))[0];
    crate::sizes::MachineSize::parse_size(on_sizes).unwrap();
    assert!(parse_machine(on_power).unwrap().bmc.is_some_and(|bmc| bmc.insecure));
    assert_eq!(parse_machine(on_machines).unwrap().name.as_str(), "storage-7");
    assert_eq!(parse_image(on_images).unwrap().at, ImageLocation::File("debian-12.tar.zst".to_owned()));
    let on_templates = blocks(include_str!("../../../../docs/templates.md"));
    assert_eq!(parse_machine(&on_templates[1]).unwrap().allocation.unwrap().requested_traits.len(), 1);
}

#[test]
fn image_files_are_parsed_or_refused() {
    let hex = "AB".repeat(32);
    let good = parse_image(&format!("id: debian-12\nfile: d/debian.tar.zst\ndigest: sha256:{hex}\n")).unwrap();
    assert_eq!(good.at, ImageLocation::File("d/debian.tar.zst".to_owned()));
    assert_eq!(good.digest.unwrap(), format!("sha256:{}", hex.to_lowercase()));
    assert_eq!(
        parse_image("id: i\nurl: https://h/i.tar\n").unwrap().at,
        ImageLocation::Url("https://h/i.tar".to_owned())
    );
    for url in ["file:///mnt/i.tar", "oci://h/os/debian:12", "oci+http://h:5000/debian:12"] {
        assert_eq!(parse_image(&format!("id: i\nurl: {url}\n")).unwrap().at, ImageLocation::Url(url.to_owned()));
    }
    let mirrored = "id: i\nfile: i.tar\nmirrors: [http://h/i.tar, file:///mnt/i.tar]\n";
    assert_eq!(parse_image(mirrored).unwrap().mirrors, ["http://h/i.tar", "file:///mnt/i.tar"]);
    parse_image("id: i\nurl: oci://h/i:1\nmirrors: [oci+http://h2/i:1]\n").unwrap();
    let cases = [
        ("id: i\nurl: file://h/i\n", "2:6: the url is neither http"),
        ("id: i\nfile: i\nmirrors: [http://h/i, i.tar]\n", "3:23: the mirror is neither http"),
        (
            "id: i\nurl: http://h/i\nmirrors: [oci://h/i:1]\n",
            "3:11: mirrors of an image in a registry must be in registries",
        ),
        (
            "id: i\nurl: oci://h/i:1\nmirrors: [http://h/i]\n",
            "3:11: mirrors of an image in a registry must be in registries",
        ),
        ("id: i\nfile: i\nmirrors: [oci://h/i:1]\n", "3:11: mirrors of an image in a registry must be in registries"),
        ("id: i\nfile: i\nmirrors: http://h/i\n", "3:10: "),
        ("id: i\n", "neither `url` nor `file`"),
        ("id: i\nurl: ftp://h/i\n", "2:6: the url is neither http"),
        ("id: i\nfile: ../i\n", "2:7: `file` must be a path below images/"),
        ("id: i\nfile: /etc/passwd\n", "below images/"),
        ("id: i\nfile: a/../../b\n", "below images/"),
        ("id: i\nfile: a\nurl: http://h/a\n", "the image has both `url` and `file`: specify one"),
        ("id: i\nfile: a\ndigest: md5:00\n", "3:9: the digest is neither"),
        ("id: i\nfile: a\ndigest: sha256:00\n", "the digest is neither"),
        ("id: i\nurl: http://h/a\nsha: 1\n", "unknown field \"sha\""),
    ];
    for (text, expected) in cases {
        let error = parse_image(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn project_is_a_plain_name() {
    let file =
        |project: &str| parse_machine(&format!("id: 4c4c4544-0051-3010-8031-b2c04f333633\nproject: {project}\n"));
    assert_eq!(file("blue").unwrap().project.as_deref(), Some("blue"));
    assert_eq!(file("").unwrap().project, None);
    for bad in ["'a b'", "'../x'", "''", "[a]", "'.a'"] {
        assert!(file(bad).is_err(), "{bad}");
    }
}
