"""A clean-up changes no bits of an example and no name that files, commands, ledgers or random streams depend on."""

import pytest

from tests.house import frozen


def recorded(kind):
    digests = frozen.read_golden()["digests"].get(frozen.describe_machine())
    if digests is None:
        pytest.skip(f"no digests were recorded on this kind of machine ({frozen.describe_machine()})")
    return digests[kind]


@pytest.mark.parametrize("kind", sorted(frozen.read_names()))
def test_names_stay(kind):
    assert frozen.read_names()[kind] == frozen.read_golden()["names"][kind]


@pytest.mark.parametrize("example", frozen.QUICK)
def test_the_first_rounds_of_an_example_keep_their_bits(example):
    wanted = recorded("short")[example]
    assert frozen.digest_run(example, frozen.SHORT) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("example", frozen.EXAMPLES)
def test_an_example_keeps_its_bits(example):
    wanted = recorded("whole")[example]
    assert frozen.digest_run(example) == wanted
