"""Does cvc5 prove every obligation that Z3 proves, of every composition?

    python bench/solvers.py [--variant V]

Prints, for each composition, how many obligations each solver proves and the seconds cvc5 took;
names each that it does not prove.  Ends with exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import time

from kvoracle.spec.export.external import ToolMissing
from kvoracle.spec.export.second import cvc5_says
from kvoracle.spec.export.smt2 import smt2
from kvoracle.spec.variants import variant as find_variant


def main() -> int:
    """Ask cvc5 about each obligation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--variant", metavar="V", help="of another design than the reference")
    arguments = parser.parse_args()
    asked: dict[str, int] = {}
    seconds: dict[str, float] = {}
    unproved: list[str] = []
    try:
        for script in smt2(find_variant(arguments.variant) if arguments.variant else None):
            started = time.perf_counter()
            said = cvc5_says(script)
            spent = time.perf_counter() - started
            asked[script.composition] = asked.get(script.composition, 0) + 1
            seconds[script.composition] = seconds.get(script.composition, 0.0) + spent
            if said != "unsat":
                unproved.append(f"{script.name}: {said}")
    except ToolMissing as error:
        print(error, file=sys.stderr)
        return 3
    for name, count in asked.items():
        missing = sum(line.startswith(f"{name}-") for line in unproved)
        print(f"{name}: cvc5 proves {count - missing} of {count} obligations in "
              f"{seconds[name]:.1f} s")
    print(*unproved, sep="\n", end="\n" if unproved else "")
    return 1 if unproved else 0


if __name__ == "__main__":
    sys.exit(main())
