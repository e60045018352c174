"""Exit codes, and the errors that carry one line for the user."""

from __future__ import annotations

HOLDS = 0
VIOLATION = 1
USAGE = 2
UNJUDGED = 3
INTERRUPTED = 130
"""What shells make of Ctrl-C."""


class UserError(Exception):
    """Ends a command with one clear line on standard error and an exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
