"""Make the service keys of publishing, in the database of DATABASE_URL, and print each once.

    python scripts/generate_api_keys.py
    python scripts/generate_api_keys.py --least-privilege

The same as `ulak publishing make-keys`. Each run makes further keys; the others stay good.
"""

import sys

from ulak.cli import main

if __name__ == "__main__":
    main(["publishing", "make-keys", *sys.argv[1:]])
