"""What keeps a process running: its children, its end, its log."""
