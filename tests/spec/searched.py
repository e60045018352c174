"""What no backend may change of a search."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvoracle.spec.explore import Exploration


def told(found: Exploration) -> dict[str, Any]:
    """All that must not depend on the backend, orders included."""
    data = asdict(found)
    for name in ("backend", "seconds", "memory"):
        del data[name]
    data["orders"] = [list(found.violations), list(found.witnesses), list(found.evaluated)]
    return data
