"""Rules of the GPU's blocks: who may take one, when it is free, by what name it is found.

Blocks are shared, freed while a copy or a step that was dispatched still uses them, and
found again by their content.  `Holding` gathers the rules; a variant replaces one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Holding:
    """The rules of blocks in force.

    ``counts_holders``: a block that several requests hold is free when the last of them lets
    go.  ``counts_finders``: whoever finds a block by its name holds it as well.
    ``skips_found``: a load leaves out the chunks that were found on the GPU.
    ``forgets_name``: a block that is given to another request loses its name.
    ``waits_for_steps``: a freed block waits for a step that was dispatched and still writes it.
    ``frees_once``: output that comes after a request's end does not end it again.
    ``failure_waits``: a load that failed on one worker keeps its blocks until all are done.
    ``names_computed``: a block gets its name when its KV is there, not when its load begins.
    """

    counts_holders: bool = True
    counts_finders: bool = True
    skips_found: bool = True
    forgets_name: bool = True
    names_computed: bool = True
    waits_for_steps: bool = True
    frees_once: bool = True
    failure_waits: bool = True


SOUND = Holding()
