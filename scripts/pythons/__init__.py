"""`make test-pythons`: the tests on every Python, the wheel with every extra, the lock."""
