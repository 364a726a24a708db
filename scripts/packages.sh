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
