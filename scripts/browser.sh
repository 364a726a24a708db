#!/usr/bin/env bash
# Make sure that this machine has a Chromium to print with, what drives it, and fonts that cover
# Latin, Turkish and Cyrillic. Says nothing and takes no time when they are there.
#
# Debian's chromium-headless-shell is preferred: it is small, it is kept up to date with the
# machine, and it is there for every architecture. Where no such package is (Ubuntu), Playwright
# downloads its own. Packages are installed if we may: as root, or by sudo without a password.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

SHELL_PACKAGE=chromium-headless-shell

has_browser() {
    [ -n "${PDF_CHROMIUM:-}" ] && [ -x "$PDF_CHROMIUM" ] && return 0
    [ -x /usr/lib/chromium/chromium-headless-shell ] || [ -x /usr/lib/chromium/chromium ] \
        || compgen -G "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}/chromium*" >/dev/null
}

# Debian 12's Liberation lacks the signs of the lira and the rouble; DejaVu has them.
has_fonts() {
    compgen -G "/usr/share/fonts/truetype/liberation*/LiberationSans-Regular.ttf" >/dev/null \
        && [ -f /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ]
}

# Playwright brings a Node.js of its own, which on some machines needs a library of the compiler.
has_driver() {
    local node
    node=$(compgen -G ".venv/lib/python*/site-packages/playwright/driver/node") || return 0
    "$node" --version >/dev/null 2>&1
}

has_package() {
    apt-cache show "$1" >/dev/null 2>&1
}

if has_browser && has_fonts && has_driver; then
    exit 0
fi

echo "browser: PDFs are printed by Chromium; installing it and its fonts"
as_root apt-get update -q || true
has_fonts || apt_install fonts-liberation fonts-dejavu-core || true
has_driver || apt_install libatomic1 || true
if ! has_browser; then
    if has_package "$SHELL_PACKAGE"; then
        # With the helper the browser keeps its sandbox where user namespaces are not allowed.
        apt_install "$SHELL_PACKAGE" chromium-sandbox || apt_install "$SHELL_PACKAGE" || true
    else
        .venv/bin/playwright install --with-deps chromium-headless-shell || true
    fi
fi
if ! has_browser || ! has_fonts || ! has_driver; then
    echo "browser: could not install it; as root, then run this again:" >&2
    echo "    apt-get install $SHELL_PACKAGE fonts-liberation fonts-dejavu-core libatomic1" >&2
    echo "or: .venv/bin/playwright install --with-deps chromium-headless-shell" >&2
    exit 1
fi
