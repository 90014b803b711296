"""Settings for all tests, set before anything reads them.

Model loaders keep quiet, as they do under the command line. Tables have the width that they have in a file: readline
exports a size of the terminal, which the workers of pytest-xdist inherit. Each worker has one thread for tensors,
because others run beside it.
"""

from __future__ import annotations

import os

os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from turbospec.cli import QUIET_LOADING

os.environ.update(QUIET_LOADING | os.environ)
