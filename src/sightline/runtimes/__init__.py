"""Client executors: they train the clients of a run in this process, in a pool, or on remote nodes.

Heavy modules load on first use: a node that only passes messages to a site never imports torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.runtimes.simulator import Simulator

__all__ = ["Simulator"]


def __getattr__(name: str) -> Any:
    """Import `Simulator` on first use."""
    if name != "Simulator":
        raise AttributeError(f"module 'sightline.runtimes' has no attribute {name!r}")
    from sightline.runtimes.simulator import Simulator

    return Simulator
