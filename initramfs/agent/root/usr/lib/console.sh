# Offers a root shell on the consoles. Sourced by /init.
# There is no password: access to the console is access to the machine, which could also be booted with init=/bin/sh.

# Prints the names of the terminals that the kernel writes its messages to.
consoles() {
	# tty0 is the foreground terminal; a shell requires a real one.
	sed 's/\btty0\b/tty1/' /sys/class/tty/console/active
}

# A shell without input and output for an hour counts as abandoned: noise on a serial line, or a forgotten session, must not block the
# machine forever.
somebody_works() {
	local shell now
	now=$(date +%s)
	for shell in /run/shells/*; do
		[ -e "$shell" ] || continue
		shell=/dev/${shell##*/}
		[ $((now - $(stat -c %X "$shell"))) -ge 3600 ] && [ $((now - $(stat -c %Y "$shell"))) -ge 3600 ] || return 0
	done
	return 1
}

# offer_shell SECONDS WHAT: announces that WHAT happens in SECONDS, and offers a shell meanwhile. Returns when the time is over; the timer
# is stopped while a shell is in use, and restarts afterwards.
offer_shell() {
	local left=$1 console prompts=
	for console in $(consoles); do
		# In a separate session, the shell controls the terminal, so that ^C and job control work.
		setsid sh -c '. /usr/lib/console.sh; prompt "$@"' sh "$console" "$@" &
		prompts="$prompts $!"
	done
	while [ "$left" -gt 0 ]; do
		sleep 1
		if somebody_works; then left=$1; else left=$((left - 1)); fi
	done
	# The shell ends with its prompt: the kernel hangs up a terminal whose session leader exits.
	kill $prompts 2>/dev/null
	rm -rf /run/shells
	wait $prompts 2>/dev/null
}

prompt() {
	local console=$1
	exec 2>/dev/null
	exec <>"/dev/$console" >&0 2>&0
	mkdir -p /run/shells
	while :; do
		printf '\ndrophammer: %s in %s s. Press Enter here for a root shell.\n' "$3" "$2"
		# A console that is on the command line but has no driver fails to read.
		read -r _ || return
		: >"/run/shells/$console"
		echo "drophammer: the timer is stopped until you leave this shell with exit; reboot -f reboots immediately."
		PS1='drophammer# ' sh -i
		rm "/run/shells/$console"
	done
}
