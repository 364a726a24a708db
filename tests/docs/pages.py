"""How a page of the docs becomes a program.

The Python blocks of a page, from top to bottom, are one program, run in an empty directory.
Beside what the reader sees a page may hold

    <!-- python             code that is run where it stands, and not shown
    -->
    ```output               what the program prints; all of these together, exactly
    <!-- diagram: NAME -->  the next ```mermaid block is what NAME.mermaid() draws
    ```python-not-run       a sketch; for what belongs to another file or program
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# Written with the code or taken over whole; their sketches are not programs.
NOT_OURS = {DOCS / "design.md", DOCS / "style.md"}

BLOCK = re.compile(r"^```(\w[\w-]*)\n(.*?)^```$|^<!-- python\n(.*?)^-->$", re.S | re.M)
DIAGRAM = re.compile(r"^<!-- diagram: (\w+) -->\n\n?```mermaid\n(.*?)^```$", re.S | re.M)

DRAW = """
import json as _json, pathlib as _pathlib
_pathlib.Path("diagrams.json").write_text(_json.dumps([{names}]))
"""


@dataclass(frozen=True)
class Ran:
    """What became of a page's program."""

    printed: str
    errors: str
    diagrams: list[str]


def pages() -> list[Path]:
    """Every page of the project that is written for its users."""
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [p for p in found if p not in NOT_OURS and DOCS / "spec" not in p.parents]


def program_of(page: Path) -> str:
    """The program that a page's blocks make together; '' when it has none."""
    blocks = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return "\n\n".join(b[3] or b[2] for b in blocks if b[3] is not None or b[1] == "python")


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The Python blocks that a reader sees, each with what the page says that it prints."""
    found: list[tuple[str, str]] = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block[1] == "python":
            found.append((block[2], ""))
        elif block[1] == "output" and found:
            code, said = found.pop()
            found.append((code, said + block[2]))
    return found


def output_of(page: Path) -> str | None:
    """What the page says that its program prints, or None when it says nothing."""
    blocks = BLOCK.finditer(page.read_text(encoding="utf-8"))
    said = [b[2] for b in blocks if b[1] == "output"]
    return "".join(said) if said else None


def diagrams_of(page: Path) -> list[tuple[str, str]]:
    """Every diagram of a page: the flow's variable, and what is drawn."""
    return DIAGRAM.findall(page.read_text(encoding="utf-8"))


def run(page: Path, folder: Path) -> Ran:
    """Run a page's program in a folder of its own."""
    drawn = ", ".join(f"{name}.mermaid()" for name, _ in diagrams_of(page))
    main = folder / "page.py"
    main.write_text(program_of(page) + DRAW.format(names=drawn), encoding="utf-8")
    child = subprocess.run(
        [sys.executable, "-W", "error", main.name],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    kept = folder / "diagrams.json"
    diagrams = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else []
    return Ran(child.stdout, child.stderr, diagrams)
