"""`import ulak` costs the standard library and ulak, and nothing else."""

import json
import subprocess
import sys

LIST_LOADED = """
import sys
before = set(sys.modules)  # what .pth files of the environment loaded is not ulak's doing
import ulak
import json
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def modules_loaded_by_import() -> set[str]:
    """The modules that `import ulak` adds to a fresh interpreter."""
    child = subprocess.run(
        [sys.executable, "-c", LIST_LOADED], check=True, capture_output=True, text=True
    )
    return set(json.loads(child.stdout))


def test_importing_ulak_loads_no_third_party_module() -> None:
    loaded = modules_loaded_by_import()
    tops = {name.partition(".")[0] for name in loaded}
    assert "ulak" in tops
    assert tops - {"ulak"} - sys.stdlib_module_names == set()


def test_importing_ulak_does_not_load_what_is_for_tests() -> None:
    assert "ulak.testing" not in modules_loaded_by_import()
