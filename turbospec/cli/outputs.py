"""Checks of the files that subcommands write."""

from __future__ import annotations

import os
from pathlib import Path

from turbospec.errors import UserError


def check_outputs(*paths: Path | None) -> None:
    """Check that files can be written, before the work whose results they take, and make their folders.

    Raises:
        UserError: a file cannot be written, or is given twice.
    """
    wanted = [path for path in paths if path is not None]
    if len(set(wanted)) < len(wanted):
        raise UserError(f"{wanted[0]}: given for two outputs; name another file for one")
    for path in wanted:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{path}: its folder cannot be made ({error.strerror}); name another file") from error
        # Files are written beside their final place and moved, so their folder must be writable too.
        if path.is_dir() or not all(os.access(place, os.W_OK) for place in (path.parent, path) if place.exists()):
            raise UserError(f"{path}: cannot be written; name another file")
