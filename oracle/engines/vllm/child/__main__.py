"""Start the child: ``python <this folder>`` with one release of vLLM first on the path.

The folder becomes the package ``kvoracle_vllm_child`` by hand.  Left on ``sys.path``
its modules would be importable as ``build`` or ``content``, names that other people's
packages use too.
"""

import importlib.util
import os
import sys

PACKAGE = "kvoracle_vllm_child"


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    serve = importlib.import_module(PACKAGE + ".serve")
    serve.main()


if __name__ == "__main__":
    main()
