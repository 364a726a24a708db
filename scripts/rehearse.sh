#!/usr/bin/env bash
# Rehearse the first minutes of a newcomer: `make run` and `make test` of the committed tree, on a
# bare Debian 12 that has git, make and its own Python, and nothing else.
#
#     scripts/rehearse.sh [--only run|test] [--cache DIRECTORY]
#
#     --only      one of the two commands; both without it, `make run` first
#     --cache     keep the bare Debian there (or REHEARSE_CACHE), so that the next run is quick
#     ARGS=...    goes to `make test`, as in ARGS="-x tests/unit"
#
# Needs root. The Debian is a directory below TMPDIR and `chroot` makes it the root. Its mounts and
# its processes are in namespaces of their own and vanish with them, however the script ends; then
# the directory is removed. Packages come from where this machine has them: its apt sources, pip
# configuration, proxies and certificates are copied, and directories of packages are mounted.
set -euo pipefail

SUITE=bookworm
BARE=ca-certificates,git,make,python3
PIP_FILES=(/etc/pip.conf /etc/xdg/pip/pip.conf
    ~/.pip/pip.conf "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf")
STEP_S=0.2
READY_WITHIN_S=1800 # a guess: far above the 79 s of two idle cores, packages included
STOP_WITHIN_S=60    # above the 30 s for which `ulak up` drains

say() {
    echo "rehearse: $*"
}

fail() {
    echo "rehearse: $*" >&2
    exit 1
}

is_this_suite() {
    grep -q "^VERSION_CODENAME=$SUITE\$" /etc/os-release 2>/dev/null
}

# Variables of the environment that say where packages are, as NAME=VALUE.
passed_on() {
    local pip='INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|TRUSTED_HOST|CERT|CLIENT_CERT'
    pip+='|CONFIG_FILE|PROXY|DEFAULT_TIMEOUT|RETRIES'
    env | grep -E "^(PIP_($pip)|(https?|ftp|all|no)_proxy|(HTTPS?|FTP|ALL|NO)_PROXY)=" || true
}

# Files and directories that pip's settings name, by a path or by a file: address.
pip_places() {
    {
        passed_on | grep '^PIP_' || true
        cat "${PIP_FILES[@]}" "${PIP_CONFIG_FILE:-/dev/null}" 2>/dev/null || true
    } | tr -s " \t=,\"'" '\n' | sed -n 's#^file://##; \#^/.#p' | sort -u
}

# --- the bare Debian -------------------------------------------------------------------------

make_bare() {
    local tar="${CACHE:+$CACHE/$SUITE-$(dpkg --print-architecture).tar}"
    mkdir "$ROOT"
    if [ -n "$tar" ] && [ -f "$tar" ]; then
        say "a bare Debian from $tar"
        tar -C "$ROOT" --numeric-owner -xf "$tar"
        return
    fi
    say "making a bare Debian ($SUITE: $BARE)"
    bootstrap
    if [ -n "$tar" ]; then
        mkdir -p "$CACHE"
        tar -C "$ROOT" --one-file-system --numeric-owner -cf "$tar.part" .
        mv "$tar.part" "$tar"
    fi
}

