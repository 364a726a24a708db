"""`python -m ulak`: the command line."""

from ulak.cli import main

main()
