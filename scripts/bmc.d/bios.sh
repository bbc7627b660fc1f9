# The check of scripts/bmc for Redfish steps: `drophammer serve` applies BIOS settings to a machine of sushy-emulator's libvirt driver
# before the machine installs. The emulator uses libvirt's test driver, so that no machine is started: this script boots the ramdisk in its
# place, whenever the emulator has restarted the machine. Sourced; it uses the variables and functions of scripts/bmc.

# The only domain of libvirt's test driver.
bios_machine=6695eb01-f6a4-8304-79aa-97f2502e193f
bios_layout='{"id": "default", "disks": [{"device": "/dev/sda", "wipe": true, "partitions": [{"number": 1, "label": "root", "size": 0, "type": "GPTLinux"}]}], "filesystems": [{"path": "/", "device": "/dev/sda1", "format": "ext4", "label": "root"}]}'

bios_emulator() {
	# Debian's Python module for libvirt matches Debian's library. Among other modules, packages from PyPI take precedence
	# over Debian's.
	echo /usr/lib/python3/dist-packages >"$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/debian.pth"
	mkdir "$run/bios"
	printf "SUSHY_EMULATOR_AUTH_FILE = '%s'\nSUSHY_EMULATOR_STATE_DIR = '%s'\n" "$run/htpasswd" "$run/bios" >"$run/bios/sushy.conf"
	port=$(free SOCK_STREAM)
	# The test driver forgets changes when its last connection is closed.
	"$venv/bin/python" -c 'import libvirt; keep = libvirt.open("test:///default"); from sushy_tools.emulator.main import main; main()' \
		--config "$run/bios/sushy.conf" --libvirt-uri test:///default -i 127.0.0.1 -p "$port" \
		--ssl-certificate testdata/tls/server.pem --ssl-key testdata/tls/server.key >"$run/bios/log" 2>&1 &
	pids+=($!)
	bios_redfish=https://127.0.0.1:$port
	wait_for_redfish "$bios_redfish" "$run/bios/log"
}

# bios_attribute NAME: prints the value in force.
bios_attribute() {
	curl --silent --insecure --user operator:hunter2 "$bios_redfish/redfish/v1/Systems/$bios_machine/BIOS" | jq -r ".Attributes.$1"
}

bios_restarts() { grep -c 'POST .*ComputerSystem.Reset' "$run/bios/log" || true; }

# bios_directory DIR URL: writes a server's directory with one machine, whose template sets a BIOS attribute after a factory reset.
bios_directory() {
	mkdir -p "$1"/{machines,layouts,images,boot,deploy-templates}
	echo kernel >"$1/boot/vmlinuz" && echo ramdisk >"$1/boot/initrd"
	echo image >"$1/images/debian.tar.zst"
	printf 'id: debian-12\nfile: debian.tar.zst\n' >"$1/images/debian.yaml"
	echo "$bios_layout" >"$1/layouts/default.yaml"
	cp examples/deploy-templates/bios-turbo-off.yaml "$1/deploy-templates/"
	(umask 077 && cat >"$1/machines/one.yaml" <<-END)
		id: $bios_machine
		name: one
		traits: [CUSTOM_BM_CONFIG_BIOS_TURBO_OFF]
		bmc: {url: "$2", username: operator, password: hunter2}
		allocation:
		  id: first
		  hostname: one
		  image: debian-12
		  filesystemlayout: default
		  requested_traits: [CUSTOM_BM_CONFIG_BIOS_TURBO_OFF]
	END
}

bios_serve() {
	bios_port=$(free SOCK_STREAM)
	bios_url=http://127.0.0.1:$bios_port
	"$program" serve "$1" --listen "127.0.0.1:$bios_port" >>"$run/bios/server.log" 2>&1 &
	bios_server=$!
	pids+=($bios_server)
	for round in $(seq 100); do
		curl --silent --output /dev/null "$bios_url/boot/vmlinuz" && return 0
		sleep 0.2
	done
	cat "$run/bios/server.log"
	die "the server does not answer"
}

# bios_boot: simulates the ramdisk, which boots over PXE and registers.
bios_boot() {
	local code
	bios_token=$(curl --silent --fail "$bios_url/boot.ipxe?uuid=$bios_machine" | grep -o 'drophammer.token=[^ ]*' | cut -d= -f2)
	for round in $(seq 60); do
		code=$(curl --silent --output "$run/bios/answer" --write-out '%{http_code}' --local-port 600-1000 --header "Authorization: Bearer $bios_token" \
			--json "{\"uuid\": \"$bios_machine\", \"hardware\": {\"memory\": 1, \"cpu_cores\": 2, \"disks\": [], \"nics\": []}, \"bios\": {\"vendor\": \"\", \"version\": \"\", \"date\": \"\"}}" \
			"$bios_url/v1/machine/register")
		[ "$code" != 200 ] || return 0
		sleep 1
	done
	cat "$run/bios/answer"
	die "the boot cannot register: $code"
}

