# The machine of scripts/demo-lan, and its power control: $work/machine on|off|pxe|state. Sourced; it uses that script's variables.

# A machine that QEMU runs without libvirt. It boots from disk before the network, except for one boot after `pxe`.
qemu_machine() {
	local options=(-machine q35 -accel "$(accel)" -cpu "$(cpu_model)" -smp 2 -m 1024 -uuid "$uuid" -display none -no-reboot
		-chardev "file,id=console,path=$work/console.log,append=on" -serial chardev:console
		-drive "file=$work/disk.raw,format=raw,if=none,id=disk,cache=unsafe,discard=unmap"
		-device ide-hd,drive=disk,bus=ide.0,serial=DEMO0001,bootindex=1
		-netdev tap,id=net,ifname=machine,script=no,downscript=no)
	local card=virtio-net-pci,netdev=net,mac=$mac
	if [ "$firmware" != bios ]; then
		# Without the NIC's ROM, which is iPXE, the firmware itself boots over PXE.
		card=$card,romfile=
		options+=(-drive if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd -drive "if=pflash,format=raw,file=$work/vars.fd")
	fi
	[ "$firmware" != http ] || options+=(-fw_cfg name=opt/org.tianocore/IPv4PXESupport,string=n)
	cat >"$work/machine" <<-END
		#!/bin/bash
		# An ended process that has not been reaped still exists, but without a program.
		runs() { readlink "/proc/\$1/exe" >/dev/null; }
		pid=\$(cat "$work/pid" 2>/dev/null) && runs "\$pid" || pid=
		case \$1 in
		on)
			[ -z "\$pid" ] || exit 0
			index=2
			! rm "$work/pxe" 2>/dev/null || index=0
			ip netns exec $cable qemu-system-x86_64 ${options[*]@Q} -device $card,bootindex=\$index >>"$work/qemu.log" 2>&1 </dev/null &
			echo \$! >"$work/pid"
			;;
		off)
			[ -n "\$pid" ] || exit 0
			kill "\$pid"
			while runs "\$pid"; do sleep 0.2; done
			;;
		pxe) touch "$work/pxe" ;;
		state) [ -z "\$pid" ] && echo 0 || echo 1 ;;
		esac
	END
	chmod +x "$work/machine"
}

# Called by ipmi_sim: MC get|set|check, then names and values.
ipmi_sim_controller() {
	cat >"$work/chassis" <<-END
		#!/bin/sh
		shift
		word=\$1
		shift
		case \$word in
		get) for name; do [ "\$name" != power ] || echo "power:\$("$work/machine" state)"; done ;;
		set)
			while [ \$# -gt 1 ]; do
				case "\$1 \$2" in "power 1") "$work/machine" on ;; "power 0") "$work/machine" off ;; "boot pxe") "$work/machine" pxe ;; esac
				shift 2
			done
			;;
		esac
	END
	chmod +x "$work/chassis"
	ipmi_controller "$work/ipmi" 6230 "$work/chassis"
	say "a management controller: ipmi_sim, which starts and ends QEMU"
	ip netns exec "$desk" ipmi_sim -c "$work/ipmi/lan.conf" -f "$work/ipmi/commands" -s "$work/ipmi/state" -n >"$work/ipmi.log" 2>&1 </dev/null &
	pids+=($!)
	for _ in $(seq 60); do
		! IPMI_PASSWORD=hunter2 ip netns exec "$desk" ipmitool -I lanplus -H 127.0.0.1 -p 6230 -U operator -E chassis power status >/dev/null 2>&1 || return 0
		sleep 0.5
	done
	cat "$work/ipmi.log"
	die "ipmi_sim does not answer"
}

