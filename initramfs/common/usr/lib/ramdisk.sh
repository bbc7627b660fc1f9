# Common start of both ramdisks: the kernel's filesystems, hardware modules, the command line. Sourced by /init.

mount_kernel_filesystems() {
	mount -t proc proc /proc
	mount -t sysfs sysfs /sys
	mount -t devtmpfs devtmpfs /dev
	mkdir -p /dev/pts
	mount -t devpts devpts /dev/pts
	mount -t tmpfs -o mode=755 tmpfs /run
	mkdir -p /run/lock
	# Kernel messages below warnings would clutter the console.
	[ -n "$(argument debug)" ] || echo 4 >/proc/sys/kernel/printk
}

# argument NAME: prints its value on the kernel command line, the last one if there are several; a word without = is its own value.
argument() {
	local word value=
	for word in $(cat /proc/cmdline); do
		case $word in
		"$1"=*) value=${word#*=} ;;
		"$1") value=$word ;;
		esac
	done
	echo "$value"
}

modaliases() {
	cat /sys/bus/*/devices/*/modalias 2>/dev/null | sort -u
}

# The driver of SCSI and SATA disks probes all existing disks at once, so their names are random (PROBE_PREFER_ASYNCHRONOUS in
# drivers/scsi/sd.c). A manual bind is synchronous, so disks are bound one after the other, in the order of the ports.
bind_disks() {
	local disk
	for disk in $(ls /sys/bus/scsi/devices | grep '^[0-9]*:' | sort -t: -n -k1,1 -k2,2 -k3,3 -k4,4); do
		[ -e "/sys/bus/scsi/devices/$disk/driver" ] || echo "$disk" >/sys/bus/scsi/drivers/sd/bind 2>/dev/null
	done
}

# Loads the modules of all devices by their modalias. The driver of a bus may add devices, so the loading is repeated until no device is
# added. modprobe waits for the asynchronous probes that a module starts (async_synchronize_full in the kernel's do_init_module), so all
# disks exist when the function returns, except USB disks, which may appear later.
load_modules() {
	local before= now round
	modprobe -bq sd_mod && echo 0 >/sys/bus/scsi/drivers_autoprobe
	for round in 1 2 3 4 5 6 7 8; do
		now=$(modaliases)
		[ "$now" != "$before" ] || break
		before=$now
		# It is not an error that the ramdisk lacks modules for most devices.
		modprobe -abq $now 2>/dev/null
		[ ! -e /sys/bus/scsi/drivers/sd ] || bind_disks
	done
	# From now on, devices that are plugged in later are bound to their drivers automatically.
	[ ! -e /sys/bus/scsi/drivers_autoprobe ] || echo 1 >/sys/bus/scsi/drivers_autoprobe
}

# No modalias loads these modules. mdadm and lvm expect that udev has loaded them, and /dev/loop-control requires the
# module loop.
load_stack() { modprobe -a md-mod dm-mod loop; }
