"""What every test may use: the requirements that it shows, and the servers that it asks for."""

pytest_plugins = ["tests.shows", "tests.servers"]
