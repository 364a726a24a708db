#!/usr/bin/env bash
# Make sure that this machine has the libraries of the second engine, WeasyPrint: Pango and HarfBuzz,
# with a font to print in. Says nothing and takes no time when they are there.
#
# They are installed from Debian's or Ubuntu's packages if we may: as root, or by sudo without a
# password. WeasyPrint itself is of Python and comes with `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

PACKAGES=(libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0 fonts-liberation)

has_libraries() {
    .venv/bin/python - <<'PYTHON' 2>/dev/null
import ctypes

for name in ("pango-1.0.so.0", "pangoft2-1.0.so.0", "harfbuzz-subset.so.0"):
    ctypes.CDLL(f"lib{name}")
PYTHON
}

has_fonts() {
    compgen -G "/usr/share/fonts/truetype/liberation*/LiberationSans-Regular.ttf" >/dev/null
}

if has_libraries && has_fonts; then
    exit 0
fi

echo "weasyprint: installing ${PACKAGES[*]}"
as_root apt-get update -q || true
apt_install "${PACKAGES[@]}" || true
if ! has_libraries || ! has_fonts; then
    echo "weasyprint: could not install its libraries; as root, then run this again:" >&2
    echo "    apt-get install ${PACKAGES[*]}" >&2
    exit 1
fi
