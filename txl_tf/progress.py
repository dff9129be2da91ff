"""The progress bar of all programs."""

import os
import sys
from typing import Any

from tqdm import tqdm

QUIET = "TXL_TF_QUIET"  # the environment variable that hides the bars


class Bar(tqdm):
    """A progress bar on standard error, shown only in a terminal; for use in a `with` block."""

    def __init__(self, name: str, **options: Any):
        is_hidden = bool(os.environ.get(QUIET)) or not sys.stderr.isatty()
        super().__init__(desc=name, disable=options.pop("disable", is_hidden), **options)
