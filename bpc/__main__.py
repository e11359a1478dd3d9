"""`python -m bpc` is the command `bpc`."""

import sys

from bpc.cli.main import main

sys.exit(main())
