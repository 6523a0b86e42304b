"""Where clients are trained: in the simulator on this machine, or at nodes elsewhere.

What is heavy is loaded when it is asked for: a node that only passes messages to a site does without torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.runtimes.simulator import Simulator

__all__ = ["Simulator"]


def __getattr__(name: str) -> Any:
    """The simulator."""
    if name != "Simulator":
        raise AttributeError(f"module 'sightline.runtimes' has no attribute {name!r}")
    from sightline.runtimes.simulator import Simulator

    return Simulator
