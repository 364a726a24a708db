"""Where jobs are kept: one protocol, and the stores that keep it."""

import re


def without_password(url: str) -> str:
    """Write a URL for an error or a list: whoever reads it need not learn the password."""
    # Up to the last @, since a password that was not encoded may have one of its own.
    url = re.sub(r"(://[^:/@?]*):.*@", r"\1:***@", url)
    return re.sub(r"\bpassword=[^&\s]*", "password=***", url)
