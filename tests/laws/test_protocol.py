"""What a mechanism says of itself is what it does, for every mechanism of the registry."""

from dataclasses import replace
from functools import cache

import pytest

from sightline.errors import Refused
from sightline.events import Clear, Gaussian, Product, Pure
from sightline.ledger import POST_PROCESSING
from sightline.mechanisms import (
    MECHANISMS,
    AdaptiveMean,
    CorrelatedByTrust,
    CorrelatedMean,
    EveryoneNoisesMean,
    NoisedBy,
    NoisedValue,
)
from sightline.topology import client_name
from tests.laws.noise import CASES, LAWS, Case, mechanism_classes, noises_in, noted_run, sender, spread_noise
from tests.loops import for_every

OPEN = {
    f"no privacy, {where}": Case({"unit": "none", "where": where, "topology": "tree" if where == "edge" else "star"})
    for where in ("server", "client", "edge")
}
EVERY = CASES | OPEN
every_case = for_every(EVERY)


@cache
def run_of(name):
    return noted_run(EVERY[name].setting(), 2)


def noise_in(event):
    """z of what is released, of a sum and a count together; of pure releases 1 / epsilon."""
    if isinstance(event, Pure):
        return 1 / event.epsilon
    inner = event.event if hasattr(event, "event") else event
    counted = isinstance(inner, Product) and all(isinstance(part, Gaussian) for part in inner.events)
    return sum(z**-2 for z in noises_in(event)) ** -0.5 if counted else noises_in(event)[0]


def noises_of(claims):
    return [noise_in(release.event) for release in claims if release.event not in (Clear(), POST_PROCESSING)]


def test_every_mechanism_of_the_registry_is_asked():
    assert {case.asked for case in EVERY.values()} == set(MECHANISMS)
    asked = {type(run_of(name).setting.mechanism) for name in EVERY}
    asked |= {
        type(run_of(name).setting.mechanism.at(call.context.channel)) for name in EVERY for call in run_of(name).calls
    }
    assert asked == mechanism_classes() == set(LAWS)


@every_case
def test_who_is_said_to_add_the_noise_adds_it(name):
    """The noise law finds the noise in what the named party let go of, and un-noised values reach only a trusted one."""
    run = run_of(name)
    for number, call in enumerate(run.calls):
        said = run.setting.mechanism.at(call.context.channel).noised_by
        claims = run.claims_of(number)
        noisy = {release.source for other, release in run.noisy() if other is call}
        members, channel = {client_name(n) for n in call.updates.cohort.members}, call.context.channel.name
        clear = [release for release in claims if release.event == Clear()]
        if said is NoisedBy.SERVER:
            assert noisy == {channel}
            assert [channel in release.audience for release in clear] == [True]
        elif said is NoisedBy.CLIENT:
            summed = isinstance(run.setting.mechanism, EveryoneNoisesMean)  # everybody's noise is one release
            assert noisy == ({channel} if summed else members)
            assert not clear
            assert summed or {client_name(n) for n in call.left} == members
        else:
            assert not noisy
            assert clear


@every_case
def test_the_noise_multipliers_are_those_of_the_claims(name):
    run = run_of(name)
    for call, release in run.noisy():
        channel, mechanism = call.context.channel, run.setting.mechanism.at(call.context.channel)
        about = channel.members if release.source == channel.name else (sender(release),)
        said = max(mechanism.noise_multipliers(about).values()) * channel.noise_factor
        assert noise_in(release.event) * spread_noise(run, release) == pytest.approx(said, rel=1e-12)
    if not list(run.noisy()):
        assert run.setting.mechanism.noise_multipliers(run.setting.clients) == {}


@every_case
def test_an_event_scales_with_the_noise(name):
    run = run_of(name)
    for _, release in run.noisy():
        scaled = run.setting.mechanism.scaled(release.event, 2.0)
        assert noise_in(scaled) == pytest.approx(2 * noise_in(release.event), rel=1e-12)
        assert run.setting.mechanism.scaled(release.event, 1.0) == release.event


@every_case
def test_a_channels_mechanism_claims_the_same_and_stays_what_it_is(name):
    run = run_of(name)
    for call in run.calls:
        whole, context = run.setting.mechanism, call.context
        here, again = whole.at(context.channel), whole.at(context.channel)
        assert type(here) is type(again)
        assert here.at(context.channel) == here
        assert here.facts.noised_value is whole.facts.noised_value
        assert here.claim_mean(call.updates, context) == again.claim_mean(call.updates, context)


