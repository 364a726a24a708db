#!/usr/bin/env bash
# Make sure that this machine has the programs of the servers that tests start for themselves:
# PostgreSQL, pgbouncer, Redis and nginx. Says nothing and takes no time when they are there.
#
# What is missing is installed from Debian's or Ubuntu's packages if we may: as root, or by sudo
# without a password. Only the programs are wanted, so no cluster is made and no service started.
set -euo pipefail
. "$(dirname "$0")/packages.sh"

DEFAULTS=/etc/postgresql-common/createcluster.conf

has_postgres() {
    local place
    for place in "$(dirname "$(command -v postgres || echo /none/postgres)")" /usr/lib/postgresql/*/bin; do
        if [ -x "$place/postgres" ] && [ -x "$place/initdb" ]; then
            return 0
        fi
    done
    return 1
}

has_pgbouncer() {
    PATH="$PATH:/usr/sbin" command -v pgbouncer >/dev/null
}

has_redis() {
    command -v redis-server >/dev/null
}

has_nginx() {
    PATH="$PATH:/usr/sbin" command -v nginx >/dev/null
}

missing() {
    has_postgres || echo postgresql
    has_pgbouncer || echo pgbouncer
    has_redis || echo redis-server
    has_nginx || echo nginx-light
    # What pages of the docs have their readers type.
    command -v curl >/dev/null || echo curl
    command -v openssl >/dev/null || echo openssl
}

# Installing a PostgreSQL makes a cluster "main", unless the defaults of postgresql-common say no.
forbid_main_cluster() {
    as_root cp -p "$DEFAULTS" "$DEFAULTS.before-ulak"
    undo+=("mv $DEFAULTS.before-ulak $DEFAULTS")
    echo "create_main_cluster = false" | as_root tee -a "$DEFAULTS" >/dev/null
}

# Called where a failure is answered, so `set -e` does not hold in here.
install() {
    undo=()
    trap restore EXIT
    as_root apt-get update -q \
        && forbid_services \
        && apt_install postgresql-common \
        && forbid_main_cluster \
        && apt_install "$@"
}

mapfile -t packages < <(missing)
if [ "${#packages[@]}" -eq 0 ]; then
    exit 0
fi

echo "servers: the tests start servers of their own; installing ${packages[*]}"
new=()
has_pgbouncer || new+=(pgbouncer.service)
has_redis || new+=(redis-server.service)
has_nginx || new+=(nginx.service)
if ! install "${packages[@]}" || [ -n "$(missing)" ]; then
    echo "servers: could not install ${packages[*]}; install them as root, then run this again:" >&2
    echo "    apt-get install ${packages[*]}" >&2
    exit 1
fi
disable_services "${new[@]}"
