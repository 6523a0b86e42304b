"""Where clients are trained: in the simulator on this machine."""

from sightline.runtimes.simulator import Simulator

__all__ = ["Simulator"]
