"""What the DP-OGL paper claims of Figures 1 to 5, and what came out."""

from collections.abc import Iterator
from typing import Any

from papers.findings import Finding, Verdict
from papers.groups.accuracies import REGIME_WORDS, SOURCES, Known, Row, holds, judge_regimes
from papers.groups.cells import CL, GL, LB, LOUD, NOISE, PERIODS, PLUS, QUIET, RI, SIZES, SORTED, STRUCTURES, Cell
from papers.groups.counts import SAME, cut_of, find_counts, read_counted

MODULE = "python -m papers.groups"
PRINTED = "4-layer CNN, rate .001, L = 10, clip .05, 200 epochs, 60,000 images"
SCALED = "here 10,000 images; printed rate: CNN of 26,010 parameters, 120 epochs; tuned: MLP-32, 60 epochs"
GL_40, RI_10, RI_40, PLUS_10, PLUS_40_QUIET = SIZES
LB_2, RI_2, PLUS_4 = PERIODS
RI_10_QUIET, RI_40_QUIET, PLUS_10_QUIET, PLUS_40 = NOISE


def find_findings(rows: list[Row], counted: dict[str, Any]) -> list[Finding]:
    """Accounting first, then accuracy by data set; `counted` is figure4.json."""
    found = find_counts(counted)
    for source in SOURCES:
        known = Known(rows, source)
        if known.has("tuned", *STRUCTURES):
            parts = (compare_structures, order_ring, compare_sizes, compare_periods, compare_noise)
            found += [finding for part in parts for finding in part(known)]
            found += list_left_out(known)
    return found


def list_left_out(known: Known) -> Iterator[Finding]:
    """What a figure shows and nothing here was run for."""
    figure = f"Figure {known.figure}"
    whole = made_by(known, "structures", "sizes", "periods", "noise")
    yield Finding(
        f"{figure}, not run", "all curves with the paper's network, images and epochs", f"{PRINTED}, {known.name}", SAME,
        "-", Verdict.NOT_RUN, f"one network of 1,663,370 parameters a group, 200 epochs of 60,000 images: `{whole}` is "
        "scaled", whole,
    )  # fmt: skip
    yield Finding(
        f"{figure}, not run", "sizes (but the global model's), periods and noise at the printed rate",
        SCALED if known.source == "mnist" else "as Figure 3", SAME, "-", Verdict.NOT_RUN,
        f"at that rate training has hardly begun (`{made_by(known, 'structures', 'causes')}`): they are run at the tuned one",
        whole,
    )  # fmt: skip


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
    why = why if known.source == "mnist" else f"on MNIST, {why}"
    yield from contrast(
        known, result, "the ring is above global at equal noise", [("global to ring:", GL, RI)], 1, why, "structures"
    )
    several = [(f"{cell.curve}:", GL, cell) for cell in (CL, LB, PLUS)]
    yield from contrast(known, result, "the other structures beat global too", several, 1, why, "structures")
    others = [(f"{cell.curve} to ring:", cell, RI) for cell in (CL, LB)]
    yield from contrast(
        known, result, "the ring is the best of the structures", others, 1,
        "at the printed rate the structures do not differ by more than the seeds do; where training gets somewhere, LB "
        "leads, whose group-mates share labels: sorting the ring's workers by label brings it up as well "
        f"(`{MODULE} order`)", "structures",
    )  # fmt: skip
    yield from contrast(
        known, result, "DP-OGL+ converges worse than DP-OGL", [("ring:", RI, PLUS)], -1,
        "where training has hardly begun noise is no loss (first row), and the two differ by less than two standard "
        f"errors (`{MODULE} structures causes`)", "structures",
    )  # fmt: skip


