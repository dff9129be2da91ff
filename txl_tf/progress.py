"""The progress bar of all programs."""

import os
import sys
from typing import Any

from tqdm import tqdm

QUIET = "TXL_TF_QUIET"  # if this is in the environment, there are no bars


class Bar(tqdm):
    """A progress bar on the standard error if that is a terminal, for a `with` block."""

    def __init__(self, name: str, **options: Any):
        is_hidden = bool(os.environ.get(QUIET)) or not sys.stderr.isatty()
        super().__init__(desc=name, disable=options.pop("disable", is_hidden), **options)
