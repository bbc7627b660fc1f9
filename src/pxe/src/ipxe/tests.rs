use super::*;
use std::collections::BTreeMap;

/// Interpreter for the iPXE commands in the scripts. Execution ends when an image is booted.
struct Interpreter<'a> {
    /// Executed commands, except `echo`.
    executed: Vec<String>,
    messages: Vec<String>,
    /// Numbers that the script counts with `inc`.
    counters: BTreeMap<String, u32>,
    settings: &'a [(&'a str, &'a str)],
    /// Function that returns whether the command succeeds.
    succeeds: &'a mut dyn FnMut(&str) -> bool,
}

/// Maximum number of executed lines. It is far larger than the number of lines that any terminating script executes.
const LINES: usize = 1000;

impl Interpreter<'_> {
    /// Executes the script, and returns the command with which it ends.
    fn execute(&mut self, script: &str) -> String {
        let lines: Vec<&str> = script.lines().collect();
        assert_eq!(lines[0], "#!ipxe");
        let mut next = 1;
        for _ in 0..LINES {
            let Some(line) = lines.get(next) else { return "end".to_owned() };
            next += 1;
            match self.execute_line(line) {
                Ok(None) => {}
                Ok(Some(label)) => next = lines.iter().position(|line| *line == format!(":{label}")).unwrap(),
                Err(end) => return end,
            }
        }
        panic!("the script is not bounded: {script}")
    }

    /// Executes the commands of a line. Returns the label at which the script continues. The error is the command with
    /// which the script ends.
    fn execute_line(&mut self, line: &str) -> Result<Option<String>, String> {
        let mut ok = true;
        for (number, alternative) in format!("{line} ").split("|| ").enumerate() {
            if number > 0 && ok {
                continue;
            }
            ok = true;
            for command in alternative.split(" && ").map(str::trim).filter(|command| !command.is_empty()) {
                if !ok {
                    break;
                }
                let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
                match name {
                    "goto" => return Ok(Some(rest.to_owned())),
                    "exit" | "reboot" => return Err(command.to_owned()),
                    _ => ok = self.execute_command(command, name, rest)?,
                }
            }
        }
        if ok { Ok(None) } else { Err(format!("failed: {line}")) }
    }

    fn execute_command(&mut self, command: &str, name: &str, rest: &str) -> Result<bool, String> {
        let setting = |name: &str| self.settings.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value);
        let value = |name: &str| match self.counters.get(name) {
            Some(count) => count.to_string(),
            None => setting(name).to_owned(),
        };
        let expand = |text: &str| {
            let mut parts = text.split("${");
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |all, part| match part.split_once('}') {
                Some((name, after)) => all + &value(name) + after,
                None => panic!("{text}"),
            })
        };
        let rest = expand(rest);
        match name {
            _ if name.starts_with(':') => return Ok(true),
            "echo" => self.messages.push(rest),
            "clear" => return Ok(self.counters.remove(&rest).is_some()),
            "inc" => {
                let (name, step) = rest.split_once(' ').unwrap_or((rest.as_str(), "1"));
                *self.counters.entry(name.to_owned()).or_default() += step.parse::<u32>().unwrap();
            }
            "isset" => return Ok(!rest.is_empty()),
            "iseq" => return Ok(rest.split_once(' ').is_some_and(|(one, other)| one == other)),
            _ => {
                // The URLs contain settings of the machine, and are compared as in the script.
                let command = if name == "sleep" { format!("sleep {rest}") } else { command.to_owned() };
                self.executed.push(command.clone());
                let ok = (self.succeeds)(&command);
                let executes = matches!(name, "chain" | "boot" | "sanboot");
                return if ok && executes { Err(command) } else { Ok(ok) };
            }
        }
        Ok(true)
    }
}

/// Executes a script. Returns the command with which it ends, the other commands, and the printed messages.
fn execute(
    script: &str,
    settings: &[(&str, &str)],
    succeeds: &mut dyn FnMut(&str) -> bool,
) -> (String, Vec<String>, Vec<String>) {
    // An earlier script of the same boot may have left its counts.
    let counters = ["downloads", "pause"].map(|name| (name.to_owned(), 9)).into();
    let mut interpreter = Interpreter { executed: Vec::new(), messages: Vec::new(), counters, settings, succeeds };
    let end = interpreter.execute(script);
    (end, interpreter.executed, interpreter.messages)
}

const BOOTED: &[(&str, &str)] = &[("netX/mac", "52:54:00:aa:00:01"), ("netX/ip", "10.0.0.7"), ("platform", "efi")];

const CONSOLES: &[String] = &[];

