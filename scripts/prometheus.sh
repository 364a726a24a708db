#!/usr/bin/env bash
# Make sure that this machine has the programs of Prometheus, to which the quantiles and rates of
# ulak are compared. Says nothing and takes no time when they are there.
#
# They are installed from Debian's or Ubuntu's packages if we may: as root, or by sudo without a
# password. Only the programs are wanted, so no service is started.
set -euo pipefail
. "$(dirname "$0")/packages.sh"

has_prometheus() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null
}

install() {
    undo=()
    trap restore EXIT
    as_root apt-get update -q && forbid_services && apt_install prometheus
}

if has_prometheus; then
    exit 0
fi

echo "prometheus: installing prometheus"
if ! install || ! has_prometheus; then
    echo "prometheus: could not install it; as root, then run this again:" >&2
    echo "    apt-get install prometheus" >&2
    exit 1
fi
disable_services prometheus.service
