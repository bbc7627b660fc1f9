# Programs that write an image, each as a function with its name in underscores. A tree is unpacked below $mnt, a raw image is written to
# $loop; $url serves NAME.tar.zst and so on. A failure fails the measurement: before `||` bash ignores -e, so commands are joined with &&.
# Sourced.

unpack=(tar --numeric-owner --xattrs '--xattrs-include=*' -xpf - -C)

# Verifies the digest of every byte; the pipelines verify nothing.
drophammer() {
	rss "$agent" image burn "$url/$name.tar.zst" "$mnt" --digest "sha256:$digest" --json >"$work/figures"
}

curl_zstd_tar() { rss curl -sSf "$url/$name.tar.zst" | rss zstd -q -d -c | rss "${unpack[@]}" "$mnt"; }

curl_lz4_tar() { rss curl -sSf "$url/$name.tar.lz4" | rss lz4 -q -d -c | rss "${unpack[@]}" "$mnt"; }

# metal-stack's method: downloads everything into memory, checks its md5, then unpacks it.
download_md5_lz4_tar() {
	rss curl -sSf "$url/$name.tar.lz4" -o "$work/download" &&
		rss md5sum "$work/download" >"$work/md5" &&
		rss lz4 -q -d -c "$work/download" | rss "${unpack[@]}" "$mnt" &&
		download_is_memory
}

# Lower bound for the same bytes: the time of the disk and its filesystem without any other work.
dd_fsync() { rss dd if="$served/$name.tar" of="$mnt/all" bs=4M conv=fsync status=none; }

drophammer_raw() {
	rss "$agent" image burn "$url/debian.raw.zst" "$loop" --overwrite --digest "sha256:$digest" --json >"$work/figures"
}

curl_zstd_dd() {
	rss curl -sSf "$url/debian.raw.zst" | rss zstd -q -d -c | rss dd of="$loop" bs=4M iflag=fullblock oflag=direct conv=fsync status=none
}

bmaptool_copy() { rss bmaptool -q copy --bmap "$served/debian.raw.bmap" "$url/debian.raw.zst" "$loop"; }

# Ironic's method: downloads, then converts onto the disk, bypassing the page cache.
download_qemu_img() {
	rss curl -sSf "$url/debian.qcow2" -o "$work/download" &&
		rss qemu-img convert -n -W -m 4 -t none -T none -f qcow2 -O host_device "$work/download" "$loop" &&
		download_is_memory
}

# The download is in a tmpfs, so its size counts as memory.
download_is_memory() { echo $(($(stat -c %s "$work/download") / 1024)) >"$work/rss/download"; }
