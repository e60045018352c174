"""How does the child talk?  One JSON object a line in, one out, and nothing else out.

The real standard output is set aside for the protocol and descriptor 1 is pointed at
standard error before vLLM is imported: its loggers, its C++ parts and the libraries
below it print there at will.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any, BinaryIO, NoReturn

from . import coverage


class BadInput(Exception):
    """What was asked makes no sense; the engine is as it was."""


def set_aside_stdout() -> BinaryIO:
    """The protocol's end of standard output; everybody else now writes to standard error."""
    protocol = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return protocol


def main() -> NoReturn:
    out = set_aside_stdout()
    session: Any = None
    failure = ""
    try:
        coverage.install()
        # Imported here, so that vLLM cannot print before standard output is safe.
        session = importlib.import_module(__package__ + ".session").Session()
    except Exception as error:
        traceback.print_exc()
        failure = f"vllm cannot be imported here: {type(error).__name__}: {error}"
    for line in sys.stdin.buffer:
        try:
            ask = json.loads(line)
            if ask.get("do") == "stop":
                break
            if failure:
                raise BadInput(failure)
            answer = {"saw": session.answer(ask)}
        except BadInput as error:
            answer = {"error": str(error)}
        except Exception as error:
            # Not an engine's failure: those become observations in session.answer.
            traceback.print_exc()
            answer = {"error": f"the harness failed: {type(error).__name__}: {error}"}
        out.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
    sys.stderr.flush()
    # Not a return: tearing down torch takes a second, and fills standard error with the
    # leak reports of its bindings, which would hide what an engine said last.
    os._exit(0)
