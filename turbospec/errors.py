"""Mistakes that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what the user gave us: one line that names what is wrong and how to mend it.

    The command line prints it without a traceback and exits with code 2.
    """
