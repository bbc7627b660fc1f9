# Prints arrays, volume groups and logical volumes in lines that are equal at every boot. Sourced by /init of the inspection ramdisk and by the
# tiny OS of the tests.

# joined: joins lines into one word, `-` if there are none.
joined() { awk '{ line = line (NR > 1 ? "," : "") $0 } END { print line == "" ? "-" : line }'; }

# learn_arrays: reads the name of each active array once: the name in the superblock without the host; metadata 0.90 has only the number.
learn_arrays() {
	local device name
	for device in /sys/block/md*; do
		[ -e "$device/md/level" ] || continue
		device=${device##*/}
		name=$(mdadm --detail --export "/dev/$device" 2>/dev/null | sed -n 's/^MD_NAME=\([^:]*:\)\{0,1\}//p')
		eval "array_$device=\${name:-${device#md}}"
	done
}

# array_name KERNEL_NAME: prints the name that learn_arrays has read.
array_name() { eval "echo \$array_$1"; }

# spoken KERNEL_NAME...: prints array names instead of kernel names, because the numbers md127 … are assigned randomly.
spoken() {
	local device
	for device; do
		case $device in
		md[0-9]*) echo "md/$(array_name "$device")" ;;
		*) echo "$device" ;;
		esac
	done
}

# members MD_FOLDER: prints the members in the order of their slots; `missing` for an empty slot.
members() {
	local slot member
	slot=0
	while [ "$slot" -lt "$(cat "$1/raid_disks")" ]; do
		member=$(grep -lx "$slot" "$1"/dev-*/slot 2>/dev/null | sed 's|.*/dev-\(.*\)/slot|\1|')
		spoken "${member:-missing}"
		slot=$((slot + 1))
	done | joined
}

spares() {
	spoken $(grep -lx none "$1"/dev-*/slot 2>/dev/null | sed 's|.*/dev-\(.*\)/slot|\1|') | sort | joined
}

# arrays: NAME LEVEL METADATA PLACES MEMBERS SPARES
arrays() {
	local md device
	for md in /sys/block/md*/md; do
		[ -e "$md/level" ] || continue
		device=${md%/md}
		device=${device##*/}
		echo "$(array_name "$device") $(cat "$md/level" "$md/metadata_version" "$md/raid_disks" | xargs) $(members "$md") $(spares "$md")"
	done | sort
}

# report COMMAND FIELDS: prints values separated by `|`; LVM's warnings about foreign groups are dropped.
report() {
	[ -d /sys/module/dm_mod ] || return 0
	lvm "$1" --noheadings --separator '|' --units m --nosuffix -o "$2" 2>/dev/null | sed 's/^ *//'
}

# groups: NAME TAGS PVS
groups() {
	local name uuid tags pv
	report vgs vg_name,vg_uuid,vg_tags,pv_name | while IFS='|' read -r name uuid tags pv; do
		echo "$uuid $name ${tags:--} $(spoken "${pv#/dev/}")"
	done | sort | awk '
		$1 == last { line = line "," $4; next }
		{ if (line) print line; last = $1; line = $2 " " $3 " " $4 }
		END { if (line) print line }' | sort
}

# volumes: GROUP/NAME TYPE STRIPES MIB
volumes() {
	report lvs vg_name,lv_name,segtype,stripes,lv_size | awk -F '|' '{ sub(/\.00$/, "", $5); print $1 "/" $2, $3, $4, $5 }' | sort -u
}