# bios_asks: prints the id of the allocation that the machine receives now, or null.
bios_asks() {
	curl --silent --header "Authorization: Bearer ${1:-$bios_token}" "$bios_url/v1/machine/$bios_machine" | jq -r .allocation.allocationuuid
}

# bios_waits RESTARTS: waits, as the machine does for its installation, until the emulator has restarted the machine
# RESTARTS times.
bios_waits() {
	for round in $(seq 150); do
		same "allocation before restart $1" "$(bios_asks)" null
		passed=$((passed - 1))
		[ "$(bios_restarts)" -lt "$1" ] || break
		sleep 0.4
	done
	same "number of restarts" "$(bios_restarts)" "$1"
}

bios_check() {
	say "BIOS settings: drophammer serve with sushy-emulator $sushy_version, $(dpkg-query -W -f '${Package} ${Version}' python3-libvirt), test:///default"
	bios_emulator
	bios_directory "$run/site" "$bios_redfish"
	same "serve --check" "$("$program" serve "$run/site" --check | grep -c 'is valid')" 1

	# A machine whose controller is addressed over IPMI, and a service without a Bios resource: only libvirt's driver has
	# this resource, not the fake driver.
	bios_directory "$run/site-ipmi" ipmi://127.0.0.1
	refused_check "$run/site-ipmi" "this step requires Redfish, but the management controller of the machine is addressed over IPMI"
	bios_directory "$run/site-fake" "$redfish/redfish/v1/Systems/$machine"
	sed -i "s/$bios_machine/$machine/" "$run/site-fake/machines/one.yaml"
	refused_check "$run/site-fake" "the Redfish service offers no Bios resource for this machine"
	bios_directory "$run/site-value" "$bios_redfish"
	sed -i 's/value: Disabled/value: disabled/' "$run/site-value/deploy-templates/bios-turbo-off.yaml"
	refused_check "$run/site-value" "ProcTurboMode: the value must be one of Enabled, Disabled"

	curl --silent --insecure --user operator:hunter2 --request PATCH --json '{"Attributes": {"EmbeddedSata": "Off"}}' \
		"$bios_redfish/redfish/v1/Systems/$bios_machine/BIOS/Settings"
	same "before" "$(bios_attribute EmbeddedSata) $(bios_attribute ProcTurboMode)" "Off Enabled"
	bios_serve "$run/site"
	bios_boot
	bios_waits 1
	# The server is killed while the machine boots. After its restart it must continue from its records, without repeating
	# a request.
	kill -9 $bios_server && wait $bios_server 2>/dev/null || true
	bios_serve "$run/site"
	local restarted=$bios_token
	bios_boot
	same "the boot before the restart" "$(bios_asks "$restarted")" null
	bios_waits 2
	same "factory reset" "$(bios_attribute EmbeddedSata)" Raid
	local applied=$bios_token
	bios_boot
	for round in $(seq 100); do
		[ "$(bios_asks)" != first ] || break
		sleep 0.4
	done
	same "after the second restart" "$(bios_asks) $(bios_asks "$applied") $(bios_restarts)" "first null 2"
	same "value in force" "$(bios_attribute ProcTurboMode)" Disabled
	same "factory resets" "$(grep -c 'POST .*Bios.ResetBios' "$run/bios/log")" 1
	same "passwords in the log" "$(grep -c hunter "$run/bios/server.log" || true)" 0
	say "requests that changed something"
	sed 's/\x1b\[[0-9;]*m//g' "$run/bios/log" | grep -oE '"(PATCH|POST) [^ ]* HTTP/1.1" [0-9]*'
	say "output of the server"
	grep -E 'BIOS|bios|Redfish|management' "$run/bios/server.log"
}

# refused_check DIR WORDS: `serve --check` must report the problem.
refused_check() {
	local said code=0
	said=$("$program" serve "$1" --check 2>&1) || code=$?
	same "serve --check of $1" "$code" 2
	case $said in *hunter*) die "the output contains the password: $said" ;; *"$2"*) passed=$((passed + 1)) ;; *) die "no '$2' in: $said" ;; esac
}
