"""`sightline account ledger`: a ledger is accounted again from its file alone."""

import json
import math

import pytest
from click.testing import CliRunner

from sightline import accounting
from sightline.apps.cli.account import account_command as command
from sightline.errors import InvalidInput
from sightline.events import Adjacency, Clear, Gaussian, Poisson, Unit
from sightline.ledger import Ledger, Release, export_ledger, parties


def release(time, event, audience):
    return Release(
        time=time,
        source="server",
        subjects=parties({"client-0", "client-1"}),
        unit=Unit.CLIENT,
        adjacency=Adjacency.ADD_REMOVE,
        event=event,
        audience=parties(audience),
        coins_known_to=parties("server"),
    )


@pytest.fixture
def file(tmp_path):
    rounds = [release(time, Poisson(0.1, Gaussian(1.0)), {"public", "server"}) for time in range(10)]
    ledger = Ledger([*rounds, release(10, Clear(), {"server"})])
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(export_ledger(ledger)))
    return str(path)


def asked(file, observer):
    words = ["ledger", file, "--subject", "client-0", "--observer", observer, "--delta", "1e-5", "--json"]
    return json.loads(CliRunner().invoke(command, words, catch_exceptions=False).stdout)


def test_the_public_sees_sampled_rounds(file):
    found = asked(file, "public")
    assert found["epsilon"] == pytest.approx(accounting.poisson(noise=1.0, rate=0.1, steps=10).epsilon(delta=1e-5))
    assert found["releases"] == 10


def test_what_went_in_the_clear_is_infinite(file):
    assert asked(file, "server")["epsilon"] == "infinity"
    assert math.isinf(float(asked(file, "server")["epsilon"]))


def test_a_missing_file_is_a_mistake_of_the_user(tmp_path):
    with pytest.raises(InvalidInput, match="no such file"):
        asked(str(tmp_path / "absent.json"), "public")
