"""requirements.lock holds versions and hashes: it installs from whatever index a user has."""

import re
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from scripts.pythons.interpreters import PROMISED
from scripts.pythons.lock import ARCHITECTURES, list_unlocked, read_pins
from scripts.pythons.lock import HASH as ANY_HASH

LOCK = Path(__file__).parents[2] / "requirements.lock"

# name==version, perhaps a marker, then hashes on lines of their own. Whatever does not look
# like one of these two - an index, a link, a path, a direct reference - has no place here.
PIN = re.compile(r"[a-z0-9][a-z0-9-]*==[\w.+!]+( ; [\w .'\"<>=!()]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def test_lock_file_holds_pins_and_hashes_only() -> None:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    strange = [line for line in lines if not (PIN.fullmatch(line) or HASH.fullmatch(line))]
    assert lines
    assert strange == []


def test_lock_file_names_no_address_and_no_path() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert re.findall(r"://|/|--(?!hash=)\S+", text) == []


def read_tags(distribution: Distribution) -> set[str]:
    """Return the tags of the wheel that a distribution was installed from."""
    return set(re.findall(r"^Tag: (\S+)", distribution.read_text("WHEEL") or "", re.M))


def count_files_needed(tags: set[str]) -> int:
    """Return how many files a package needs at least, to be had on every platform."""
    if all(tag.endswith("-any") for tag in tags):
        return 1
    # An extension for one version of Python: its tag names the version as the ABI too.
    if any(re.fullmatch(r"cp\d+-cp\d+", tag.rpartition("-")[0]) for tag in tags):
        return len(ARCHITECTURES) * len(PROMISED)
    return len(ARCHITECTURES)


@pytest.mark.parametrize(
    ("tag", "needed"),
    [
        ("py3-none-any", 1),
        ("py3-none-manylinux1_x86_64", 2),
        ("cp310-abi3-manylinux_2_28_x86_64", 2),
        ("cp311-cp311-manylinux_2_17_x86_64", 6),
    ],
)
def test_a_compiled_package_needs_a_file_per_platform(tag: str, needed: int) -> None:
    assert count_files_needed({tag}) == needed


def test_lock_file_has_hashes_for_every_architecture_and_python() -> None:
    blocks = re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8"))
    hashes = {block.partition("==")[0]: len(ANY_HASH.findall(block)) for block in blocks}
    compiled, lacking = 0, []
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.name).lower()
        needed = count_files_needed(read_tags(distribution))
        compiled += name in hashes and needed > 1
        if name in hashes and hashes[name] < needed:
            lacking.append(f"{name}: {hashes[name]} hashes, at least {needed} are needed")
    assert compiled > 10, "the environment of requirements.lock has more compiled packages"
    assert lacking == []


def test_pins_are_the_versions_and_markers_of_the_lock() -> None:
    digest = "0" * 64
    lock = (
        f"brotli==1.2.1 ; platform_python_implementation == 'CPython' \\\n"
        f"    --hash=sha256:{digest} \\\n    --hash=sha256:{digest}\n"
        f"ulak-x==2 \\\n    --hash=sha256:{digest}\n"
    )
    pins = "brotli==1.2.1 ; platform_python_implementation == 'CPython'\nulak-x==2\n"
    assert read_pins(lock) == pins
    assert len(read_pins(LOCK.read_text(encoding="utf-8")).splitlines()) > 100


def test_a_file_whose_hash_is_not_in_the_lock_is_named() -> None:
    def install(name: str, digest: str) -> dict[str, object]:
        hashes = {"sha256": digest}
        return {"download_info": {"url": f"any/{name}", "archive_info": {"hashes": hashes}}}

    report = {"install": [install("a.whl", "a" * 64), install("b.whl", "b" * 64)]}
    assert list_unlocked(report, f"    --hash=sha256:{'a' * 64}") == ["b.whl"]
