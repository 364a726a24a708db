"""What processes measure of themselves, and what is made of it."""

__all__ = ()
