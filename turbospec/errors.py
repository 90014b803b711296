"""Errors that the user can fix."""

from __future__ import annotations


class UserError(Exception):
    """Invalid input from the user. The message is one line that names the mistake and the fix.

    The command line prints the message without a traceback and exits with code 2.
    """
