"""What a variant is: another design, a few lines on top of the machine, with its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvoracle.model.machine import ActionFunction, Machine, Part
from kvoracle.model.rules import Design
from kvoracle.model.scopes import ALL_PARTS, Scope


@dataclass(frozen=True)
class Variant:
    """A design that differs from the reference, and what is expected of it.

    ``breaks`` names the properties it breaks in ``scope``, all of them; ``starves`` the promises
    about the future, all that a fair run of that scope breaks.  ``lacks`` says in a few words
    which rule the design lacks: the oracle's diagnosis quotes it.  ``parts`` are those of the
    machine that has the rule.
    """

    name: str
    statement: str
    lacks: str
    source: str
    design: Design
    breaks: tuple[str, ...]
    scope: str
    starves: tuple[str, ...] = ()
    overrides: Mapping[str, ActionFunction] = field(default_factory=dict)
    parts: tuple[Part, ...] = ALL_PARTS

    def machine(self, scope: Scope) -> Machine:
        """The scope's machine under this design."""
        return scope.machine(self.design, self.overrides)

    def whole(self) -> Machine:
        """The machine of all its parts under this design, for all sizes."""
        return Machine(self.parts, self.design, self.overrides)
