# A root shell for whoever stands at one of the consoles. Sourced by /init.
# There is no password: who has the console has the machine, and could boot it with init=/bin/sh as well.

# Names of the terminals that the kernel writes its messages to.
consoles() {
	# tty0 stands for the terminal in front; a shell needs a real one.
	sed 's/\btty0\b/tty1/' /sys/class/tty/console/active
}

# A shell in which nothing was typed and nothing printed for an hour counts as left: noise on a serial line, or a person
# who forgot to log out, must not hold the machine for ever.
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

# offer_shell SECONDS WHAT: says WHAT happens in SECONDS and offers a shell meanwhile. Returns when they are over;
# as long as somebody works in a shell they do not pass, and begin anew afterwards.
offer_shell() {
	local left=$1 console prompts=
	for console in $(consoles); do
		# In a session of its own, the shell has the terminal to itself: ^C and job control work.
		setsid sh -c '. /usr/lib/console.sh; prompt "$@"' sh "$console" "$@" &
		prompts="$prompts $!"
	done
	while [ "$left" -gt 0 ]; do
		sleep 1
		if somebody_works; then left=$1; else left=$((left - 1)); fi
	done
	# A shell goes with its prompt: the kernel hangs up a terminal whose session leader ends.
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
		# A console that is named on the command line but not built in fails to read.
		read -r _ || return
		: >"/run/shells/$console"
		echo "drophammer: the wait stands still until you leave this shell with exit; reboot -f reboots at once."
		PS1='drophammer# ' sh -i
		rm "/run/shells/$console"
	done
}
