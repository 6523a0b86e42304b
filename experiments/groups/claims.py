"""What the DP-OGL paper claims of Figures 1 to 5, and what came out."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from experiments.findings import Finding, Verdict
from experiments.groups.accuracies import REGIME_WORDS, SOURCES, Known, Row, holds, judge_regimes
from experiments.groups.cells import CL, GL, LB, LOUD, NOISE, PERIODS, PLUS, QUIET, RI, SIZES, SORTED, STRUCTURES, Cell
from experiments.groups.counts import SAME, cut_of, find_counts, read_counted

MODULE = "python -m experiments.groups"
PRINTED = "4-layer CNN, rate .001, L = 10, clip .05, 200 epochs, 60,000 images"
SCALED = (
    "scaled: at the printed rate a 4-layer CNN of 26,010 parameters, one step of .01 for ten of .001, clip .05, 120 "
    "epochs; tuned: MLP-32, rate .05, clip .25, 60 epochs; 10,000 images in both"
)
GL_40, RI_10, RI_40, PLUS_10, PLUS_40_QUIET = SIZES
LB_2, RI_2, PLUS_4 = PERIODS
RI_10_QUIET, RI_40_QUIET, PLUS_10_QUIET, PLUS_40 = NOISE


def find_findings(rows: list[Row], counted: dict[str, Any]) -> list[Finding]:
    """Accounting first, then accuracy by data set; `counted` is figure4.json."""
    found = find_counts(counted)
    for source in SOURCES:
        known = Known(rows, source)
        if known.has("printed", GL, RI) and known.has("tuned", *STRUCTURES):
            parts = (compare_structures, order_ring, compare_sizes, compare_periods, compare_noise)
            found += [finding for part in parts for finding in part(known)]
    return found


def made_by(known: Known, *parts: str) -> str:
    """What ran the cells of some parts on this data set."""
    return f"{MODULE} {' '.join(parts) if known.source == 'mnist' else 'fashion'}"


def panels(known: Known, first: str, second: str = "") -> str:
    """Fashion-MNIST's figure has two pairs of panels where MNIST's has four."""
    return f"Figure {known.figure} {first if known.figure == '3' else second or first}"


def contrast(
    known: Known, result: str, words: str, pairs: list[tuple[str, Cell, Cell]], sign: int, why: str, *parts: str
) -> Iterator[Finding]:
    """A claim on differences, in every regime in which both sides ran; each has to hold."""
    told, held, points = [], {}, []
    for regime, name in REGIME_WORDS.items():
        there = [(label, one, two) for label, one, two in pairs if known.has(regime, one, two)]
        if there:
            said = [f"{label} {known.say(one, two, regime)}".strip() for label, one, two in there]
            told.append(f"{name}: {'; '.join(said)}")
            held[regime] = all(holds(known.gap(one, two, regime), sign) for _, one, two in there)
            points += [known.point(f"{words_of(one, two)}, {name}", one, two, regime) for _, one, two in there]
    if not held:
        return
    verdict = judge_regimes(held)
    named = "" if verdict is not Verdict.REGIME else f"holds at the {name_regimes(held)}. "
    cause = "" if verdict is Verdict.REPRODUCED else f"{named}{why}"
    setting = f"{PRINTED}; {SCALED}" if known.source == "mnist" else "as Figure 3, on Fashion-MNIST; scaled as there"
    yield Finding(result, words, setting, SAME, ". ".join(told), verdict, cause, made_by(known, *parts), tuple(points))


def name_regimes(held: dict[str, bool]) -> str:
    """Where it holds and where it does not."""
    yes, no = ([REGIME_WORDS[regime] for regime, fine in held.items() if fine is wanted] for wanted in (True, False))
    return f"{', '.join(yes)}, not at the {', '.join(no)}"


def words_of(one: Cell, two: Cell) -> str:
    """A difference, in the picture."""
    return f"{two.name} - {one.name}"


def compare_structures(known: Known) -> Iterator[Finding]:
    """Panels (a), (b)."""
    result = panels(known, "(a), (b)")
    why = explain_lead(Known(list(known.rows.values())))
    yield from contrast(
        known, result, "the ring is most accurate, above global at equal noise", [("global to ring:", GL, RI)], 1,
        why, "structures",
    )  # fmt: skip
    several = [(f"{cell.curve}:", GL, cell) for cell in (CL, LB, PLUS)]
    yield from contrast(
        known, result, "the other structures beat global too", several, 1, f"As for the ring: {why}", "structures"
    )
    yield from contrast(
        known, result, "DP-OGL+ converges worse than DP-OGL", [("ring:", RI, PLUS)], -1,
        f"while training has hardly begun all noisy rings are alike (`{MODULE} structures`)", "structures",
    )  # fmt: skip


def explain_lead(known: Known) -> str:
    """What makes the ring lead, from the runs that change one thing each."""
    said = []
    if known.has("printed", LOUD, QUIET):
        loud, quiet = known.mean(LOUD, "printed"), known.mean(QUIET, "printed")
        one, ring = known.mean(GL, "printed"), known.mean(RI, "printed")
        said.append(
            "at the printed rate it is the noise that moves the model: global with the noise of a ring's group (8) "
            f"has {loud} and not {one.mean:.1f}, the ring with global's noise (.5) {quiet} and not {ring.mean:.1f}"
        )
    if known.has("printed", GL, RI, private=False):
        said.append(f"without noise and clipping, global to ring: {known.say(GL, RI, 'printed', private=False)}")
    if known.has("rate x 50", GL, RI):
        said.append(f"fifty times the rate, all else kept: {known.say(GL, RI, 'rate x 50')}")
    if known.has("tuned", GL, RI, private=False):
        said.append(f"tuned, without noise: {known.say(GL, RI, 'tuned', private=False)}")
    return "; ".join(said) + f" (`{MODULE} causes`)"


def order_ring(known: Known) -> Iterator[Finding]:
    """Panels (a), (b): whether groups let workers train for themselves."""
    if not known.has("tuned", SORTED):
        return
    lifted = [("workers as dealt to workers sorted by their commonest label:", RI, SORTED)]
    for finding in contrast(
        known, panels(known, "(a), (b)"), "groups let workers train personal models, which helps them", lifted, 1,
        f"where training has hardly begun there is nothing to share yet (`{MODULE} order`)", "order",
    ):  # fmt: skip
        note = (
            ". Who sits where then tells every worker's commonest label: the order is treated as public and is not "
            "covered by the guarantee; epsilon of the training is the same"
        )
        yield replace(finding, ours=finding.ours + note)


def compare_sizes(known: Known) -> Iterator[Finding]:
    """Panels (c), (d)."""
    result = panels(known, "(c), (d)")
    small = [("ring, N = 100:", RI, RI_10), ("ring, N = 40:", RI, RI_40), ("DP-OGL+:", PLUS, PLUS_10)]
    yield from contrast(
        known, result, "groups of N/M = 10 do worse than of 25: noise does not shrink with them", small, -1,
        f"while the noise moves the model, more of it moves it further (`{MODULE} causes`)", "structures", "sizes",
    )  # fmt: skip
    yield from contrast(
        known, result, "global does slightly better with 40 workers than with 100", [("", GL, GL_40)], 1,
        "40 workers are 2.5 times the noise in the model, which helps only while noise moves the model: see Figure 3 "
        f"(a), (b) (`{MODULE} causes`)", "structures", "sizes",
    )  # fmt: skip
    yield from contrast(
        known, result, "the ring with N/M = 25 is above the baselines", [("N = 100:", GL, RI), ("N = 40:", GL_40, RI)],
        1, f"as Figure 3 (a), (b) (`{MODULE} causes`)", "structures", "sizes",
    )  # fmt: skip


def compare_periods(known: Known) -> Iterator[Finding]:
    """Panels (e), (f)."""
    result = panels(known, "(e), (f)", "(a), (b)")
    parts = ("structures", "periods")
    why = (
        "merging every 2 epochs averages the noise of neighbouring groups, every 10 hardly: with one worker in 26 shared "
        f"the ring's groups hardly feel either (`{MODULE} {' '.join(parts)}`)"
    )
    yield from contrast(known, result, "S from 2 to 10 helps DP-OGL in the ring", [("", RI_2, RI)], 1, why, *parts)
    yield from less_by_label(known, result, *parts)
    yield from contrast(
        known, result, "S from 2 to 4 hurts DP-OGL+", [("", PLUS, PLUS_4)], -1,
        f"while training has hardly begun fewer releases are less noise (`{MODULE} {' '.join(parts)}`)", *parts,
    )  # fmt: skip


def less_by_label(known: Known, result: str, *parts: str) -> Iterator[Finding]:
    """The period matters less in LB than in RI."""
    told, held, points = [], {}, []
    for regime, name in REGIME_WORDS.items():
        if known.has(regime, LB, LB_2, RI, RI_2):
            ring, labels = known.gap(RI_2, RI, regime), known.gap(LB_2, LB, regime)
            told.append(f"{name}: ring {ring}, labels {labels}")
            held[regime] = abs(labels.mean) < abs(ring.mean)
            points.append(known.point(f"LB, S 2 to 10, {name}", LB_2, LB, regime))
    if held:
        verdict = judge_regimes(held)
        why = (
            "in overlapping groups of 60 to 69 workers every merge averages the noise of most groups, so that rare merges "
            f"cost labels more than the ring (`{MODULE} {' '.join(parts)}`)"
        )
        cause = "" if verdict is Verdict.REPRODUCED else why
        yield Finding(
            result, "S matters less to LB than to RI", PRINTED if known.source == "mnist" else "as Figure 3", SAME,
            "; ".join(told), verdict, cause, made_by(known, *parts), tuple(points),
        )  # fmt: skip


def compare_noise(known: Known) -> Iterator[Finding]:
    """Panels (g), (h)."""
    result = panels(known, "(g), (h)", "(c), (d)")
    for name, pairs in (
        ("DP-OGL", [("N = 100:", RI_10, RI_10_QUIET), ("N = 40:", RI_40, RI_40_QUIET)]),
        ("DP-OGL+", [("N = 100:", PLUS_10, PLUS_10_QUIET), ("N = 40:", PLUS_40, PLUS_40_QUIET)]),
    ):
        yield from contrast(
            known, result, f"noise 1.3 in the place of 2 mends small groups of {name}", pairs, 1,
            f"(`{MODULE} sizes noise`)", "sizes", "noise",
        )  # fmt: skip


def say_to_authors(rows: list[Row]) -> tuple[str, str, str]:
    """What somebody who wrote the paper would want to read, with the numbers of the runs."""
    known = Known(rows)
    first = (
        "At the printed rate of .001 training has hardly begun, and the ring leads the global model by "
        f"{known.gap(GL, RI, 'printed')} points; at fifty times that rate, all else kept, the difference is "
        f"{known.gap(GL, RI, 'rate x 50')}: which structure wins is a matter of the rate."
    )
    loud, quiet = known.mean(LOUD, "printed").mean, known.mean(QUIET, "printed").mean
    second = (
        "The lead is made by noise, not by personal models: one global model with the noise of a ring's group reaches "
        f"{loud:.1f} %, a ring with the global model's noise {quiet:.1f} %; personal models pay where groups have "
        f"something in common, as workers sorted by label do ({known.say(RI, SORTED, 'tuned')})."
    )
    exact, lemma = (
        cut_of(read_counted(), "RI (4, 2), outsiders only", "RI+ (4, 2)", how) for how in ("t=200", "lemma_3")
    )
    third = (
        f"The 40 % cut of Figure 4 (a) is what Lemma 3 gives ({lemma:.1f} %), which costs a release more than no "
        f"sampling would; the exact cost gives {exact:.1f} %. The colour bars of (b) to (h) come near noise 3, not 2."
    )
    return first, second, third
