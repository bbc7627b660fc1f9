# Paths of this machine in binaries. Panics and assertions contain file names, which must not depend on the location of the sources: two
# builds of one commit are identical (scripts/check-reproducible). Sourced by the scripts that build programs.

# remap_path FOLDER NAME: replaces the path of the folder by NAME in the binary. The last matching rule applies.
remap_path() {
	flags+=("--remap-path-prefix=$1=$2")
	c_flags+=("-ffile-prefix-map=$1=$2")
}

# remap_paths: adds the rules for all folders to the arrays `flags` and `c_flags`, and exports both for cargo and for C compilers.
remap_paths() {
	local home=${CARGO_HOME:-$HOME/.cargo} folder encoded
	remap_path "$(cargo_target_dir)" /drophammer/target
	remap_path "$(pwd -P)" /drophammer
	remap_path "$home" /cargo
	# A mirror of crates.io has a separate folder.
	for folder in "$home"/registry/src/*; do remap_path "$folder" /cargo; done
	# If the component rust-src is installed, the files of the standard library have their local names.
	remap_path "$(rustc --print sysroot)/lib/rustlib/src/rust" "/rustc/$(rustc -vV | sed -n 's/^commit-hash: //p')"
	encoded=$(printf '%s\x1f' "${flags[@]}")
	export CARGO_ENCODED_RUSTFLAGS=${encoded%?} CC_SHELL_ESCAPED_FLAGS=1
	CFLAGS=$(printf '%q ' "${c_flags[@]}")
	export CFLAGS
}

# refuse_local_paths FILE: fails if the binary contains file names of this machine.
refuse_local_paths() {
	local folder
	for folder in "$(pwd -P)/src" "${CARGO_HOME:-$HOME/.cargo}/registry"; do
		! grep -aqF "$folder/" "$1" || die "$1 contains file names in $folder, so the build is not reproducible"
	done
}
