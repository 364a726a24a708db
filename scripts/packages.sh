# How packages of Debian and Ubuntu are installed, if we may: as root, or by sudo without a password.
# Sourced by the other scripts.

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "$@"
}

POLICY=/usr/sbin/policy-rc.d

# Packages start what they install. This answer of policy-rc.d, "not allowed", is the way to ask
# them not to; whoever has an answer of their own keeps it. `restore` takes it back.
forbid_services() {
    [ -e "$POLICY" ] && return
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$POLICY" >/dev/null
    as_root chmod 755 "$POLICY"
    undo+=("rm -f $POLICY")
}

# Undoes, at the end of a script, what the array `undo` lists.
restore() {
    local step
    for step in "${undo[@]}"; do
        # shellcheck disable=SC2086 - each step is a command of words without spaces
        as_root $step
    done
}

# They would start with the machine from now on, which nobody asked for.
disable_services() {
    if [ "$#" -gt 0 ] && [ -d /run/systemd/system ]; then
        as_root systemctl disable --quiet "$@"
    fi
}
