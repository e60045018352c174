"""What had a failing step decided?  Read from the frames its exception passed through."""

from __future__ import annotations

import linecache
from types import TracebackType
from typing import Any


def frames(error: BaseException) -> list[TracebackType]:
    """Outermost first."""
    found = []
    step = error.__traceback__
    while step is not None:
        found.append(step)
        step = step.tb_next
    return found


def local(error: BaseException, name: str, function: str | None = None) -> Any:
    """The value of local variable ``name`` in the innermost frame that has one."""
    for step in reversed(frames(error)):
        frame = step.tb_frame
        if function is not None and frame.f_code.co_name != function:
            continue
        value = frame.f_locals.get(name)
        if value is not None:
            return value
    return None


def in_engine(error: BaseException) -> bool:
    """Whether the engine raised it, or was running when it was raised."""
    return any("/vllm/" in step.tb_frame.f_code.co_filename.replace("\\", "/")
               and "kvoracle" not in step.tb_frame.f_globals.get("__name__", "")
               for step in frames(error))


def died(error: BaseException) -> dict[str, Any]:
    """The ``died`` observation: what was raised, and where."""
    trace = frames(error)
    at = ""
    if trace:
        code = trace[-1].tb_frame.f_code
        line = linecache.getline(code.co_filename, trace[-1].tb_lineno).strip()
        file = code.co_filename.replace("\\", "/")
        short = file[file.rfind("/vllm/") + 1:] if "/vllm/" in file else file.split("/")[-1]
        at = f"{short}:{trace[-1].tb_lineno} {code.co_name}: {line}"
    event = {"saw": "died", "error": type(error).__name__, "at": at}
    message = str(error).strip()
    if message:
        event["message"] = message[:2000]
    return event
