#!/bin/sh
# Installer of the tiny OS, run by the install agent in a chroot: GRUB for UEFI and BIOS, grub.cfg, boot-info.yaml.
# For tests, a line in the user data makes it go wrong: "tiny: fail", "tiny: hang" or "tiny: noboot" (see README.md).
set -eu
export PATH=/bin:/sbin:/usr/bin:/usr/sbin

value() { sed -n "s/^$1: *//p" /etc/metal/install.yaml | sed 's/^"\(.*\)"$/\1/; s/^null$//'; }
asked() { grep -qsx "tiny: $1" /etc/metal/userdata; }
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
arguments="root=UUID=$uuid console=${console:-ttyS0,115200n8} panic=-1"

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
    cp /usr/lib/grub/BOOTX64.EFI /boot/efi/EFI/BOOT/BOOTX64.EFI
    printf 'search --no-floppy --fs-uuid --set=root %s\nconfigfile /boot/grub/grub.cfg\n' "$uuid" > /boot/efi/EFI/BOOT/grub.cfg
    echo "GRUB for UEFI is at /boot/efi/EFI/BOOT/BOOTX64.EFI"
    bootable=yes
fi

device=$(awk '$2 == "/" && $1 ~ "^/dev/" { print $1 }' /proc/mounts | tail -n 1)
partition=/sys/class/block/$(basename "$(readlink -f "$device")")
[ -e "$partition/partition" ] || refuse "root is on '$device', which is not a partition"
disk=$(basename "$(dirname "$(readlink -f "$partition")")")
core_end=$((34 * 512 + $(stat -c %s /usr/lib/grub/core.img)))
first=$(cat /sys/class/block/"$disk"/*/start | sort -n | head -n 1)
if [ "$(cat /sys/class/block/"$disk"/queue/logical_block_size)" != 512 ]; then
    echo "/dev/$disk has no 512-byte sectors: no GRUB for BIOS, which cannot boot from it"
elif [ $((first * 512)) -lt $core_end ]; then
    echo "the first partition of /dev/$disk begins at sector $first: no room for GRUB for BIOS"
else
    # 440 bytes: what follows them is the disk's signature and the protective partition table.
    dd if=/usr/lib/grub/boot.img of=/dev/"$disk" bs=440 count=1 conv=notrunc 2>/dev/null
    dd if=/usr/lib/grub/core.img of=/dev/"$disk" bs=512 seek=34 conv=notrunc 2>/dev/null
    echo "GRUB for BIOS is on /dev/$disk"
    bootable=yes
fi
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
