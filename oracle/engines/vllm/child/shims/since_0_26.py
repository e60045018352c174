"""0.26 to 0.30."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .release import Release

if TYPE_CHECKING:
    from ..config import Config


class Since030(Release):
    """What a request loads could not be bounded (``max_load_tokens``, 0.31)."""

    features = Release.features - {"load limits"}


class Since028(Since030):
    """The pool was counted in ``num_blocks``, which became ``num_chunks`` in 0.30."""

    def pool(self, config: Config) -> dict[str, Any]:
        arguments = super().pool(config)
        arguments["num_blocks"] = arguments.pop("num_chunks")
        return arguments


class Since026(Since028):
    """Chunked local attention was unknown (vLLM PR #51161)."""

    features = Since028.features - {"chunked"}
