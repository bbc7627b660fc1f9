# Brings the network up: as drophammer.network= describes it, or by DHCP. Sourced by /init; /usr/lib/dhcp-event is what udhcpc calls.

# What was said before the agent begins is kept for it: a control plane shows it with what the agent says.
say() { echo "drophammer: $*" | tee -a /run/ramdisk.log; }

# Network cards: real ones (they have a device), Ethernet (type 1), with a cable.
cards() {
	local card
	for card in /sys/class/net/*; do
		[ -e "$card/device" ] && [ "$(cat "$card/type")" = 1 ] && [ ! -e "$card/wireless" ] && echo "${card##*/}"
	done | xargs
}

# A card that is down fails to read its carrier.
has_link() { [ "$(cat "/sys/class/net/$1/carrier" 2>/dev/null)" = 1 ]; }

any_link() {
	local card
	for card in $(cards); do has_link "$card" && return; done
	return 1
}

any_lease() { [ -n "$(ls /run/leases 2>/dev/null)" ]; }

# until_true SECONDS COMMAND: asks five times a second.
until_true() {
	local left=$(($1 * 5))
	until "$2"; do
		[ "$left" -gt 0 ] || return
		left=$((left - 1))
		sleep 0.2
	done
}

# One try: every card up, then DHCP on all that have a link, at the same time. Succeeds with the first lease.
connect() {
	local card
	mkdir -p /run/leases
	for card in $(cards); do ip link set "$card" up; done
	# Copper negotiates for about three seconds, some switches and 10G cards take longer.
	until_true 10 any_link || return
	for card in $(cards); do
		has_link "$card" || continue
		# Still at it from the last try; it removes the file when it gives up.
		[ ! -e "/run/dhcp.$card" ] || continue
		lease "$card"
	done
	until_true 12 any_lease
}

# After a lease it stays and renews: a machine may wait for its allocation longer than a lease lasts.
lease() { udhcpc -n -i "$1" -s /usr/lib/dhcp-event -p "/run/dhcp.$1" -t 5 -T 2 -S </dev/null >/dev/null 2>&1 & }

is_described() { [ -n "$(argument drophammer.network)" ]; }

# carrier_of DEVICE: until it has a link, or its time is over.
carrier_of() {
	wanted=$1
	until_true 15 wanted_has_link || { say "$1: no link" && return 1; }
}

wanted_has_link() { has_link "$wanted"; }

# lease_of DEVICE: asks a DHCP server, and waits for what it says.
lease_of() {
	wanted=$1
	lease "$1"
	until_true 12 wanted_has_lease || { say "$1: no DHCP server answers" && return 1; }
}

wanted_has_lease() { [ -e "/run/leases/$wanted" ]; }

# One try at what drophammer.network= describes. The agent makes a script of it, which begins from nothing each time: what an earlier
# try has made goes first.
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
	sh -euc '. /usr/lib/ramdisk.sh; . /usr/lib/network.sh; . /run/uplink.sh' && say "the network is up as drophammer.network= describes it"
}

explain_network() {
	local card device
	for card in $(cards); do
		if has_link "$card"; then say "$card: link is up, but no DHCP server answers"; else say "$card: no link"; fi
	done
	for device in /sys/bus/pci/devices/*; do
		case $(cat "$device/class") in
		0x02*) [ -e "$device/driver" ] || say "network card $(cat "$device/vendor" "$device/device" | xargs) at ${device##*/} has no driver in this ramdisk" ;;
		esac
	done
	[ -n "$(cards)" ] || say "no network card is usable"
}

# Without a description by DHCP.
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
