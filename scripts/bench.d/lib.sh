# Helpers of the benchmarks that write images: sources, targets, and measurements. Sourced after scripts/lib.sh.

out=target/bench
work=$(mktemp -d -p /dev/shm)
mnt=$work/mnt
served=$work/served
mkdir -p $out "$mnt" "$served" "$work/rss"
loop='' pace_pid=''

leave() {
	[ -z "$pace_pid" ] || kill "$pace_pid" 2>/dev/null || true
	! mountpoint -q "$mnt" || umount "$mnt" || true
	[ -z "$loop" ] || losetup -d "$loop" || true
	rm -rf "$work"
}
trap leave EXIT

# median FIELD...: prints a jq definition.
median='def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end;'

# CPU time of the whole machine, in hundredths of a second, including kernel threads that write.
busy_ticks() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }

# quiet: waits up to a minute until the machine is idle; other programs would distort the figures.
quiet() {
	local end=$((SECONDS + 60)) before percent
	[ -z "${BENCH_NOISY-}" ] || return 0
	while :; do
		before=$(busy_ticks)
		sleep 2
		percent=$((($(busy_ticks) - before) * 100 / (2 * $(getconf CLK_TCK) * $(nproc))))
		[ $percent -ge 5 ] || return 0
		[ $SECONDS -lt $end ] || die "the machine has been $percent % busy for a minute, so measurements are not possible; BENCH_NOISY=1 measures nevertheless"
		echo "the machine is $percent % busy: waiting"
	done
}

# seconds_since START: prints the seconds since START, a value of EPOCHREALTIME.
seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f", b - a }'; }

# serve BITS_PER_SECOND EACH: starts a server for $served at $url, behind a link with this rate and a limit for each connection.
serve() {
	[ -z "$pace_pid" ] || { kill "$pace_pid" && wait "$pace_pid" || true; }
	: >"$work/address"
	$out/pace "$served" "$1" "$2" >"$work/address" 2>"$work/pace.log" &
	pace_pid=$!
	wait_for http:// "$work/address" 5 $pace_pid
	url=$(cat "$work/address")
}

build_pace() {
	[ $out/pace -nt examples/pace.rs ] || rustc --edition 2024 -O examples/pace.rs -o $out/pace
}

# Static agent of the ramdisk, or the one that DROPHAMMER_AGENT names.
find_agent() {
	agent=${DROPHAMMER_AGENT-}
	[ -n "$agent" ] || { scripts/build-agent && agent=$repository/target/agent/drophammer; }
	"$agent" --version >/dev/null || die "$agent does not run"
}

# attach ram|disk BYTES: attaches a loop device of zeros with all blocks allocated, so that no run pays for the allocation.
attach() {
	local file=$work/target.img
	[ -z "$loop" ] || { losetup -d "$loop" && loop=''; }
	rm -f "$work/target.img"
	if [ "$1" = ram ]; then
		fallocate -l "$2" "$file"
		loop=$(losetup --show -f "$file")
		return
	fi
	file=$out/target.img
	dd if=/dev/zero of=$file bs=4M count="$2" iflag=count_bytes oflag=direct conv=notrunc status=none
	loop=$(losetup --show -f --direct-io=on $file)
}

# soil BYTES CONTENDER: overwrites the device with data that is neither the image nor zeros. For bmaptool, which does
# not write the holes of the image, the device gets zeros.
soil() {
	local what=(yes drophammer)
	[ "$2" != bmaptool-copy ] || what=(cat /dev/zero)
	dd if=<("${what[@]}") of="$loop" bs=4M count="$1" iflag=fullblock,count_bytes oflag=direct status=none
}

# Without lazy initialization: the kernel must not write in the background during a measurement.
fresh_filesystem() {
	mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$loop"
	mount "$loop" "$mnt"
}

# Drops caches of earlier runs, except for the programs: loading them is not measured.
drop_caches() {
	sync
	echo 3 >/proc/sys/vm/drop_caches
	"$agent" --version >/dev/null
	local program
	for program in curl zstd lz4 tar dd openssl md5sum bmaptool qemu-img; do $program --version >/dev/null 2>&1 || true; done
}

# rss COMMAND...: runs the command and stores its peak memory, in KiB, in a file.
rss() { /usr/bin/time -q -f %M -o "$(mktemp -p "$work/rss")" "$@"; }

# Sum of the values that `rss` has stored, in bytes.
rss_sum() { awk '{ sum += $1 } END { printf "%.0f", sum * 1024 }' "$work"/rss/*; }

# framed FILE: zstd -3 in frames of 4 MiB, as `drophammer image pack` creates them; any decoder reads it.
framed() {
	local piece=$work/piece
	split -b 4M --filter="cat >$piece && zstd -q -3 -c $piece" "$1"
	rm -f "$piece"
}
