"""The rules of ulak: pure functions over plain records, no I/O, the standard library only."""