@every_case
def test_factors_of_a_channel_are_used_where_that_is_said(name):
    run = run_of(name)
    mechanism, call = run.setting.mechanism, next((c for c in run.calls if c.updates.cohort.members), run.calls[0])
    louder = replace(
        call.context, channel=replace(call.context.channel, noise_factor=2 * call.context.channel.noise_factor)
    )
    before, after = (
        noises_of(mechanism.at(context.channel).claim_mean(call.updates, context)) for context in (call.context, louder)
    )
    factor = 2.0 if mechanism.facts.uses_channel_factors else 1.0
    assert after == pytest.approx([factor * noise for noise in before], rel=1e-12)


@every_case
def test_members_have_a_part_where_they_noise_and_none_where_nobody_does(name):
    run = run_of(name)
    for call in run.calls:
        mechanism = run.setting.mechanism.at(call.context.channel)
        said, cohort = mechanism.noised_by, call.updates.cohort.members
        unshared = replace(call.updates, shared=None)  # what channels share is handed out once
        if said is NoisedBy.CLIENT or mechanism.facts.noised_value is NoisedValue.UPDATE:
            largest = mechanism.largest_output(
                call.context, dimension=run.worker.dimension, splitter=run.setting.splitter
            )
            left = list(mechanism.client_outputs(unshared, call.context))
            assert [one.member for one in left] == list(cohort)
            assert largest is None or all(float(one.value.norm()) <= largest for one in left)
        elif mechanism.facts.noised_value not in (NoisedValue.STEPS, NoisedValue.PATH):
            with pytest.raises(Refused, match="no client-side step"):
                list(mechanism.client_outputs(unshared, call.context))


UNITS = {
    "client": {NoisedValue.UPDATE},
    "sample": {NoisedValue.GRADIENT, NoisedValue.STEPS, NoisedValue.PATH, NoisedValue.MODEL},
    "none": {NoisedValue.NOTHING},
}


@every_case
def test_what_is_noised_goes_with_the_unit_the_steps_and_the_words(name):
    run = run_of(name)
    mechanism, setting = run.setting.mechanism, run.setting
    assert mechanism.facts.noised_value in UNITS[setting.unit]
    stepwise = mechanism.facts.noised_value in (NoisedValue.GRADIENT, NoisedValue.STEPS, NoisedValue.PATH)
    assert all((n in mechanism.facts.private_steps) is stepwise for n in setting.clients)
    solved = mechanism.facts.noised_value is NoisedValue.MODEL
    words = mechanism.facts.explain(0.5)
    assert bool(words) is solved or (
        words and mechanism.facts.noised_value is NoisedValue.UPDATE
    )  # whose noises add up
    assert bool(mechanism.facts.caveats) is solved
    if mechanism.facts.sends_parts:
        assert {mechanism.at(call.context.channel).noised_by for call in run.calls} <= {
            NoisedBy.SERVER,
            NoisedBy.NOBODY,
        }


def test_a_mechanism_has_a_form_in_parts_or_refuses_it():
    splitter = run_of("central, parts").setting.splitter
    for name in EVERY:
        mechanism = EVERY[name].setting().mechanism
        if isinstance(mechanism, CorrelatedMean | CorrelatedByTrust):
            with pytest.raises(Refused, match="over the rounds of a stream"):
                mechanism.in_parts(splitter)
        elif isinstance(mechanism, AdaptiveMean) or mechanism.facts.noised_value in (
            NoisedValue.STEPS,
            NoisedValue.PATH,
            NoisedValue.MODEL,
        ):
            with pytest.raises(Refused, match=f"{type(mechanism).__name__} releases whole models"):
                mechanism.in_parts(splitter)
        else:
            assert type(mechanism.in_parts(splitter)) is type(mechanism)


def test_noise_by_trust_is_both():
    runs = [run_of(name) for name in CASES if "trust" in name]
    said = {run.setting.mechanism.at(call.context.channel).noised_by for run in runs for call in run.calls}
    assert said == {NoisedBy.SERVER, NoisedBy.CLIENT}
