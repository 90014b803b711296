"""The `turbospec` command.

A user's mistake is one line on stderr and exit code 2, without a traceback (`turbospec.cli.boundary`). Only the
subcommand that is run is imported, so that `--help` is quick and `turbospec policy` needs no engine.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]

QUIET_LOADING = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Keeps the progress bars and messages of model loaders off the terminal; the user's environment overrides it."""


def main() -> None:
    """Run the command of `sys.argv` and exit with its status."""
    os.environ.update(QUIET_LOADING | os.environ)
    try:  # most of the time of a short command passes in these imports
        from turbospec.cli.application import run
        from turbospec.cli.boundary import guarded
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)  # as `guarded` does
    sys.exit(guarded(lambda: run(sys.argv[1:] or ["--help"])))
