"""`python -m headrace` is the command line."""

import sys

from headrace.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
