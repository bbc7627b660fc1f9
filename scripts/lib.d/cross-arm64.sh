# Cross-compilation for arm64 on an amd64 host. Sourced by the scripts that build for arm64, after lib.sh.

# need_cross_tools: installs compiler, emulator and Rust's standard library for arm64, if they are missing.
need_cross_tools() {
	need gcc-aarch64-linux-gnu qemu-user-static mmdebstrap debian-archive-keyring file
	[ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || rustup target add "$triple" ||
		die "Rust's standard library for $triple is missing, and rustup cannot install it"
}

# unpack_sysroot FOLDER: unpacks the C library and libblkid of Debian 12 for arm64. They are the versions that the agent for amd64 uses, and
# the packages of the host are not changed.
unpack_sysroot() {
	[ ! -e "$1/complete" ] || return 0
	rm -rf "$1"
	mkdir -p "$(dirname "$1")"
	# The list of packages is for the bill of materials (scripts/build-sbom).
	mmdebstrap --quiet --variant=extract --arch=arm64 --include=libc6-dev,libblkid-dev --extract-hook='cd "$1"
		for deb in var/cache/apt/archives/libc6-dev_*.deb var/cache/apt/archives/libblkid-dev_*.deb; do dpkg-deb -W --showformat="\${Package} \${Version}\n" "$deb"; done >packages.linked' bookworm "$1"
	touch "$1/complete"
}

# export_cross_tools FOLDER: sets the environment with which cargo and the build scripts of C libraries build for arm64. CFLAGS would also
# apply to programs that run during the build, so it is moved to a variable for the target.
export_cross_tools() {
	local target=${triple//-/_}
	export "CFLAGS_$target=${CFLAGS-} --sysroot=$1" "CC_$target=aarch64-linux-gnu-gcc" "AR_$target=aarch64-linux-gnu-ar"
	export "CARGO_TARGET_$(tr a-z A-Z <<<"$target")_LINKER=aarch64-linux-gnu-gcc" "BINDGEN_EXTRA_CLANG_ARGS_$target=--sysroot=$1"
	unset CFLAGS
}
