"""Experiments on Flower: its simulation engine, or a SuperLink with SuperNodes. Needs `sightline[flower]`."""

import os
from importlib.util import find_spec

from sightline.errors import invalid


def check_installed() -> None:
    """Raise InvalidInput if Flower or Ray is missing; set the environment that a simulation needs."""
    missing = [name for name in ("flwr", "ray") if find_spec(name) is None]
    if missing:
        invalid("--runtime", "flower", f"{' and '.join(missing)} cannot be imported", "pip install 'sightline[flower]'")
    # Flower reads its variable when it is imported, so both are set before.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
