"""`sightline` exports exactly its public names."""

import sightline


def test_dir_shows_the_public_names_and_nothing_else():
    shown = [name for name in dir(sightline) if not name.startswith("__")]
    assert shown == sorted(sightline.__all__)


def test_every_public_name_is_there():
    for name in sightline.__all__:
        assert getattr(sightline, name) is not None
    assert callable(sightline.run)
    assert callable(sightline.audit.audit)
