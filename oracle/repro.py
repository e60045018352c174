"""A finding as one Python script that needs nothing but the vLLM it is about.

The script is the run, in words and as data, what was wrong, and after that the headless driver:
the very files that drive vLLM here (``oracle/engines/vllm/child``), as they are.  It exits with 1
if the engine again does what was found, with 0 if it does not.

The judge is not in the script.  What shows the fault again is something seen: the engine's death,
bytes that are wrong, a chunk that was never offered; or else the very last thing that was seen.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import msgspec

from . import events as e
from . import words
from .engines.vllm import CHILD, ENVIRONMENT
from .explain import Explanation, headline
from .session import Outcome

BY_ITSELF = (e.BadBytes, e.NotAtRest, e.Overwritten, e.Unready, e.Pins)
"""Observations that are wrong whatever came before."""


class NoScript(ValueError):
    """No script can show this finding; says why."""


def script(outcome: Outcome, told: Explanation) -> str:
    """The script's text.  Raises `NoScript` for a finding in another engine than vLLM."""
    finding = outcome.finding
    assert finding is not None
    if not outcome.engine.startswith("vllm "):
        raise NoScript(f"a script shows a fault of vLLM, and this one is of {outcome.engine}")
    if finding.died is not None and finding.died.error in ("hung", "vanished", "garbage"):
        raise NoScript(f"the engine process {finding.died.error}: a script could not tell")
    run = "\n".join(_line(stimulus) for stimulus in outcome.stimuli)
    return _TEMPLATE.format(
        doc=_doc(outcome, told), environment=_pretty(dict(ENVIRONMENT)),
        config=_pretty(msgspec.to_builtins(outcome.config)), run=run,
        shows=_pretty(shows(outcome)), driver=_driver())


def shows(outcome: Outcome) -> dict[str, Any]:
    """What is to be seen again: ``died`` with an error, an ``offered`` chunk that must be there,
    or an observation ``seen``, in which only the given fields are compared."""
    finding = outcome.finding
    assert finding is not None
    if finding.died is not None:
        return {"died": finding.died.error}
    last = next(o for o in reversed(outcome.log[-1][1]) if not isinstance(o, e.Rejected))
    if isinstance(last, BY_ITSELF):
        seen = _plain(last)
        return {"seen": {k: seen[k] for k in ("saw", "where", "what", "r") if k in seen}}
    if finding.chunk is not None and finding.property in ("NoHole", "EventuallyStored"):
        g, c = finding.chunk
        return {"never_offered": {"r": finding.r, "g": g, "chunk": c}}
    return {"seen": _plain(last)}


def _plain(seen: e.AnyObservation) -> dict[str, Any]:
    """The observation as the driver tells it: lists, and nothing that is at its default."""
    data: dict[str, Any] = msgspec.json.decode(e.encode(seen))
    return data


def _line(stimulus: e.AnyStimulus) -> str:
    data = msgspec.to_builtins(stimulus)
    return f"    {data!r},  # {words.stimulus(stimulus)}"


def _pretty(data: dict[str, Any]) -> str:
    return "{\n" + "".join(f"    {k!r}: {v!r},\n" for k, v in data.items()) + "}"


def _doc(outcome: Outcome, told: Explanation) -> str:
    parts = [
        headline(told).rstrip(".") + ".",
        f"{told.property}: {told.statement}. {told.why}" if told.statement else "",
        f"Run it with the Python that has {outcome.engine} (the CPU build will do; no GPU and no "
        "model is needed). Exit code 1: the engine did it again; 0: it did not; 2: it could not "
        "be tried here.",
        "What is below RUN is a driver: the release's own scheduler and offloading connector, "
        "with a worker whose copies move tags instead of bytes. It patches nothing.",
    ]
    return "\n\n".join(textwrap.fill(p, 96, break_long_words=False, break_on_hyphens=False)
                       for p in parts if p).replace("\\", "\\\\").replace('"""', "'''")


def _driver() -> str:
    """The driver's files, each as a string: as it is where it can be quoted so."""
    texts = []
    for path in sorted(CHILD.rglob("*.py")):
        if path.name == "__main__.py":
            continue
        name = _module(path.relative_to(CHILD))
        text = path.read_text(encoding="utf-8")
        quoted = f"r'''{text}'''" if "'''" not in text and not text.endswith(("\\", "'")) \
            else repr(text)
        texts.append(f"DRIVER[{name!r}] = {quoted}\n")
    return "\n".join(texts)


def _module(path: Path) -> str:
    parts = [*path.with_suffix("").parts]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


_TEMPLATE = '''\
#!/usr/bin/env python
"""{doc}
"""

import importlib.abc
import importlib.util
import json
import linecache
import os
import sys

ENVIRONMENT = {environment}

CONFIG = {config}

RUN = [
{run}
]

SHOWS = {shows}

DRIVER = {{}}
PACKAGE = "headless_vllm"


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the driver's modules from DRIVER."""

    def find_spec(self, name, path=None, target=None):
        if name != PACKAGE and not name.startswith(PACKAGE + "."):
            return None
        short = name[len(PACKAGE) + 1:]
        if short not in DRIVER:
            return None
        package = any(other.startswith(short + "." if short else "") and other != short
                      for other in DRIVER)
        return importlib.util.spec_from_loader(name, self, is_package=package)

    def exec_module(self, module):
        name = module.__name__
        text = DRIVER[name[len(PACKAGE) + 1:]]
        file = "<" + name + ">"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), module.__dict__)


def never_offered(seen, r, g, chunk):
    """Whether the chunk was passed over in the whole run."""
    return not any(o["saw"] in ("planned", "refused") and o["r"] == r
                   and any(p["g"] == g and chunk in p["offered"] for p in o.get("groups", ()))
                   for o in seen)


def again(seen):
    """Whether what was found was seen again."""
    if "died" in SHOWS:
        return any(o["saw"] == "died" and o["error"] == SHOWS["died"] for o in seen)
    if "never_offered" in SHOWS:
        return never_offered(seen, **SHOWS["never_offered"])
    want = SHOWS["seen"]
    return any(all(o.get(k) == v for k, v in want.items()) for o in seen)


def main():
    if any(os.environ.get(k) != v for k, v in ENVIRONMENT.items()):
        # Keys are hashed with the interpreter's own salt, which is set before it starts.
        os.environ.update(ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.meta_path.insert(0, Finder())
    try:
        session = importlib.import_module(PACKAGE + ".session").Session()
        seen = session.answer({{"do": "start", "config": CONFIG}})
    except Exception as error:
        print("cannot be tried here: {{}}: {{}}".format(type(error).__name__, error))
        return 2
    print("vllm", session.version)
    for number, stimulus in enumerate(RUN, 1):
        print("{{:3}}  {{}}".format(number, json.dumps(stimulus)))
        try:
            answer = session.answer(dict(stimulus))
        except Exception as error:
            print("cannot be tried here: {{}}: {{}}".format(type(error).__name__, error))
            return 2
        for one in answer:
            print("       ", json.dumps(one))
        seen += answer
        if answer and answer[-1]["saw"] == "died":
            break
    shown = again(seen)
    print("AGAIN, as described at the top of this file" if shown else "not seen here")
    sys.stdout.flush()
    os._exit(1 if shown else 0)


# --- the driver ----------------------------------------------------------------------------

{driver}

if __name__ == "__main__":
    sys.exit(main())
'''
