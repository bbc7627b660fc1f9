# What both ramdisks start with: the kernel's filesystems, the hardware's modules, the command line. Sourced by /init.

mount_kernel_filesystems() {
	mount -t proc proc /proc
	mount -t sysfs sysfs /sys
	mount -t devtmpfs devtmpfs /dev
	mkdir -p /dev/pts
	mount -t devpts devpts /dev/pts
	mount -t tmpfs -o mode=755 tmpfs /run
	mkdir -p /run/lock
	# Below warnings the kernel would draw over what people are to read.
	[ -n "$(argument debug)" ] || echo 4 >/proc/sys/kernel/printk
}

# argument NAME: its value on the kernel command line, the last one if there are several; a bare word is its own value.
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

# The driver of SCSI and SATA disks takes all that are there at once, and which one becomes sda is a matter of luck
# (PROBE_PREFER_ASYNCHRONOUS in drivers/scsi/sd.c). A bind by hand waits: one after the other, in the order of the ports.
bind_disks() {
	local disk
	for disk in $(ls /sys/bus/scsi/devices | grep '^[0-9]*:' | sort -t: -n -k1,1 -k2,2 -k3,3 -k4,4); do
		[ -e "/sys/bus/scsi/devices/$disk/driver" ] || echo "$disk" >/sys/bus/scsi/drivers/sd/bind 2>/dev/null
	done
}

# Loads the module of everything that says what it is. A bus that comes up shows new devices: again, until none is new.
# Loading waits for the probes that a module starts in the background (async_synchronize_full in the kernel's
# do_init_module), so disks are there when this returns; what sits behind USB may come later.
load_modules() {
	local before= now round
	modprobe -bq sd_mod && echo 0 >/sys/bus/scsi/drivers_autoprobe
	for round in 1 2 3 4 5 6 7 8; do
		now=$(modaliases)
		[ "$now" != "$before" ] || break
		before=$now
		# Most devices have no module here, which is no error.
		modprobe -abq $now 2>/dev/null
		[ ! -e /sys/bus/scsi/drivers/sd ] || bind_disks
	done
	# What is plugged in later finds its driver by itself again.
	[ ! -e /sys/bus/scsi/drivers_autoprobe ] || echo 1 >/sys/bus/scsi/drivers_autoprobe
}

# No hardware asks for these. mdadm and lvm expect a udev that has loaded them, and there is no /dev/loop-control before.
load_stack() { modprobe -a md-mod dm-mod loop; }