fn boot() -> RamdiskBoot<'static> {
    RamdiskBoot {
        url: "https://10.0.2.2:8443",
        files: "http://10.0.2.2:8080",
        token: "abc",
        machine: "4c4c4544-0051-3010-8052-b4c04f4d3132",
        consoles: CONSOLES,
        network: None,
        cmdline: " quiet  drophammer.hold=60",
        stop: false,
        architecture: Architecture::Amd64,
        initrd: "initrd",
    }
}

#[test]
fn ramdisk_script_contains_kernel_arguments_and_files() {
    let consoles = ["tty0".to_owned(), "ttyS0,115200n8".to_owned()];
    let boot = RamdiskBoot { consoles: &consoles, ..boot() };
    let without_time = |boot: &RamdiskBoot| {
        let script = ramdisk_script(boot, false);
        let time = script.split_once("drophammer.time=").unwrap().1.split(' ').next().unwrap();
        script.replace(&format!(" drophammer.time={time}"), "")
    };
    let script = without_time(&boot);
    let loaded = "kernel http://10.0.2.2:8080/boot/vmlinuz initrd=initrd drophammer.url=https://10.0.2.2:8443 \
         drophammer.token=abc drophammer.machine=4c4c4544-0051-3010-8052-b4c04f4d3132 \
         console=tty0 console=ttyS0,115200n8 panic=-1 quiet drophammer.hold=60 || goto failed\n\
         initrd --name initrd http://10.0.2.2:8080/boot/initrd || goto failed\nboot ||\n";
    assert!(script.contains(loaded), "{script}");
    let stopped = without_time(&RamdiskBoot { stop: true, ..boot });
    assert_eq!(stopped, script.replace(" console=tty0", " drophammer.stop=1 console=tty0"));
    let more = without_time(&RamdiskBoot { initrd: "initrd-luks", ..boot });
    assert_eq!(more, script.replace("boot/initrd ", "boot/initrd-luks "), "the kernel uses the same name");
    let arm64 = without_time(&RamdiskBoot { architecture: Architecture::Arm64, ..boot });
    assert_eq!(
        arm64,
        script.replace("boot/vmlinuz ", "boot/vmlinuz-arm64 ").replace("boot/initrd ", "boot/initrd-arm64 ")
    );
    let described = without_time(&RamdiskBoot { network: Some("e30"), ..boot });
    assert_eq!(described, script.replace(" panic", " drophammer.network=e30 panic"));
}

#[test]
fn architecture_is_that_of_ipxe() {
    for (buildarch, architecture) in [
        ("x86_64", Architecture::Amd64),
        ("i386", Architecture::Amd64),
        ("", Architecture::Amd64),
        ("arm64", Architecture::Arm64),
    ] {
        assert_eq!(parse_buildarch(buildarch), architecture);
    }
}

#[test]
fn start_script_continues_on_its_boot_nic() {
    let script = start_script("http://10.0.2.2:8080");
    let chain = "chain --replace http://10.0.2.2:8080/boot.ipxe?uuid=${uuid}&mac=${netX/mac}&arch=${buildarch}";
    for (settings, before) in [(BOOTED, &[][..]), (&BOOTED[..1], &["dhcp netX"][..]), (&[], &["dhcp", "dhcp netX"])] {
        let (end, executed, _) = execute(&script, settings, &mut |_| true);
        assert_eq!(
            (end.as_str(), executed),
            (chain, [before, &[chain]].concat().iter().map(|command| (*command).to_owned()).collect())
        );
    }
}

#[test]
fn failed_downloads_are_repeated_a_limited_number_of_times() {
    let url = "http://10.0.2.2:8080";
    let failures = [("chain", start_script(url)), ("kernel", ramdisk_script(&boot(), false))];
    let failures = failures.into_iter().chain(["initrd", "boot"].map(|name| (name, ramdisk_script(&boot(), false))));
    for (name, script) in failures {
        for lost in 0..DOWNLOADS + 2 {
            let mut left = lost;
            let mut succeeds = |command: &str| {
                let fails = command.split(' ').next() == Some(name) && left > 0;
                left -= u32::from(fails);
                !fails
            };
            let (end, executed, messages) = execute(&script, BOOTED, &mut succeeds);
            let times = executed.iter().filter(|command| command.split(' ').next() == Some(name)).count();
            let cannot = messages.iter().any(|message| message.contains("this machine CANNOT BOOT"));
            let (count, boots) = (lost.min(DOWNLOADS - 1) + 1, lost < DOWNLOADS);
            assert_eq!((times, cannot), (count as usize, !boots), "{name} {lost}: {messages:?}");
            assert_eq!(end == "exit 1", !boots, "{name} {lost}: {end}");
            if !boots {
                assert_eq!(executed.last().unwrap(), "sleep 30", "the message can be read");
            }
            if name != "chain" {
                let frees = executed.iter().filter(|command| *command == "imgfree").count();
                assert_eq!(frees, times, "no file of an earlier attempt is passed to the kernel");
            }
        }
    }
}

