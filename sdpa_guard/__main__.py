"""``python -m sdpa_guard``."""

import sys

from .cli.main import main

sys.exit(main())