def explain_lead(known: Known) -> str:
    """What makes the ring lead, from the runs that change one thing each."""
    said = []
    if known.has("printed", LOUD, QUIET):
        said.append(
            "at the printed rate training has hardly begun, and both things in which a ring differs help alone: more "
            f"noise in one model (global, noise 2 to 8, as a group of 25 has it: {known.say(GL, LOUD, 'printed')}) "
            f"and groups at equal noise (global to ring with noise .5: {known.say(GL, QUIET, 'printed')})"
        )
    if known.has("rate x 50", GL, RI):
        said.append(f"at fifty times the rate, all else kept, global to ring: {known.say(GL, RI, 'rate x 50')}")
    for regime, name in REGIME_WORDS.items():
        if known.has(regime, GL, RI, private=False):
            said.append(f"without noise and clipping, {name}: {known.say(GL, RI, regime, private=False)}")
    return "; ".join(said) + f" (`{MODULE} causes`)"


def order_ring(known: Known) -> Iterator[Finding]:
    """Panels (a), (b): whether groups let workers train for themselves."""
    if not known.has("tuned", SORTED):
        return
    helped = holds(known.gap(RI, SORTED, "tuned"))
    yield Finding(
        panels(known, "(a), (b)"), "groups let workers train personal models, which helps them",
        f"{PRINTED}; who sits where in the ring is not said; {SCALED}", SAME,
        f"tuned rate, workers as dealt to workers sorted by their commonest label: {known.say(RI, SORTED, 'tuned')}. "
        "The order tells every worker's commonest label: it counts as public and is not covered by the guarantee; "
        "epsilon of the training is the same",
        Verdict.REGIME if helped else Verdict.NOT_REPRODUCED,
        "holds where workers of a group have something in common. Dealt by Dirichlet(.1), neighbours in the ring have "
        f"nothing, and are behind one model for all: {known.say(GL, RI, 'tuned')} (`{MODULE} order`)",
        made_by(known, "structures", "order"),
        (known.point("ring sorted by label - ring, tuned rate", RI, SORTED, "tuned"),),
    )  # fmt: skip


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
    why = f"seed by seed the ring ends alike with either period (`{MODULE} {' '.join(parts)}`)"
    yield from contrast(known, result, "S from 2 to 10 helps DP-OGL in the ring", [("", RI_2, RI)], 1, why, *parts)
    yield from less_by_label(known, result, *parts)
    yield from contrast(
        known, result, "S from 2 to 4 hurts DP-OGL+", [("", PLUS, PLUS_4)], -1,
        f"paired by seed (`{MODULE} {' '.join(parts)}`)", *parts,
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
        why = f"labels lose more by merging seldom than the ring gains (`{MODULE} {' '.join(parts)}`)"
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
            f"paired by seed (`{MODULE} sizes noise`)", "sizes", "noise",
        )  # fmt: skip


def say_to_authors(rows: list[Row]) -> tuple[str, str, str]:
    """Return what the paper's authors would want to read, with the numbers of the runs."""
    known = Known(rows)
    first = (
        "At the printed rate of .001 training has hardly begun, and the ring leads the global model by "
        f"{known.gap(GL, RI, 'printed')} points; at fifty times that rate, all else kept, the difference is "
        f"{known.gap(GL, RI, 'rate x 50')}, and where training gets somewhere {known.gap(GL, RI, 'tuned')}."
    )
    second = (
        "At that rate noise itself helps: one global model with the noise of a ring's group (8) moves by "
        f"{known.gap(GL, LOUD, 'printed')} points, a ring with the global model's noise (.5) leads by "
        f"{known.gap(GL, QUIET, 'printed')}; once training gets somewhere, what helps a ring is that its workers have "
        f"something in common (sorted by label: {known.say(RI, SORTED, 'tuned')})."
    )
    exact, lemma = (
        cut_of(read_counted(), "RI (4, 2), outsiders only", "RI+ (4, 2)", how) for how in ("t=200", "lemma_3")
    )
    third = (
        f"The 40 % cut of Figure 4 (a) is what Lemma 3 gives ({lemma:.1f} %), which costs a release more than no "
        f"sampling would; the exact cost gives {exact:.1f} %. The colour bars of (b) to (h) come near noise 3, not 2."
    )
    return first, second, third
