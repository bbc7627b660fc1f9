# Brings up the network: as specified by drophammer.network=, or with DHCP. Sourced by /init; udhcpc calls /usr/lib/dhcp-event.

# Messages before the start of the agent are stored for it: it sends them to the control plane with its own log.
say() { echo "drophammer: $*" | tee -a /run/ramdisk.log; }

# Physical NICs (with a device) of type Ethernet (type 1) with a cable.
cards() {
	local card
	for card in /sys/class/net/*; do
		[ -e "$card/device" ] && [ "$(cat "$card/type")" = 1 ] && [ ! -e "$card/wireless" ] && echo "${card##*/}"
	done | xargs
}

# A NIC that is down fails to read its carrier.
has_link() { [ "$(cat "/sys/class/net/$1/carrier" 2>/dev/null)" = 1 ]; }

any_link() {
	local card
	for card in $(cards); do has_link "$card" && return; done
	return 1
}

any_lease() { [ -n "$(ls /run/leases 2>/dev/null)" ]; }

# until_true SECONDS COMMAND: runs the command five times a second until it succeeds.
until_true() {
	local left=$(($1 * 5))
	until "$2"; do
		[ "$left" -gt 0 ] || return
		left=$((left - 1))
		sleep 0.2
	done
}

# One attempt: brings up every NIC, then runs DHCP on all that have a link, in parallel. Succeeds with the first lease.
connect() {
	local card
	mkdir -p /run/leases
	for card in $(cards); do ip link set "$card" up; done
	# Copper takes about three seconds to negotiate, some switches and 10G NICs longer.
	until_true 10 any_link || return
	for card in $(cards); do
		has_link "$card" || continue
		# udhcpc of the previous attempt still runs; it removes this file when it exits.
		[ ! -e "/run/dhcp.$card" ] || continue
		lease "$card"
	done
	until_true 12 any_lease
}

# udhcpc keeps running and renews its lease, because a machine may wait for its allocation for longer than a lease lasts. It sends the MAC
# as client identifier, as iPXE does.
lease() { udhcpc -n -i "$1" -O mtu -O ntpsrv -O staticroutes -s /usr/lib/dhcp-event -p "/run/dhcp.$1" -t 5 -T 2 -S </dev/null >/dev/null 2>&1 & }

is_described() { [ -n "$(argument drophammer.network)" ]; }

# carrier_of DEVICE: waits until the device has a link, with a timeout.
carrier_of() {
	wanted=$1
	until_true 15 wanted_has_link || { say "$1: no link (DH-607)" && return 1; }
}

wanted_has_link() { has_link "$wanted"; }

# lease_of DEVICE: requests a DHCP lease and waits for it.
lease_of() {
	wanted=$1
	lease "$1"
	until_true 12 wanted_has_lease || { say "$1: no DHCP server answers (DH-607)" && return 1; }
}

wanted_has_lease() { [ -e "/run/leases/$wanted" ]; }

# One attempt with the configuration of drophammer.network=. The agent generates a script from it, which starts from scratch: devices of a
# previous attempt are removed first.
connect_as_described() {
	local device
	for device in /sys/class/net/*; do
		case $device in */lo | */bonding_masters) continue ;; esac
		ip addr flush dev "${device##*/}"
		[ -e "$device/device" ] || ip link del "${device##*/}" 2>/dev/null || true
	done
	rm -f /run/leases/described
	for device in $(cards); do ip link set "$device" up; done
	drophammer uplink >/run/uplink.sh || return
	sh -euc '. /usr/lib/ramdisk.sh; . /usr/lib/network.sh; . /run/uplink.sh' && say "the network is up as specified by drophammer.network="
}

explain_network() {
	local card device
	for card in $(cards); do
		if has_link "$card"; then say "$card: link is up, but no DHCP server answers (DH-607)"; else say "$card: no link (DH-607)"; fi
	done
	for device in /sys/bus/pci/devices/*; do
		case $(cat "$device/class") in
		0x02*) [ -e "$device/driver" ] || say "network card $(cat "$device/vendor" "$device/device" | xargs) at ${device##*/} has no driver in this ramdisk (DH-607)" ;;
		esac
	done
	[ -n "$(cards)" ] || say "no network card is usable (DH-607)"
}

# Configures the network as specified by drophammer.network= or, without this argument, by DHCP.
connect_somehow() { if is_described; then connect_as_described; else connect; fi; }

connect_for_sure() {
	local pause=5
	until connect_somehow; do
		is_described || explain_network
		offer_shell "$pause" "no network; the next try is"
		pause=$((pause * 2 > 60 ? 60 : pause * 2))
		load_modules
	done
}