# A domain of a separate libvirtd, whose state is in a separate filesystem that is removed at the end.
libvirt_machine() {
	local files one
	mkdir -p "$work/libvirt"
	cat >"$work/libvirt/libvirtd.conf" <<-END
		unix_sock_dir = "$work/libvirt"
		unix_sock_rw_perms = "0700"
		auth_unix_ro = "none"
		auth_unix_rw = "none"
	END
	cat >"$work/libvirt/qemu.conf" <<-END
		user = "root"
		group = "root"
		dynamic_ownership = 0
		remember_owner = 0
		security_driver = "none"
		cgroup_controllers = []
		namespaces = []
		stdio_handler = "file"
	END
	# The package that creates this user requires systemd, so the user is added to a copy of the files.
	cp /etc/passwd /etc/group "$work/libvirt/"
	getent passwd libvirt-qemu >/dev/null || echo 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin' >>"$work/libvirt/passwd"
	for one in libvirt-qemu kvm; do getent group $one >/dev/null || echo "$one:x:64055:" >>"$work/libvirt/group"; done
	files="mount --bind '$work/libvirt/passwd' /etc/passwd && mount --bind '$work/libvirt/group' /etc/group && mount -t tmpfs libvirt /etc/libvirt && mount -t tmpfs libvirt /var/lib/libvirt && mount -t tmpfs libvirt /run/libvirt &&
		cp '$work/libvirt/qemu.conf' /etc/libvirt/ && exec libvirtd --config '$work/libvirt/libvirtd.conf' --pid-file '$work/libvirt/pid'"
	mkdir -p /run/libvirt /etc/libvirt /var/lib/libvirt
	ip netns exec "$cable" unshare --mount sh -c "$files" >"$work/libvirt.log" 2>&1 &
	pids+=($!)
	virsh=(virsh --quiet --connect "qemu:///system?socket=$work/libvirt/libvirt-sock")
	wait_for_socket "$work/libvirt/libvirt-sock"
	cat >"$work/domain.xml" <<-END
		<domain type='$([ "$(accel)" = kvm ] && echo kvm || echo qemu)'>
			<name>demo</name><uuid>$uuid</uuid><memory unit='MiB'>1024</memory><vcpu>2</vcpu>
			<os><type arch='x86_64' machine='q35'>hvm</type></os>
			<features><acpi/></features>
			<cpu mode='maximum'/>
			<devices>
				<emulator>/usr/bin/qemu-system-x86_64</emulator>
				<disk type='file' device='disk'>
					<driver name='qemu' type='raw' cache='unsafe' discard='unmap'/>
					<source file='$work/disk.raw'/><target dev='sda' bus='sata'/><serial>DEMO0001</serial><boot order='1'/>
				</disk>
				<interface type='ethernet'>
					<mac address='$mac'/><target dev='machine' managed='no'/><model type='virtio'/><boot order='2'/>
				</interface>
				<serial type='file'><source path='$work/console.log' append='on'/></serial>
			</devices>
		</domain>
	END
	"${virsh[@]}" define "$work/domain.xml"
	cat >"$work/machine" <<-END
		#!/bin/sh
		[ "\$1" != off ] || ${virsh[*]@Q} destroy demo >/dev/null 2>&1 || true
	END
	chmod +x "$work/machine"
}

wait_for_socket() {
	for _ in $(seq 60); do
		[ ! -S "$1" ] || return 0
		sleep 0.5
	done
	cat "$work/libvirt.log"
	die "libvirtd does not answer"
}

redfish_controller() {
	# Debian's Python module for libvirt matches Debian's library. Among other modules, packages from PyPI take precedence
	# over Debian's.
	echo /usr/lib/python3/dist-packages >"$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/debian.pth"
	sushy_operator "$work/htpasswd"
	printf "SUSHY_EMULATOR_AUTH_FILE = '%s'\nSUSHY_EMULATOR_STATE_DIR = '%s'\n" "$work/htpasswd" "$work" >"$work/sushy.conf"
	say "a management controller: sushy-emulator $sushy_version, which drives libvirt"
	ip netns exec "$desk" "$venv/bin/sushy-emulator" --config "$work/sushy.conf" --libvirt-uri "qemu:///system?socket=$work/libvirt/libvirt-sock" \
		-i 127.0.0.1 -p 8443 --ssl-certificate testdata/tls/server.pem --ssl-key testdata/tls/server.key >"$work/sushy.log" 2>&1 &
	pids+=($!)
	for _ in $(seq 120); do
		! ip netns exec "$desk" curl --silent --insecure --output /dev/null https://127.0.0.1:8443/redfish/v1/ || return 0
		sleep 0.5
	done
	cat "$work/sushy.log"
	die "sushy-emulator does not answer"
}