# From the first source of this machine that has the suite, else from where debootstrap looks.
bootstrap() {
    local mirror mirrors
    mapfile -t mirrors < <(apt-get --print-uris update 2>/dev/null \
        | sed -n "s#^'\([a-z]*:.*\)/dists/$SUITE/InRelease'.*#\1#p")
    for mirror in "${mirrors[@]}" ""; do
        # shellcheck disable=SC2086 - no mirror is no argument
        if http_proxy=$(proxy) debootstrap --variant=minbase --include="$BARE" \
            "$SUITE" "$ROOT" $mirror >"$SCRATCH/debootstrap.log" 2>&1; then
            rm -f "$ROOT"/var/cache/apt/archives/*.deb
            return
        fi
        rm -rf --one-file-system "$ROOT"
        mkdir "$ROOT"
    done
    tail -n 20 "$SCRATCH/debootstrap.log" >&2
    fail "debootstrap could not make a Debian; its last lines are above"
}

proxy() {
    local value=
    eval "$(apt-config shell value Acquire::http::Proxy)"
    echo "${value:-${http_proxy:-}}"
}

# --- what this machine lends it ----------------------------------------------------------------

lend() {
    local file place
    for file in /etc/resolv.conf /etc/hosts; do
        [ ! -e "$file" ] || cp -L --remove-destination "$file" "$ROOT$file"
    done
    cp -R /etc/apt/apt.conf* /etc/apt/auth.conf* "$ROOT/etc/apt/" 2>/dev/null || true
    if is_this_suite; then
        rm -f "$ROOT/etc/apt/sources.list"
        cp -RL /etc/apt/. "$ROOT/etc/apt/" || true # a link that leads nowhere is no reason to stop
        cp -RLn /usr/share/keyrings/. "$ROOT/usr/share/keyrings/" || true
    fi
    cp -RL /usr/local/share/ca-certificates/. "$ROOT/usr/local/share/ca-certificates/" \
        2>/dev/null || true
    cp -L /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/" 2>/dev/null || true
    for file in "${PIP_FILES[@]}"; do
        [ -f "$file" ] || continue
        case "$file" in
            /etc/*) install -D -m 644 "$file" "$ROOT$file" ;;
            */.pip/*) install -D -m 644 "$file" "$ROOT/root/.pip/pip.conf" ;;
            *) install -D -m 644 "$file" "$ROOT/root/.config/pip/pip.conf" ;;
        esac
    done
    while read -r place; do
        lend_place "$place"
    done < <(pip_places)
}

lend_place() {
    local place="${1%/}"
    if [ -f "$place" ]; then
        [ -e "$ROOT$place" ] || install -D -m 644 "$place" "$ROOT$place"
        return
    fi
    # The pages of an index point beside it, to the folder of its files.
    [ "$(basename "$place")" != simple ] || place=$(dirname "$place")
    case "$place" in
        / | /bin | /dev | /etc | /lib* | /proc | /root | /sbin | /sys | /tmp | /usr | /var)
            say "$place is not lent, though pip's settings name it" >&2
            return
            ;;
    esac
    if [ -d "$place" ] && ! mountpoint -q "$ROOT$place"; then
        mkdir -p "$ROOT$place"
        mount --bind "$place" "$ROOT$place"
        mount -o remount,bind,ro "$ROOT$place"
    fi
}

mount_system() {
    local device
    mount -t proc -o nosuid,nodev,noexec proc "$ROOT/proc"
    mount -t tmpfs -o mode=755,nosuid dev "$ROOT/dev"
    for device in null zero full random urandom tty; do
        touch "$ROOT/dev/$device"
        mount --bind "/dev/$device" "$ROOT/dev/$device"
    done
    mkdir "$ROOT/dev/pts" "$ROOT/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,nosuid,noexec devpts "$ROOT/dev/pts"
    mount -t tmpfs -o mode=1777,nosuid,nodev shm "$ROOT/dev/shm"
    ln -s pts/ptmx "$ROOT/dev/ptmx"
    ln -s /proc/self/fd "$ROOT/dev/fd"
    ln -s /proc/self/fd/0 "$ROOT/dev/stdin"
    ln -s /proc/self/fd/1 "$ROOT/dev/stdout"
    ln -s /proc/self/fd/2 "$ROOT/dev/stderr"
}

clone() {
    # Root does not own every checkout, and git reads only its owner's unless this is said.
    printf '[safe]\n\tdirectory = *\n' >"$SCRATCH/gitconfig"
    local -x GIT_CONFIG_GLOBAL="$SCRATCH/gitconfig"
    if [ -n "$(git status --porcelain)" ]; then
        say "what is not committed is left out"
    fi
    git clone --quiet --no-hardlinks . "$ROOT/ulak"
    say "the tree of $(git -C "$ROOT/ulak" log -1 --format='%h (%s)')"
}

# --- the two commands ------------------------------------------------------------------------

inside() {
    local environment
    mapfile -t environment < <(passed_on)
    exec setsid chroot "$ROOT" env -i HOME=/root "${environment[@]}" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@" </dev/null
}

rehearse_run() {
    local port pid start status=0
    port=$(inside python3 -c 'import socket
print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
    say "make run"
    start=$SECONDS
    inside ULAK_PORT="$port" make -C /ulak --no-print-directory run &
    pid=$!
    until is_ready "$port"; do
        if ! kill -0 "$pid" 2>/dev/null; then
            wait "$pid" || status=$?
            fail "make run: it ended with status $status before it was ready"
        fi
        [ $((SECONDS - start)) -lt $READY_WITHIN_S ] \
            || give_up "$pid" "it was not ready within $READY_WITHIN_S s"
        sleep $STEP_S
    done
    say "make run: ready after $((SECONDS - start)) s"
    start=$SECONDS
    kill -TERM "$pid"
    wait "$pid" || status=$?
    while is_open "$port"; do
        [ $((SECONDS - start)) -lt $STOP_WITHIN_S ] \
            || give_up "$pid" "its port was still open $STOP_WITHIN_S s after SIGTERM"
        sleep $STEP_S
    done
    say "make run: ended $((SECONDS - start)) s after SIGTERM, status $status"
}

give_up() {
    kill -KILL -- "-$1" || true # `inside` made a group of it
    fail "make run: $2"
}

is_open() {
    (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

is_ready() {
    local status=
    is_open "$1" || return 1
    {
        printf 'GET /health/ready HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n' >&3
        read -r -t 5 _ status _ <&3 || true
    } 3<>"/dev/tcp/127.0.0.1/$1"
    [ "$status" = 200 ]
}

rehearse_test() {
    local start=$SECONDS status=0 counts
    say "make test ARGS=\"${ARGS:-}\""
    inside make -C /ulak --no-print-directory test ARGS="${ARGS:-}" 2>&1 \
        | tee "$SCRATCH/test.log" || status=$?
    counts=$(sed -nE 's/^=+ (.*) in [0-9.]+s.*=$/\1/p' "$SCRATCH/test.log" | tail -n 1)
    say "make test: ${counts:-pytest did not come to its end};" \
        "$(((SECONDS - start + 30) / 60)) min, status $status"
    return "$status"
}

# --- the namespaces ------------------------------------------------------------------------------

# Runs as the first process of its namespaces: when it ends, the kernel ends all the others and
# undoes the mounts.
rehearse() {
    local failed=0
    make_bare
    mount_system
    lend
    say "$(inside python3 --version), $(inside git --version), $(inside make --version | head -n 1)"
    clone
    # Apart and waited for, so that the second is rehearsed when the first has failed.
    if [ "$ONLY" != test ]; then
        rehearse_run &
        wait $! || failed=1
    fi
    if [ "$ONLY" != run ]; then
        rehearse_test &
        wait $! || failed=1
    fi
    return $failed
}

# The directory is removed from outside, where none of its mounts was ever seen.
remove() {
    trap '' INT TERM HUP
    [ -z "$CHILD" ] || kill -KILL "$CHILD" || true
    # What runs in there has been sent SIGKILL; it may write until it is gone.
    for _ in {1..50}; do
        rm -rf --one-file-system "$SCRATCH" 2>/dev/null && return
        sleep $STEP_S
    done
    say "could not remove $SCRATCH" >&2
}

main() {
    local status=0
    [ "$(id -u)" -eq 0 ] || fail "this needs root, for debootstrap, mount and chroot; try sudo"
    if ! command -v debootstrap >/dev/null; then
        say "installing debootstrap"
        { apt-get update -q && apt_install debootstrap debian-archive-keyring; } >/dev/null \
            || fail "there is no debootstrap and it could not be installed"
    fi
    CHILD=
    SCRATCH=$(mktemp -d -t rehearse.XXXXXX)
    trap remove EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    export SCRATCH ONLY CACHE
    # Each ends with the one before it, so that SIGKILL leaves nothing running either.
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --propagation private \
        bash scripts/rehearse.sh --in-namespaces &
    CHILD=$!
    wait "$CHILD" || status=$?
    CHILD=
    exit "$status"
}

repository=$(realpath "$(dirname "$0")/..")
if [ "${1:-}" = --in-namespaces ]; then
    ROOT=$SCRATCH/root
    rehearse
    exit
fi
ONLY=
CACHE=${REHEARSE_CACHE:-}
while [ $# -gt 0 ]; do
    case "$1=${2:-}" in
        --only=run | --only=test) ONLY=$2 ;;
        --cache=?*) CACHE=$2 ;;
        *) fail "not understood: $*; there are --only run, --only test and --cache DIRECTORY" ;;
    esac
    shift 2
done
[ -z "$CACHE" ] || CACHE=$(realpath -m "$CACHE")
case "$CACHE/" in
    "$repository"/*) fail "the cache may not be in the repository: $CACHE" ;;
esac
cd "$repository"
. scripts/packages.sh
main
