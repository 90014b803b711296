"""Errors that the user can fix."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager


class UserError(Exception):
    """Invalid input from the user. The message is one line that names the mistake and the fix.

    The command line prints the message without a traceback and exits with code 2.
    """


@contextmanager
def exit_on_user_error() -> Generator[None]:
    """End a script at a user's mistake: one line on stderr, exit code 2."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
