# Architectures for which agent and ramdisk are built, under Debian's names. Sourced by the scripts that build them.

# select_architecture NAME: sets `architecture` and the names that depend on it: Rust's target (`triple`), Debian's directory of libraries
# (`multiarch`), the path of the dynamic loader (`loader`), the suffix of output directories (`suffix`: empty for amd64), and the command
# that runs programs of this architecture on the host (`emulator`: empty if the host runs them itself).
select_architecture() {
	architecture=$1 suffix='' emulator=()
	case $1 in
	amd64) triple=x86_64-unknown-linux-gnu multiarch=x86_64-linux-gnu loader=/lib64/ld-linux-x86-64.so.2 ;;
	arm64) triple=aarch64-unknown-linux-gnu multiarch=aarch64-linux-gnu loader=/lib/ld-linux-aarch64.so.1 suffix=-arm64 ;;
	*) echo "the architecture $1 is not supported: use amd64 or arm64" >&2 && return 2 ;;
	esac
	case $1-$(uname -m) in
	arm64-x86_64) emulator=(qemu-aarch64-static) ;;
	esac
}
