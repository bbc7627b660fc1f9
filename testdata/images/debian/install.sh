#!/bin/sh
# Installer of the Debian image, run by the install agent in a chroot (metal-stack's contract): makes the system this machine's
# own, installs GRUB for the firmware that runs now, and leaves /etc/metal/boot-info.yaml for the kexec.
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive

# value KEY: a scalar of install.yaml, JSON escapes undone. addresses KEY: the items of a list, in either YAML style.
value() {
    perl -CSD -ne 'next unless s/^\Q'"$1"'\E:\s*//; chomp; s/^null$//;
        s/^"(.*)"$/$1/ and s/\\(?:u([0-9a-fA-F]{4})|(.))/$1 ? chr hex $1 : $2 eq "n" ? "\n" : $2/ge; print' /etc/metal/install.yaml
}
addresses() { sed -n "/^$1:/,/^[a-z]/{/^$1:\|^[- ]/p}" /etc/metal/install.yaml | grep -oE '[0-9]+(\.[0-9]+){3}|[0-9a-fA-F]*:[0-9a-fA-F:]+[0-9a-fA-F]' || true; }
refuse() {
    echo "install.sh: $*" >&2
    exit 1
}

uuid=$(value root_uuid)
[ -n "$uuid" ] || refuse "no root_uuid in /etc/metal/install.yaml"
hostname=$(value hostname)
console=$(value console)

echo "identity of ${hostname:=debian}"
echo "$hostname" > /etc/hostname
printf '127.0.0.1\tlocalhost\n127.0.1.1\t%s\n::1\tlocalhost ip6-localhost ip6-loopback\n' "$hostname" > /etc/hosts
rm -f /etc/machine-id /var/lib/dbus/machine-id
systemd-machine-id-setup
ssh-keygen -q -A

password=$(value password)
[ -z "$password" ] || printf 'root:%s\n' "$password" | chpasswd
install -d -m 700 -o metal -g metal /home/metal/.ssh
{ value sshpublickey && echo; } > /home/metal/.ssh/authorized_keys
chown metal:metal /home/metal/.ssh/authorized_keys
chmod 600 /home/metal/.ssh/authorized_keys

dns=$(addresses dns_servers | tr '\n' ' ')
ntp=$(addresses ntp_servers | tr '\n' ' ')
mkdir -p /etc/systemd/resolved.conf.d /etc/systemd/timesyncd.conf.d
[ -z "$dns" ] || printf '[Resolve]\nDNS=%s\n' "$dns" > /etc/systemd/resolved.conf.d/metal.conf
[ -z "$ntp" ] || printf '[Time]\nNTP=%s\n' "$ntp" > /etc/systemd/timesyncd.conf.d/metal.conf

if [ -d /sys/firmware/efi ]; then
    echo "GRUB for UEFI into /boot/efi"
    grub-install --target=x86_64-efi --efi-directory=/boot/efi --removable --no-nvram
else
    device=$(findmnt -no SOURCE /)
    partition=$(readlink -f /sys/class/block/"$(basename "$(readlink -f "$device")")")
    [ -e "$partition/partition" ] || refuse "root is on '$device', which is not a partition"
    disk=/dev/$(basename "$(dirname "$partition")")
    # Without a BIOS boot partition GRUB notes the sectors of its core image: it has to be forced to.
    echo "GRUB for BIOS onto $disk"
    grub-install --target=i386-pc --force "$disk"
fi

# Written here and not by grub-mkconfig, which takes half a minute and, without udev's links, names root by a device that may
# have another name at the next boot. A later update-grub in the running system does it right, with these arguments.
kernel=$(ls /boot/vmlinuz-* | tail -n 1)
initrd=/boot/initrd.img-${kernel#/boot/vmlinuz-}
[ -e "$initrd" ] || refuse "$initrd is missing"
consoles="console=tty0 console=${console:-ttyS0,115200n8}"
arguments="root=UUID=$uuid ro $consoles panic=10"
printf 'GRUB_TIMEOUT=1\nGRUB_DISTRIBUTOR=Debian\nGRUB_CMDLINE_LINUX_DEFAULT=""\nGRUB_CMDLINE_LINUX="%s panic=10"\n' "$consoles" > /etc/default/grub
cat > /boot/grub/grub.cfg <<END
set timeout=1
search --no-floppy --fs-uuid --set=root $uuid
menuentry "Debian" {
    linux $kernel $arguments demo.via=disk
    initrd $initrd
}
END
cat > /etc/metal/boot-info.yaml <<END
initrd: $initrd
cmdline: "$arguments demo.via=kexec"
kernel: $kernel
bootloader_id: metal-debian
END
sync
