# Helpers of scripts/bmc and scripts/demo-lan: third-party management controllers. Sourced after scripts/lib.sh.

sushy_version=2.2.0

# need_sushy: installs sushy-tools from PyPI into $venv.
need_sushy() {
	venv=${CARGO_TARGET_DIR:-target}/bmc/venv
	mkdir -p "${venv%/*}"
	venv=$(realpath "${venv%/*}")/venv
	! "$venv/bin/python" -c "import sushy_tools" 2>/dev/null || return 0
	need python3 python3-venv
	say "installing from PyPI into $venv: sushy-tools $sushy_version"
	# Debian's Python, because Debian's libvirt module is built for it.
	/usr/bin/python3 -m venv "$venv"
	"$venv/bin/pip" install --quiet "sushy-tools==$sushy_version"
}

# sushy_operator FILE: writes the user operator with the password hunter2.
sushy_operator() {
	"$venv/bin/python" -c 'import bcrypt; print("operator:" + bcrypt.hashpw(b"hunter2", bcrypt.gensalt(4)).decode())' >"$1"
}

# ipmi_controller FOLDER PORT CHASSIS: writes the two files of ipmi_sim, for the user operator with the password hunter2. CHASSIS is the program
# that ipmi_sim runs.
ipmi_controller() {
	mkdir -p "$1/state"
	cat >"$1/lan.conf" <<-END
		name "drophammer"
		set_working_mc 0x20
		  startlan 1
		    addr 127.0.0.1 $2
		    priv_limit admin
		    allowed_auths_admin none md2 md5 straight
		    guid a123456789abcdefa123456789abcdef
		  endlan
		  chassis_control "$3 0x20"
		  user 2 true "operator" "hunter2" admin 10 none md2 md5 straight
	END
	cat >"$1/commands" <<-END
		mc_setbmc 0x20
		mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
		mc_enable 0x20
	END
}
