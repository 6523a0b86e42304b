"""Each scheme is declared once: what is registered is in the library, in both commands and on the page."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sightline import accounting
from sightline.accounting import SCHEMES, Claim, Parameter, Scheme, register_scheme
from sightline.accounting.schemes import NOISE, RATE, STEPS
from sightline.apps.cli.main import run_arguments
from sightline.errors import InvalidInput
from sightline.events import Gaussian, Poisson
from tests.commands import program
from tests.serve.serve_asking import asking, site_of

BURN_IN = Parameter("burn_in", "Steps before, that use everybody.", "Steps before", 1, 100, 3, whole=True)
SAID = {
    "title": "Warm: everybody first",
    "help": "Some steps that use everybody, with noise of their own, then sampled ones.",
    "parameters": (NOISE, RATE, BURN_IN, STEPS, Parameter("first_noise", "Noise multiplier of the first steps.")),
    "example": {"noise": 1.5, "rate": 0.1, "burn_in": 2, "steps": 20},
    "claim": Claim("anyone who does not see the draws", "add_remove", "the clip norm"),
}


def warm_start(*, noise: float, rate: float, burn_in: int, steps: int, first_noise: float = 9.0) -> Scheme:
    """The first steps keep their noise when that of the later ones changes."""
    return Scheme("warm_start", noise, ((Gaussian(first_noise), burn_in), (Poisson(rate, Gaussian(noise)), steps)))


@pytest.fixture
def registered():
    """Register a plugin's scheme and remove it after the test."""
    register_scheme(**SAID)(warm_start)
    yield "warm-start"
    del SCHEMES["warm-start"]


def said_by(capsys, *words):
    assert run_arguments(list(words)) == 0
    return capsys.readouterr().out


def test_a_scheme_that_is_registered_is_found_in_all_three_places(registered, capsys, tmp_path):
    family = SCHEMES[registered]
    numbers = {"rate": 0.1, "burn_in": 2, "steps": 20}
    found = family.calibrated(numbers, epsilon=2.0, delta=1e-5)
    assert found.epsilon(delta=1e-5) <= 2.0
    assert found.events[0] == (Gaussian(9.0), 2)

    options = ["--rate", "0.1", "--burn-in", "2", "--steps", "20", "--delta", "1e-5", "--json"]
    for group in ("account", "calibrate"):
        assert family.help[:30] in said_by(capsys, group, "--help")
        helped = said_by(capsys, group, registered, "--help")
        assert "[default: 9.0]" in helped
        assert f"sightline {group} warm-start" in helped
    accounted = json.loads(said_by(capsys, "account", registered, "--noise", "1.5", *options))
    assert accounted["epsilon"] == warm_start(noise=1.5, **numbers).epsilon(delta=1e-5)
    calibrated = json.loads(said_by(capsys, "calibrate", registered, "--epsilon", "2", *options))
    assert calibrated["noise_multiplier"] == found.noise_multiplier

    ask = asking(site_of(tmp_path))
    page = ask("/calculator?scheme=warm-start").body.decode()
    assert '<option value="warm-start" selected>Warm: everybody first</option>' in page
    assert 'name="burn_in"' in page
    assert 'name="first_noise"' not in page
    query = "scheme=warm-start&rate=0.1&burn_in=2&steps=20&delta=1e-5"
    told = json.loads(ask(f"/api/account?{query}&noise=1.5").body)
    assert told["epsilon"]["this scheme"] == accounted["epsilon"]
    told = json.loads(ask(f"/api/account?{query}&solve=noise&epsilon=2").body)
    assert told["noise_multiplier"]["this scheme"] == found.noise_multiplier


def test_a_scheme_that_is_not_registered_is_found_in_none(capsys, tmp_path):
    for group in ("account", "calibrate"):
        assert run_arguments([group, "warm-start", "--help"]) == 2
    assert asking(site_of(tmp_path))("/api/account?scheme=warm-start").status == 400


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"parameters": SAID["parameters"][1:]}, "parameters=rate"),
        ({"parameters": SAID["parameters"][::-1]}, "keywords of the function"),
        ({"parameters": (NOISE, RATE, replace(BURN_IN, start=None), *SAID["parameters"][3:])}, "burn_in"),
        ({"parameters": (NOISE, RATE, replace(BURN_IN, low=0), *SAID["parameters"][3:])}, "0 < low"),
        ({"example": {"noise": 1.5, "rate": 0.1, "steps": 20}}, "value in the example"),
        ({"example": SAID["example"] | {"rate": 2}}, "rate=2"),
        ({"claim": replace(SAID["claim"], adjacency="either")}, "claim.adjacency=either"),
    ],
)
def test_a_scheme_that_could_not_be_offered_is_refused(change, law):
    with pytest.raises(InvalidInput, match=law):
        register_scheme(**(SAID | change))(warm_start)
    assert "warm-start" not in SCHEMES


def test_taken_names_and_another_noise_are_refused():
    said = SAID | {"parameters": (NOISE, STEPS), "example": {"noise": 2.0, "steps": 3}}

    def gaussian(*, noise: float, steps: int) -> Scheme:
        return accounting.gaussian(noise=noise, steps=steps)

    def ledger(*, noise: float, steps: int) -> Scheme:
        return gaussian(noise=noise, steps=steps)

    def doubled(*, noise: float, steps: int) -> Scheme:
        return gaussian(noise=2 * noise, steps=steps)

    def known(*, noise: float, delta: float) -> Scheme:
        return gaussian(noise=noise, steps=3)

    before = dict(SCHEMES)
    for function, law in ((gaussian, "taken"), (ledger, "taken"), (doubled, "noise multiplier must equal")):
        with pytest.raises(InvalidInput, match=law):
            register_scheme(**said)(function)
    with pytest.raises(InvalidInput, match="parameter=delta"):
        register_scheme(**(said | {"parameters": (NOISE, replace(RATE, name="delta"))}))(known)
    assert before == SCHEMES


def test_the_scheme_of_the_docs_is_registered_as_it_stands(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text()
    block = re.search(r"```python\n([^`]*@register_scheme.*?)```", page, re.DOTALL)
    try:
        program(block[1] + "\nassert SCHEMES['warm-start'].make is warm_start\n", tmp_path)
        assert SCHEMES["warm-start"].title == "Warm start: everybody first"
    finally:
        SCHEMES.pop("warm-start", None)


def test_every_scheme_of_ours_is_a_public_function_of_the_library():
    for name, family in SCHEMES.items():
        function = name.replace("-", "_")
        assert getattr(accounting, function) is family.make
        assert function in accounting.__all__


@pytest.mark.parametrize("name", SCHEMES)
def test_its_example_is_accounted_and_its_noise_is_the_one_that_calibration_turns(name):
    family = SCHEMES[name]
    numbers = family.complete_numbers(family.example)
    made = family.make(**numbers)
    assert family.make(**numbers | {"noise": 3.0}).events == made.with_noise(3.0).events
    assert 0 < made.epsilon(delta=1e-5, accountant=accounting.Accountant.RDP) < 1e3
