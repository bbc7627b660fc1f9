# What the scripts share. Sourced: . "$(dirname "$0")/lib.sh"

say() { printf '\n== %s\n' "$*"; }

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# need PKG...: installs the Debian packages that are not there yet, and says so before it does.
need() {
	local missing=() package round
	for round in 1 2 3; do
		missing=()
		for package; do
			[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
		done
		[ ${#missing[@]} -gt 0 ] || return 0
		[ "$(id -u)" = 0 ] || die "these packages are needed, and only root can install them: apt-get install ${missing[*]}"
		# A package from another release (backports) may not go with one that is installed now: apt removes it, and the next
		# round installs the one that fits.
		[ $round -lt 3 ] || die "apt does not install all of these together: $*; missing are ${missing[*]}"
		say "installing with apt: ${missing[*]}"
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -q
		# Another apt may be at work on a machine that has just booted: wait for its lock.
		apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"
	done
}

# need_rust: a cargo that can build this package. Debian 12's own (1.63) cannot.
need_rust() {
	local wanted have
	wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
	PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
	have=$(cargo --version 2>/dev/null | cut -d' ' -f2) || true
	[ -z "$have" ] || [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n1)" != "$wanted" ] || return 0
	need curl ca-certificates
	say "cargo ${have:-is missing}, $wanted or later is needed: installing Rust with rustup (https://rustup.rs) into ${CARGO_HOME:-$HOME/.cargo}"
	# --no-modify-path: the scripts find it themselves; a person's shell start-up files are none of their business.
	curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
		sh -s -- -y -q --no-modify-path --profile minimal --component rustfmt --component clippy --default-toolchain stable ||
		die "rustup could not be installed; install Rust $wanted or later yourself, then run this again"
	# rustup's must win over an older cargo in /usr/bin.
	PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
}

# accel: how QEMU can run here. That /dev/kvm exists proves nothing: the processor must offer it too.
accel() {
	if grep -qwE 'vmx|svm' /proc/cpuinfo && [ -w /dev/kvm ]; then echo kvm; else echo tcg; fi
}

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# What building any of this takes beside Rust: bindgen (for libblkid) needs libclang; ring, zstd and SQLite are C.
need_build_tools() {
	need gcc libc6-dev libclang-dev libblkid-dev pkg-config
	need_rust
}

# What unpacking Debian's packages and packing them into a ramdisk takes.
need_ramdisk_tools() { need mmdebstrap debian-archive-keyring kmod cpio zstd xz-utils file; }

# Where cargo puts what it builds: CARGO_TARGET_DIR and cargo's configuration have a say.
cargo_target_dir() {
	cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

# library_tests: builds the library's tests, and tells where their program is.
library_tests() {
	local program
	program=$(cargo test --locked --lib --no-run --message-format=json-render-diagnostics |
		sed -n 's/.*"kind":\["lib"\].*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
	[ -n "$program" ] || die "cargo built no test of the library"
	echo "$program"
}

# wait_for TEXT FILE SECONDS PID: until the file has the text; fails when the time is over or the process has ended.
wait_for() {
	local end=$((SECONDS + $3))
	until grep -aqF -- "$1" "$2" 2>/dev/null; do
		[ $SECONDS -lt $end ] || die "no '$1' in $2 within $3 s"
		kill -0 "$4" 2>/dev/null || die "process $4 ended before '$1' was in $2"
		sleep 0.5
	done
}

# seconds_by_step FILE: how long each step of the machine `demo` took, as the server has printed it, and what came after the image.
seconds_by_step() {
	sed -n 's/^[0-9:]* demo [^ ]* \( *[a-z][.a-z_]*  *[0-9.]* s\)$/\1/p' "$1"
	sed -n 's/^[0-9:]* demo [^ ]*  *\([a-z]*\.[a-z_]*\)  *\([0-9.]*\) s$/\1 \2/p' "$1" |
		awk 'after { seconds += $2 } $1 == "image.burn" { after = 1 } END { printf "    %-45s %5.1f s\n", "from the last byte of the image to kexec", seconds }'
}
