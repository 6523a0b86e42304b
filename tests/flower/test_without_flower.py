"""Where Flower is not installed, the command says so in one line and leaves nothing behind."""

from importlib.util import find_spec

import pytest

from sightline.apps.cli.main import run_arguments


@pytest.mark.skipif(find_spec("flwr") is not None, reason="Flower is installed here")
def test_the_way_out_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.toml").write_text("rounds = 1")
    assert run_arguments(["run", "one.toml", "--runtime", "flower"]) == 2
    assert "pip install 'sightline[flower]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
