"""A stand-in for the external optimiser of mode A: `program.py FILE.xlsx ...`, standard library
alone.

It leaves a plan for each file in the export folder: one `Part` for each piece. The file
`program.json` beside the executable says where that is and how it behaves; what it does with a file
follows from the seed, from the name of the file and from how often it was run on it. Each run is
written into a ledger, and a second one at the same time too.
"""

import fcntl
import json
import os
import random
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as Xml
from xml.sax.saxutils import quoteattr
from zipfile import ZipFile

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
WAYS = (*["whole"] * 3, *["bytes", "halves", "late"] * 2, "fails", "dies")


def main() -> int:
    """Plan every file, in one of the ways."""
    about = json.loads(Path(sys.argv[1]).with_name("program.json").read_text())
    lock = os.open(about["lock"], os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        write_down(about, "overlap", sys.argv[2:])
    files = [Path(name) for name in sys.argv[2:]]
    key = files[0].stem
    nth = sum(key in line and '"start"' in line for line in read_lines(about))
    dice = random.Random(f"{about['seed']} {key} {nth}")
    way = dice.choice(about.get("ways", WAYS))
    write_down(about, "start", [path.name for path in files], way)
    time.sleep(about.get("takes_s", 0.0))
    for path in files:
        target = Path(about["exports"], f"{path.stem}.xml")
        content = make_plan(path)
        if way == "fails":
            target.write_bytes(content[: len(content) // 2])
            print("the licence server does not answer")
            return 3
        if way == "dies":
            os.kill(os.getpid(), 9)
        if way == "late" and os.fork() == 0:
            # A part of it that goes on alone, as that of a program which only hands files over.
            os.setsid()
            os.close(lock)
            time.sleep(about["slow_s"])
            slowly(target.with_name(f"{path.stem}_{os.getpid()}.xml"), content, 8, about["slow_s"])
            os._exit(0)
        if way != "late":
            pieces = {"whole": 1, "halves": 2}.get(way, len(content))
            slowly(target, content, pieces, about["slow_s"])
    write_down(about, "end", [path.name for path in files])
    return 0


def slowly(target: Path, content: bytes, pieces: int, seconds: float) -> None:
    """Write a file piece by piece under its final name, as onto a slow share."""
    size = -(-len(content) // pieces)
    with target.open("wb") as file:
        for begin in range(0, len(content), size):
            file.write(content[begin : begin + size])
            file.flush()
            if pieces > 1:
                time.sleep(seconds / pieces)


def make_plan(path: Path) -> bytes:
    """Return a plan with every piece of an import file, on sheets that nobody has looked at."""
    pieces = [name for name, quantity in read_rows(path) for _ in range(quantity)]
    parts = "".join(f"<Part description={quoteattr(name)}/>" for name in pieces)
    solution = '<Solution name="A" algo="stand-in" best="1" mqBoards="5.88" patterns="1"/>'
    return f'<Plan version="1">{solution}<Sheet>{parts}</Sheet></Plan>'.encode()


def read_rows(path: Path) -> list[tuple[str, int]]:
    """Return description and quantity of each row."""
    with ZipFile(path) as book:
        names = book.namelist()
        shared = []
        if "xl/sharedStrings.xml" in names:
            root = Xml.fromstring(book.read("xl/sharedStrings.xml"))  # noqa: S314 - ours
            shared = ["".join(each.itertext()) for each in root.iter(f"{MAIN}si")]
        root = Xml.fromstring(book.read("xl/worksheets/sheet1.xml"))  # noqa: S314 - ours
    rows = []
    for row in list(root.iter(f"{MAIN}row"))[2:]:
        cells = {cell.get("r", "").rstrip("0123456789"): cell for cell in row}
        text = "".join(cells["F"].itertext())
        name = shared[int(text)] if cells["F"].get("t") == "s" else text
        rows.append((name, int(float("".join(cells["D"].itertext())))))
    return rows


def read_lines(about: dict) -> list[str]:
    path = Path(about["ledger"])
    return path.read_text().splitlines() if path.exists() else []


def write_down(about: dict, what: str, files: list[str], way: str = "") -> None:
    """Add a line to the ledger, whole or not at all."""
    facts = {"what": what, "pid": os.getpid(), "at": time.time(), "files": files, "way": way}
    line = json.dumps(facts)
    file = os.open(about["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{line}\n".encode())
    os.close(file)


if __name__ == "__main__":
    sys.exit(main())
