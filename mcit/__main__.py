"""`python -m mcit` is `mcit`."""

import sys

from mcit.cli import main

sys.exit(main())
