#!/bin/sh
# Installer of the tiny OS, run by the install agent in a chroot: GRUB for UEFI and BIOS, grub.cfg, boot-info.yaml.
# For tests, a line in the user data or in /srv/tiny makes it go wrong: "tiny: fail", "tiny: hang" or "tiny: noboot" (see README.md).
set -eu
export PATH=/bin:/sbin:/usr/bin:/usr/sbin

value() { sed -n "s/^$1: *//p" /etc/metal/install.yaml | sed 's/^"\(.*\)"$/\1/; s/^null$//'; }
asked() { grep -qsx "tiny: $1" /etc/metal/userdata /srv/tiny; }
refuse() {
    echo "install.sh: $*" >&2
    exit 1
}

if asked fail; then
    echo "installing GRUB"
    echo "grub: cannot find the moon" >&2
    exit 7
fi
if asked hang; then
    echo "waiting for the moon"
    while :; do sleep 3600; done
fi

uuid=$(value root_uuid)
console=$(value console)
[ -n "$uuid" ] || refuse "no root_uuid in /etc/metal/install.yaml"
value hostname > /etc/hostname

# mounted PATH: device and type of the filesystem that is mounted there.
mounted() { awk -v path="$1" '$2 == path && $1 ~ "^/dev/" { found = $1 " " $3 } END { print found }' /proc/mounts; }
# kernel_name DEVICE: as /sys names it; without udev nodes of the device mapper are not links to dm-N.
kernel_name() { basename "$(readlink -f "/sys/dev/block/$(printf '%d:%d' "0x$(stat -Lc %t "$1")" "0x$(stat -Lc %T "$1")")")"; }
# bottoms NAME: the partitions and disks below an array or a logical volume; a partition is its own.
bottoms() {
    local slave lowest=yes
    for slave in /sys/class/block/"$1"/slaves/*; do
        [ -e "$slave" ] || continue
        lowest=
        bottoms "${slave##*/}"
    done
    [ -z "$lowest" ] || echo "$1"
}

filesystem_uuid() { blkid -p -s UUID -o value "$1"; }

root=$(mounted /)
[ -n "$root" ] || refuse "root is on no device: $(grep ' / ' /proc/mounts)"
type=${root#* } root=${root% *}
# On a busy host an emulated timer can be too late for the kernel, which panics then ("IO-APIC + timer doesn't work"). The others spare
# an emulated kernel half of its seconds (qemu-tests/qemu_machine.rs).
spared="no_timer_check cryptomgr.notests=1 rodata=off mitigations=off rcupdate.rcu_expedited=1"
arguments="root=UUID=$uuid console=${console:-ttyS0,115200n8} panic=-1 $spared"
[ "$type" = ext4 ] || arguments="$arguments rootfstype=$type"

# What most machines can do without: into the root if there is anything for it, into the initrd if root is.
parts=$(awk '$3 == "xfs" || $3 == "btrfs" { print $3 }' /proc/mounts | sort -u)
if [ -n "$parts" ] || ls /sys/block | grep -q '^md\|^dm-'; then parts="stack $parts"; fi
for part in $parts; do zcat /usr/lib/tiny/"$part".gz | (cd / && cpio -idu 2>/dev/null); done
if [ "$type" != ext4 ] || [ ! -e "/sys/class/block/$(kernel_name "$root")/partition" ]; then
    for part in $parts; do cat /usr/lib/tiny/"$part".gz >> /boot/initrd; done
fi
boot=$(mounted /boot)
boot=${boot% *}
# A filesystem of its own below /boot: GRUB finds the same paths in it.
[ -z "$boot" ] || ln -sfn . /boot/boot

mkdir -p /boot/grub
cat > /boot/grub/grub.cfg <<END
set timeout=0
menuentry tiny {
    linux /boot/vmlinuz $arguments tiny.via=disk
    initrd /boot/initrd
}
END

bootable=
if grep -q ' /boot/efi vfat ' /proc/mounts; then
    mkdir -p /boot/efi/EFI/BOOT
    name=BOOTX64.EFI
    [ "$(uname -m)" != aarch64 ] || name=BOOTAA64.EFI
    cp /usr/lib/grub/$name /boot/efi/EFI/BOOT/$name
    printf 'search --no-floppy --fs-uuid --set=root %s\nconfigfile /boot/grub/grub.cfg\n' \
        "$(filesystem_uuid "${boot:-$root}")" > /boot/efi/EFI/BOOT/grub.cfg
    echo "GRUB for UEFI is at /boot/efi/EFI/BOOT/$name"
    bootable=yes
fi

# grub_for_bios DISK: where a disk that carries a part of the system has room for it.
grub_for_bios() {
    [ -e /usr/lib/grub/core.img ] || return 0
    core_end=$((34 * 512 + $(stat -c %s /usr/lib/grub/core.img)))
    first=$(cat /sys/class/block/"$1"/*/start | sort -n | head -n 1)
    if [ "$(cat /sys/class/block/"$1"/queue/logical_block_size)" != 512 ]; then
        echo "/dev/$1 has no 512-byte sectors: no GRUB for BIOS, which cannot boot from it"
    elif [ $((first * 512)) -lt $core_end ]; then
        echo "the first partition of /dev/$1 begins at sector $first: no room for GRUB for BIOS"
    else
        # 440 bytes: what follows them is the disk's signature and the protective partition table.
        dd if=/usr/lib/grub/boot.img of=/dev/"$1" bs=440 count=1 conv=notrunc 2>/dev/null
        dd if=/usr/lib/grub/core.img of=/dev/"$1" bs=512 seek=34 conv=notrunc 2>/dev/null
        echo "GRUB for BIOS is on /dev/$1"
        bootable=yes
    fi
}

disks=
for name in $(for device in $boot $root; do bottoms "$(kernel_name "$device")"; done | sort -u); do
    if [ -e "/sys/class/block/$name/partition" ]; then
        disks="$disks $(basename "$(dirname "$(readlink -f "/sys/class/block/$name")")")"
    else
        echo "/dev/$name has no partitions: no room for GRUB for BIOS"
    fi
done
for disk in $(printf '%s\n' $disks | sort -u); do grub_for_bios "$disk"; done
[ -n "$bootable" ] || refuse "neither UEFI nor BIOS could boot this disk"

if ! asked noboot; then
    cat > /etc/metal/boot-info.yaml <<END
initrd: /boot/initrd
cmdline: "$arguments tiny.via=kexec"
kernel: /boot/vmlinuz
bootloader_id: metal-tiny
END
fi
sync
