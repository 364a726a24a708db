#!/usr/bin/env bash
# Make .venv hold exactly the versions of requirements.lock, and ulak itself, editable.
#
# Needs Python 3.11 or newer and nothing else: where Debian or Ubuntu left the venv module
# out of Python, its package is installed if we may. Safe to run again after a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: ulak needs Python 3.11 or newer; install one, or name it: make setup PYTHON=..." >&2
    return 1
}

install_venv_module() {
    local package as_root=()
    package="python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" -ne 0 ]; then
        as_root=(sudo -n)
    fi
    echo "setup: $1 has no venv module; installing $package"
    if ! { "${as_root[@]}" apt-get update -q \
        && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends "$package"; }; then
        echo "setup: could not install $package; install it as root, then run make setup again" >&2
        return 1
    fi
}

# Say how far pip is: one line for each step, and at a terminal the packages counted in place.
follow_pip() {
    local total=$1 count=0 first name rest
    echo "setup: downloading $total packages into .venv; with the next step about two minutes"
    while read -r first name rest; do
        case $first in
            Ignoring) total=$((total - 1)) ;;
            # "Collecting NAME==1", "Processing ./NAME-1.whl", "Requirement already satisfied: NAME==1"
            Collecting | Processing | Requirement)
                count=$((count + 1))
                [ "$first" != Requirement ] || name=${rest#satisfied: }
                name=${name%% *} name=${name##*/} name=${name%%[=-][=0-9]*}
                [ ! -t 1 ] || printf '\rsetup: %d of %d  %-40.40s' "$count" "$total" "$name"
                ;;
            Installing)
                [ ! -t 1 ] || printf '\r%-70s\r' ""
                echo "setup: installing $count packages"
                ;;
        esac
    done
}

python=$(find_python)

# ensurepip is what Debian leaves out; venv alone imports and then fails half way.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    install_venv_module "$python"
fi

# A .venv that cannot run pip is left over from a setup that was interrupted.
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear .venv
fi

pip=(.venv/bin/python -m pip --disable-pip-version-check)
PYTHONUNBUFFERED=1 "${pip[@]}" install --progress-bar off --require-hashes -r requirements.lock \
    | follow_pip "$(grep -c '^[a-zA-Z0-9].*==' requirements.lock)"
"${pip[@]}" --quiet install --no-deps --no-build-isolation -e .
echo "setup: done; '. .venv/bin/activate' puts ulak on your path"
