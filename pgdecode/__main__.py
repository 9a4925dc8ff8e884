"""`python -m pgdecode`."""

import sys

from pgdecode.cli import main

sys.exit(main())
