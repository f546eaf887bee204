"""`python -m retrain.cli`: the same as the console script `retrain`."""

import sys

from retrain.cli.main import main

sys.exit(main())