/// Returns whether all commands except this one succeed.
fn all_but(name: &str) -> impl FnMut(&str) -> bool {
    move |command| command.split(' ').next() != Some(name)
}

#[test]
fn unavailable_server_is_awaited_for_minutes() {
    let url = "http://10.0.2.2:8080";
    let awaited =
        [("chain", start_script(url), "the boot script"), ("kernel", ramdisk_script(&boot(), false), "kernel")];
    for (name, script, what) in awaited {
        let (end, executed, messages) = execute(&script, BOOTED, &mut all_but(name));
        assert_eq!(end, "exit 1", "the firmware boots the disk even if the server never answers");
        let mut pauses: Vec<u32> =
            executed.iter().filter_map(|command| command.strip_prefix("sleep ")?.parse().ok()).collect();
        assert_eq!(pauses.pop(), Some(30), "the last message can be read");
        assert_eq!((pauses[..7].to_vec(), pauses.len()), (vec![5, 10, 15, 20, 25, 30, 30], DOWNLOADS as usize - 1));
        let total: u32 = pauses.iter().sum();
        assert_eq!(total, 165);
        let waits: Vec<_> = messages.iter().filter(|message| message.contains("Ctrl-C stops waiting")).collect();
        assert_eq!(waits.len(), pauses.len(), "the reason of each pause is displayed");
        let expected = format!("drophammer: waiting for {what}");
        assert!(
            waits[2].starts_with(&expected)
                && waits[2].contains(&format!("from {url}: attempt 3 of 9 failed, the next follows in 15 s")),
            "{waits:?}"
        );
    }
}

#[test]
fn ctrl_c_at_the_console_stops_waiting() {
    for (name, script, keep_from_disk) in [
        ("chain", start_script("http://10.0.2.2:8080"), false),
        ("kernel", ramdisk_script(&boot(), false), false),
        ("kernel", ramdisk_script(&boot(), true), true),
    ] {
        let mut succeeds = |command: &str| command != "sleep 10" && all_but(name)(command);
        let (end, executed, messages) = execute(&script, BOOTED, &mut succeeds);
        let times = executed.iter().filter(|command| command.split(' ').next() == Some(name)).count();
        assert_eq!((times, end.as_str()), (2, if keep_from_disk { "reboot" } else { "exit 1" }));
        assert!(messages.iter().any(|message| message.contains("CANNOT BOOT")), "{messages:?}");
    }
}

#[test]
fn machine_with_forbidden_disk_boot_never_exits_ipxe() {
    for name in ["kernel", "initrd", "boot"] {
        let (end, executed, messages) = execute(&ramdisk_script(&boot(), true), BOOTED, &mut all_but(name));
        assert_eq!(end, "reboot");
        assert_eq!(executed.last().unwrap(), "sleep 1800");
        assert!(
            messages.iter().any(|message| message.contains("this machine must not boot its disks")),
            "{messages:?}"
        );
    }
    let held = hold_script("http://10.0.2.2:8080", "m");
    assert_eq!(
        held,
        "#!ipxe\n:again\necho drophammer: m waits: it must not boot its disks, and its file does not list the NIC ${netX/mac}\n\
         sleep 30 ||\nchain --replace http://10.0.2.2:8080/boot.ipxe?uuid=${uuid}&mac=${netX/mac}&arch=${buildarch} || goto again\n"
    );
    assert!(!held.contains("exit") && !held.contains("sanboot"));
}

#[test]
fn installed_machine_boots_its_disk_or_prints_failure() {
    let script = local_disk_script("m");
    let (end, executed, _) = execute(&script, BOOTED, &mut |_| true);
    assert_eq!((end.as_str(), executed.len()), ("exit 1", 0), "UEFI continues with its next entry");
    let bios = [("platform", "pcbios")];
    assert_eq!(execute(&script, &bios, &mut |_| true).0, "sanboot --no-describe --drive 0x80");
    let (end, executed, messages) = execute(&script, &bios, &mut |command| !command.starts_with("sanboot"));
    assert_eq!((end.as_str(), executed.last().unwrap().as_str()), ("exit 1", "sleep 30"));
    assert!(messages.last().unwrap().contains("CANNOT BOOT its first disk"), "{messages:?}");
}
