"""Settings for all tests: model loaders keep quiet, as they do under the command line."""

from __future__ import annotations

import os

from turbospec.cli import QUIET_LOADING

os.environ.update(QUIET_LOADING | os.environ)
