"""0.26 to 0.29."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .release import Release

if TYPE_CHECKING:
    from ..build import Config


class Since026(Release):
    """The pool was counted in ``num_blocks``, which became ``num_chunks`` in 0.30."""

    def pool(self, config: Config) -> dict[str, Any]:
        return {"num_blocks": config.host_chunks}
