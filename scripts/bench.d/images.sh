# Creates the images once in target/bench: NAME.tar, NAME.tar.zst, NAME.tar.lz4, and debian.raw in three formats. Sourced.

# noise SEED BYTES: prints incompressible data that is the same on every host.
noise() { head -c "$2" /dev/zero | openssl enc -aes-128-ctr -K "$(printf %032x "$1")" -iv "$(printf %032x 0)"; }

# mixed FILE SEED BYTES OFFSET: writes a file whose first half compresses like installed systems and whose second half does not.
mixed() {
	dd if=$out/debian.tar of="$1" bs=1M iflag=skip_bytes,count_bytes skip="$4" count=$(($3 / 2)) status=none
	noise "$2" $(($3 / 2)) >>"$1"
}

# reproducible FOLDER TAR: creates a sorted tar with the same times on every host.
reproducible() {
	tar --format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime --sort=name --numeric-owner \
		--mtime=@1767225600 -C "$1" -cf "$2.new" .
	mv "$2.new" "$2"
}

# 20 files of 67 MB: hardly any overhead per file.
large_tree() {
	[ ! -s $out/large.tar ] || return 0
	say "creating the tree with a few large files"
	local folder=$out/large.tree number
	rm -rf $folder && mkdir -p $folder
	for number in $(seq 20); do mixed $folder/file-$number "$number" 67000000 $((number * 60000000)); done
	reproducible $folder $out/large.tar
	rm -rf $folder
}

# 4 GiB: memory use that grows with the image would be visible.
huge_tree() {
	[ ! -s $out/huge.tar.zst ] || return 0
	say "creating the tree of 4 GiB"
	local folder=$out/huge.tree number
	rm -rf $folder && mkdir -p $folder/small
	for number in $(seq 16); do mixed $folder/file-$number "$number" $((256 << 20)) $((number * 70000000)); done
	noise 99 $((200 << 20)) | split -b 10K -a 5 - $folder/small/file-
	reproducible $folder $out/huge.tar
	rm -rf $folder
	framed $out/huge.tar >$out/huge.tar.zst.new
	mv $out/huge.tar.zst.new $out/huge.tar.zst
	rm $out/huge.tar
}

# tree debian|large: creates this tree in both compressed formats.
tree() {
	scripts/bench.d/debian-tree
	[ "$1" = debian ] || large_tree
	if [ ! -s $out/"$1".tar.zst ]; then
		say "compressing $1.tar"
		framed $out/"$1".tar >$out/"$1".tar.zst.new
		mv $out/"$1".tar.zst.new $out/"$1".tar.zst
	fi
	[ -s $out/"$1".tar.lz4 ] || { lz4 -q -1 $out/"$1".tar $out/"$1".tar.lz4.new && mv $out/"$1".tar.lz4.new $out/"$1".tar.lz4; }
}

# Debian as a disk with one partition, a third of it free: raw.zst with its bmap, and qcow2 as published for clouds.
raw_disk() {
	scripts/bench.d/debian-tree
	[ ! -s $out/debian.qcow2 ] || return 0
	say "creating the raw disk image"
	local raw=$out/debian.raw
	rm -f $raw
	truncate -s 3G $raw
	printf 'label: gpt\nlabel-id: 5A1D7C0E-93B2-4F57-8F0C-6E1A2B3C4D5E\nstart=1MiB, type=linux\n' | sfdisk -q $raw
	loop=$(losetup --show -f -o 1MiB --sizelimit $((3070 << 20)) $raw)
	mkfs.ext4 -q -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$loop"
	mount "$loop" "$mnt"
	tar --numeric-owner --xattrs --xattrs-include='*' -xpf $out/debian.tar -C "$mnt"
	umount "$mnt"
	losetup -d "$loop" && loop=''
	# Zero blocks become holes, which bmap omits.
	fallocate --dig-holes $raw
	bmaptool -q create -o $out/debian.raw.bmap $raw
	framed $raw >$out/debian.raw.zst.new
	mv $out/debian.raw.zst.new $out/debian.raw.zst
	qemu-img convert -q -c -o compression_type=zstd -O qcow2 $raw $out/debian.qcow2.new
	mv $out/debian.qcow2.new $out/debian.qcow2
}
