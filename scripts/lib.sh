# Helpers of the scripts. Sourced: . "$(dirname "$0")/lib.sh"

say() { printf '\n== %s\n' "$*"; }

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# need PKG...: installs missing Debian packages, after printing their names.
need() {
	local missing=() package round
	for round in 1 2 3; do
		missing=()
		for package; do
			[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
		done
		[ ${#missing[@]} -gt 0 ] || return 0
		[ "$(id -u)" = 0 ] || die "these packages are required, and only root can install them: apt-get install ${missing[*]}"
		# A package from another release (backports) may conflict with an installed package: apt removes the latter, and the next round installs
		# the matching package.
		[ $round -lt 3 ] || die "apt does not install all of these together: $*; missing: ${missing[*]}"
		say "installing with apt: ${missing[*]}"
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -q
		# Another apt may be running on a machine that has just booted: wait for its lock.
		apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"
	done
}

# need_space DIRECTORY GIB: ends the script if less space is free. QEMU pauses a machine whose disks cannot grow, which looks like a hang.
need_space() {
	local free
	free=$(df --output=avail -B1G "$1" | tail -n 1)
	[ "$free" -ge "$2" ] || die "$1: $free GiB are free, and the disks of the test machines require $2: delete files, or set TMPDIR to a directory elsewhere"
}

# need_rust: installs a cargo that can build this workspace, if it is missing. Debian 12's cargo (1.63) is too old.
need_rust() {
	local wanted have
	wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
	PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
	have=$(cargo --version 2>/dev/null | cut -d' ' -f2) || true
	[ -z "$have" ] || [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n1)" != "$wanted" ] || return 0
	need curl ca-certificates
	say "cargo ${have:-is missing}, $wanted or later is required: installing Rust with rustup (https://rustup.rs) into ${CARGO_HOME:-$HOME/.cargo}"
	# --no-modify-path: the scripts find cargo themselves, without changes to the user's shell startup files.
	curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
		sh -s -- -y -q --no-modify-path --profile minimal --component rustfmt --component clippy --default-toolchain stable ||
		die "rustup could not be installed; install Rust $wanted or later manually, then run this again"
	# rustup's cargo must precede an older one in /usr/bin.
	PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
}

# accel: prints QEMU's accelerator on this host. The existence of /dev/kvm proves nothing: the CPU must also support it.
accel() {
	if grep -qwE 'vmx|svm' /proc/cpuinfo && [ -w /dev/kvm ]; then echo kvm; else echo tcg; fi
}

# cpu_model: prints the CPU model for the accelerator. Emulation of the model `max` is slow, and fails at random.
cpu_model() {
	if [ "$(accel)" = kvm ]; then echo max; else echo qemu64,+rdrand; fi
}

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Build requirements in addition to Rust: bindgen (for libblkid) requires libclang; ring, zstd and SQLite are C.
need_build_tools() {
	need gcc libc6-dev libclang-dev libblkid-dev pkg-config
	need_rust
}

# Requirements for unpacking Debian packages and packing them into a ramdisk.
need_ramdisk_tools() { need mmdebstrap debian-archive-keyring kmod cpio zstd xz-utils file; }

# Cargo's target directory, according to CARGO_TARGET_DIR and cargo's configuration.
cargo_target_dir() {
	cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

# test_programs KIND: prints the paths of the test programs from cargo's messages: of the libraries (lib), or of others (test).
test_programs() {
	local programs
	programs=$(sed -n 's/.*"kind":\["'"$1"'"\].*"executable":"\([^"]*\)".*/\1/p' | sort -u)
	[ -n "$programs" ] || die "cargo built no test program ($1)"
	echo "$programs"
}

# library_tests [CRATE]: builds the tests of all libraries, or of this crate, unless scripts/test has built them, and prints the paths of the
# test programs.
library_tests() {
	if [ -n "${DROPHAMMER_LIBRARY_TESTS:-}" ]; then
		grep "/${1:-[a-z]*}-[0-9a-f]*$" <<<"$DROPHAMMER_LIBRARY_TESTS"
		return
	fi
	cargo test --locked ${1:+--package "$1"} --lib --no-run --message-format=json-render-diagnostics | test_programs lib
}

# wait_for TEXT FILE SECONDS PID: waits until the file contains the text; fails after the timeout, or if the process has ended.
wait_for() {
	local end=$((SECONDS + $3))
	until grep -aqF -- "$1" "$2" 2>/dev/null; do
		[ $SECONDS -lt $end ] || die "'$1' did not appear in $2 within $3 s"
		kill -0 "$4" 2>/dev/null || die "process $4 ended before '$1' appeared in $2"
		sleep 0.5
	done
}

# seconds_by_step FILE: prints the duration of each step of the machine `demo` from the server's log, and the time after the image.
seconds_by_step() {
	sed -n 's/^[0-9:]* demo [^ ]* \( *[a-z][.a-z_]*  *[0-9.]* s\)$/\1/p' "$1"
	sed -n 's/^[0-9:]* demo [^ ]*  *\([a-z]*\.[a-z_]*\)  *\([0-9.]*\) s$/\1 \2/p' "$1" |
		awk 'after { seconds += $2 } $1 == "image.burn" { after = 1 } END { printf "    %-45s %5.1f s\n", "from the last byte of the image to kexec", seconds }'
}
