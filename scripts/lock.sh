#!/usr/bin/env bash
# Write requirements.lock anew: every extra, both architectures, Python 3.11 and newer.
#
# Versions and hashes only. The resolver lives in a temporary environment, so that the lock
# holds what ulak is tested with and not what made the lock. Versions already locked are kept
# while they fit; UPGRADE=1 takes the newest of each.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
.venv/bin/python -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip --disable-pip-version-check --quiet install uv

"$scratch/venv/bin/uv" pip compile pyproject.toml --quiet --all-extras --universal \
    --python-version 3.11 --generate-hashes ${UPGRADE:+--upgrade} \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
    --output-file requirements.lock
