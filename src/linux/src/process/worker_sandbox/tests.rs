//! Actions of code that runs in a process without privileges.

use super::*;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::null;

const PROBE: &str = "DROPHAMMER_TEST_PROBE";

/// Actions that must be refused, with their descriptions. They use a file of the target, a disk, and an open directory.
type Ways<'a> = [(&'a str, Box<dyn Fn() -> libc::c_long + 'a>); 30];

/// Returns the actions. An action returns a negative number if it is refused.
#[allow(clippy::undocumented_unsafe_blocks, reason = "each either is refused or does something harmless")]
fn ways<'a>(file: &'a CString, disk: &'a CString, directory: i32) -> Ways<'a> {
    let open = |path: &'a CString, flags: libc::c_int| {
        move || unsafe { libc::syscall(libc::SYS_open, path.as_ptr(), flags, 0o600) }
    };
    let socket =
        |family: libc::c_int, kind: libc::c_int| move || libc::c_long::from(unsafe { libc::socket(family, kind, 0) });
    let how = [0_u64; 3];
    [
        ("open a file of the target", Box::new(open(file, libc::O_RDONLY))),
        ("write to a file of the target", Box::new(open(file, libc::O_WRONLY | libc::O_TRUNC))),
        ("open a disk", Box::new(open(disk, libc::O_RDONLY))),
        ("write to a disk", Box::new(open(disk, libc::O_RDWR))),
        ("openat", Box::new(move || unsafe { libc::openat(libc::AT_FDCWD, file.as_ptr(), 0).into() })),
        (
            "openat relative to an open directory",
            Box::new(move || unsafe { libc::openat(directory, c"file".as_ptr(), 0).into() }),
        ),
        (
            "openat2",
            Box::new(move || unsafe {
                libc::syscall(libc::SYS_openat2, directory, c"file".as_ptr(), how.as_ptr(), 24_usize)
            }),
        ),
        ("look at a file", Box::new(move || unsafe { libc::syscall(libc::SYS_access, file.as_ptr(), 0) })),
        ("remove a file", Box::new(move || unsafe { libc::unlink(file.as_ptr()).into() })),
        (
            "make a node",
            Box::new(|| unsafe { libc::mknod(c"/tmp/drophammer-node".as_ptr(), libc::S_IFBLK, 1792).into() }),
        ),
        ("chroot", Box::new(|| unsafe { libc::chroot(c"/".as_ptr()).into() })),
        ("mount", Box::new(|| unsafe { libc::mount(null(), c"/".as_ptr(), null(), libc::MS_PRIVATE, null()).into() })),
        ("a socket of the network", Box::new(socket(libc::AF_INET, libc::SOCK_STREAM))),
        ("a socket of IPv6", Box::new(socket(libc::AF_INET6, libc::SOCK_DGRAM))),
        ("a raw socket", Box::new(socket(libc::AF_PACKET, libc::SOCK_RAW))),
        ("a Unix socket", Box::new(socket(libc::AF_UNIX, libc::SOCK_STREAM))),
        (
            "a pair of sockets",
            Box::new(|| unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, [0; 2].as_mut_ptr()).into() }),
        ),
        ("a process", Box::new(|| unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })),
        ("a process by vfork", Box::new(|| unsafe { libc::syscall(libc::SYS_vfork) })),
        (
            "another program",
            Box::new(|| unsafe { libc::execve(c"/bin/true".as_ptr(), [null()].as_ptr(), [null()].as_ptr()).into() }),
        ),
        ("a signal to the agent", Box::new(|| unsafe { libc::kill(libc::getppid(), 0).into() })),
        ("to trace the agent", Box::new(|| unsafe { libc::ptrace(libc::PTRACE_SEIZE, libc::getppid(), 0, 0) })),
        (
            "the memory of the agent",
            Box::new(|| unsafe { libc::process_vm_readv(libc::getppid(), null(), 0, null(), 0, 0) as libc::c_long }),
        ),
        ("to be root", Box::new(|| unsafe { libc::setuid(0).into() })),
        ("a namespace", Box::new(|| unsafe { libc::unshare(libc::CLONE_NEWUSER).into() })),
        ("a descriptor more", Box::new(|| unsafe { libc::dup(1).into() })),
        ("memory with a name", Box::new(|| unsafe { libc::memfd_create(c"x".as_ptr(), 0).into() })),
        (
            "another way to the kernel",
            Box::new(|| unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, [0_u64; 15].as_ptr()) }),
        ),
        ("a program in the kernel", Box::new(|| unsafe { libc::syscall(libc::SYS_bpf, 5, 0, 0) })),
        (
            "new code",
            Box::new(|| {
                let code = libc::PROT_READ | libc::PROT_EXEC;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                if unsafe { libc::mmap(null::<u8>().cast_mut().cast(), 4096, code, flags, -1, 0) } == libc::MAP_FAILED {
                    -1
                } else {
                    0
                }
            }),
        ),
    ]
}

/// Code that runs as the worker: prints for each action whether it was refused, and checks that threads and memory
/// still work.
#[test]
#[ignore = "is what another test starts"]
fn probe() {
    let Some(named) = std::env::var_os(PROBE) else { return };
    let named: Vec<CString> =
        named.as_bytes().split(|byte| *byte == b'\n').map(|path| CString::new(path).unwrap()).collect();
    let directory = fs::File::open(Path::new(named[0].to_str().unwrap()).parent().unwrap()).unwrap();
    let given_up = drop_privileges(1 << 30).unwrap();
    for (what, way) in ways(&named[0], &named[1], directory.as_raw_fd()) {
        println!("{what}: {}", if way() < 0 { "refused" } else { "DONE" });
    }
    println!("threads: {}", std::thread::spawn(|| vec![1_u8; 1 << 20].len()).join().unwrap());
    println!("{given_up:?}");
    println!("end");
    // Wait until the test has inspected this process.
    io::stdin().lock().lines().for_each(drop);
    std::process::exit(0);
}

#[test]
fn sandboxed_code_has_no_access() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "precious").unwrap();
    // The test machine may have no disk; another device node is used instead.
    let blocks =
        fs::read_dir("/sys/block").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let disk = blocks.map(|name| format!("/dev/{name}")).find(|path| Path::new(path).exists());
    let disk = disk.unwrap_or_else(|| "/dev/null".to_owned());
    // A listener that the process could reach without the sandbox.
    let _listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut probe = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::worker_sandbox::tests::probe", "--ignored", "--test-threads=1", "--nocapture"])
        .env(PROBE, format!("{}\n{disk}", file.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(probe.stdout.take().unwrap()).lines().map_while(Result::ok);
    let lines: Vec<String> = lines.take_while(|line| line != "end").collect();
    let status = fs::read_to_string(format!("/proc/{}/status", probe.id())).unwrap();
    drop(probe.stdin.take());
    assert!(probe.wait().unwrap().success(), "{lines:#?}");
    let refused = lines.iter().filter(|line| line.ends_with(": refused")).count();
    assert!(refused == 30 && !lines.iter().any(|line| line.ends_with("DONE")), "{lines:#?}");
    assert!(lines.contains(&"threads: 1048576".to_owned()), "{lines:#?}");
    assert!(status.contains("\nNoNewPrivs:\t1\n") && status.contains("\nSeccomp:\t2\n"), "{status}");
    assert_eq!(fs::read_to_string(file).unwrap(), "precious");
}
