"""What every test shares: no time limits on single examples, one thread, and where the large data lies."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")


@pytest.fixture(autouse=True)
def one_thread():
    """Tests run side by side; torch with several threads each would only get in its own way."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def large_data():
    """The folder of the large data sets, or a skip that says why."""
    folder = os.environ.get("SIGHTLINE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("SIGHTLINE_DATA does not name a folder with the large data sets")
    return Path(folder)
