"""`python -m pgdecode`."""

import sys

from pgdecode.cli.main import main

sys.exit(main())
