"""What every test may use: the requirements that it shows, and the servers that it asks for.

And what every test must keep: secrets.
"""

pytest_plugins = [
    "tests.shows",
    "tests.secrets_watch",
    "tests.servers",
    "tests.user_namespaces",
    "tests.tracebacks",
]
