"""A test over many cases names each that fails, and passes fixtures on."""

import pytest

from tests.loops import for_every


@for_every([1, 2, 3])
def check_small(number, tmp_path):
    assert tmp_path.is_dir()
    if number == 2:
        with pytest.raises(ValueError, match="never"):
            pass
    assert number < 3, "too large"


def test_every_case_that_fails_is_named(tmp_path):
    with pytest.raises(
        AssertionError, match=r"(?s)2 cases fail\n2: Failed: DID NOT RAISE.*\n3: AssertionError: too large"
    ):
        check_small(tmp_path=tmp_path)


@for_every("ab")
def test_fixtures_are_passed_on(letter, tmp_path):
    assert tmp_path.is_dir()
    assert letter in "ab"
