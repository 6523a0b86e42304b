"""The top of the report: results, who can learn what of whom, and the guarantee in plain words."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sightline.accounting.calibration import power_at_most
from sightline.apps.report.run_view import CURVES, Composed, Content, RunView, Section
from sightline.events import Adjacency, Unit
from sightline.formatting import (
    METRICS,
    NONE,
    format_count,
    format_duration,
    format_metric,
    format_plural,
    format_short,
    format_upper,
    merge_silent,
)
from sightline.ledger import write_parties

FALSE_ALARMS = 0.05
"""False alarm rate at which the guarantee is put into words."""
ALARMS = (0.01, FALSE_ALARMS)
"""False alarm rates at which every line of sight shows the power of the best test."""
EMPTY = 0.95
"""Power above which a bound is not worth a number."""
HARDLY, LIMITED = 0.15, 0.5
"""Powers up to which an observer "can hardly tell" and "gets limited evidence"; a blind guess has `FALSE_ALARMS`."""
WORST = "the worst of "
POOLED = ("digits", "synthetic", "sentiment140_users", "airline_tweets")
"""Built-in sources whose common test set is the clients' test shards."""
FEW = 3
"""A sentence that would name more powers or observers than this is cut: largest and least, or the first."""
LARGEST_FACTOR = 14.0
"""Above this epsilon, e^epsilon (a million) is not printed."""


def headline_content(run: RunView) -> Content:
    """Return name, status, figures, guarantee and its limits."""
    return {
        "name": run.name,
        "status": str(run.fact("status", "unknown")),
        "reason": str(run.fact("status_reason", "")),
        "stopped": run.fact("status") == "stopped",
        "about": about_run(run),
        "figures": headline_figures(run),
        "promise": promise_words(run),
        "sight": merge_alike(sight_rows(run)),
        "terms": sight_terms(run),
        "who": run.who,
        "limits": limit_words(run),
        "unfinished": unfinished_words(run),
        "together": together_words(run),
        "guarantee": list(run.fact("guarantee", [])) if run.unit is not Unit.NONE else [],
        "caveats": list(run.fact("caveats", [])),
    }


SECTION = Section("headline", "Result", headline_content)


def about_run(run: RunView) -> list[str]:
    """Return short facts for the line under the name."""
    parameters = run.fact("parameters")
    model = run.fact("model", "") and f"{run.fact('model')}" + (
        f", {format_count(parameters)} parameters" if parameters else ""
    )
    source, task = run.fact("source"), run.fact("task", "classification")
    words = [
        run.fact("algorithm", ""),
        "" if task == "classification" else run.fact("loss") or task,
        f"{source} data" if source else "",
        model,
        run.fact("topology", ""),
    ]
    words += [_created_words(run.fact("created")), format_duration(run.fact("seconds")) if run.fact("seconds") else ""]
    return [str(word) for word in words if word]


def _created_words(created: str | None) -> str:
    try:
        moment = datetime.fromisoformat(str(created))
    except ValueError:
        return ""
    return f"{moment.day} {moment:%B %Y, %H:%M}" + (" UTC" if moment.tzname() == "UTC" else "")


def headline_figures(run: RunView) -> list[dict[str, str]]:
    """Return the numbers that a reader looks for first, each with its name and a note."""
    planned = run.fact("rounds_planned")
    figures = [
        (f"Test {run.metric.title}", format_metric(run.metric, run.last(run.metric.test_key)), metrics_note(run)),
        ("Epsilon", epsilon_words(run), _epsilon_note(run)),
        ("Protected", protected_subjects(run), _adjacency_words(run)),
        ("Clients", format_count(run.fact("clients")), clients_note(run)),
        ("Rounds", format_count(run.rounds_done), f"of {format_count(planned)} planned" if planned else ""),
        ("Releases", format_count(len(run.ledger)), "in the ledger"),
    ]
    return [{"name": name, "value": value, "note": note} for name, value, note in figures]


def metrics_note(run: RunView) -> str:
    """Return what the metric is of, the task's other metrics, and the loss if it is not one of them."""
    others = [(metric, run.last(metric.test_key)) for metric in run.metrics[1:]]
    if run.metric.name != "loss":
        others.append((METRICS["loss"], run.last("test_loss")))
    words = [f"{metric.title} {format_metric(metric, value)}" for metric, value in others if value is not None]
    where = "on all clients' test examples" if run.fact("source") in POOLED else "on the common test set"
    return ", ".join([where, *words] if run.last(run.metric.test_key) is not None else words)


def clients_note(run: RunView) -> str:
    """Return the decile of clients at the worse end, and the worst client with its number of examples."""
    metric = run.metric
    worst, most = run.last(metric.client_key("worst")), run.last(metric.client_key("decile"))
    examples = run.last("client_worst_examples")
    if worst is None:
        return ""
    of = f" (a client with {format_plural(int(examples), 'test example')})" if examples else ""
    decile = f"{metric.decile_title} {format_metric(metric, most)}, " if most is not None else ""
    return f"own test sets: {decile}worst {format_metric(metric, worst)}{of}"


def epsilon_words(run: RunView) -> str:
    """Return the headline's epsilon, rounded up, or "none"."""
    if run.unit is Unit.NONE:
        return "none"
    return NONE if run.epsilon is None else format_upper(run.epsilon)


def _epsilon_note(run: RunView) -> str:
    if run.unit is Unit.NONE or (run.epsilon is not None and math.isinf(run.epsilon)):
        return "no guarantee"
    target = run.fact("target_epsilon")
    words = f"per {run.who}" + (f", δ = {format_short(run.delta)}" if run.delta else "")
    return words + (f", target {format_short(target)}" if target else "")


def protected_subjects(run: RunView) -> str:
    """Return whom the guarantee protects."""
    return {Unit.CLIENT: "each client", Unit.SAMPLE: "each example", Unit.NONE: "nobody"}[run.unit]


NEIGHBOURS = {Adjacency.ADD_REMOVE: "added or removed", Adjacency.REPLACE: "exchanged for any other"}


def _adjacency_words(run: RunView) -> str:
    return "no noise was added" if run.unit is Unit.NONE else NEIGHBOURS.get(run.fact("adjacency"), "")


def promise_words(run: RunView) -> list[str]:
    """Return what the guarantee means, in a few sentences; the first is set larger."""
    if run.unit is Unit.NONE:
        return [
            "There is no privacy guarantee.",
            "The models were published without noise: an observer may learn anything that they reveal.",
        ]
    if run.epsilon is None:
        return ["The run has not yet stated an epsilon, so nothing is promised here."]
    if math.isinf(run.epsilon):
        # One unbounded observer is enough: the headline never hides it behind the others.
        against = ", ".join(kind for kind, epsilon in run.spent.items() if math.isinf(epsilon))
        return [f"There is no privacy guarantee against {against}.", "Something reached them without noise."]
    powers = {kind: most_hits(run, kind) for kind in run.spent}
    strength = strength_words(run.epsilon, max(powers.values()), observer_question(run))
    return [strength, test_power_words(powers, run.delta or 0.0), factor_words(run.epsilon, run.delta or 0.0)]


def observer_question(run: RunView) -> str:
    """Return what an observer must not find out."""
    if run.fact("adjacency") == Adjacency.REPLACE:
        return (
            f"which of two sets of data any one {run.who} held" if run.who == "client" else "what any one example was"
        )
    return "whether any one client took part" if run.who == "client" else "whether any one example was used"


def strength_words(epsilon: float, power: float, question: str) -> str:
    """Return the guarantee in one sentence."""
    # By the power of the best test; "hardly" also needs epsilon <= 1, since a rare outcome may tell more than the
    # average.
    if epsilon <= 1 and power <= HARDLY:
        return f"An observer of every published model can hardly tell {question}."
    if power <= LIMITED:
        return f"An observer of every published model gets only limited evidence of {question}."
    return f"What the published models can tell about {question} is bounded, but the bound is loose."


def test_power_words(powers: Mapping[str, float], delta: float) -> str:
    """Return the best test's power against each kind of observer, rounded up.

    >>> test_power_words({"server": 0.2469, "public": 0.2469}, 1e-4)
    'In numbers: a test with 5 % false alarms finds at most 24.7 % of the true cases; a blind guess finds 5 %.'
    """
    blind = f"{100 * FALSE_ALARMS:g} %"
    kinds = defaultdict[str, list[str]](list)
    for kind, power in sorted(powers.items(), key=lambda one: -one[1]):
        kinds[power_words(power) if power <= EMPTY else ""].append(kind)
    everything = kinds.pop("", [])
    words = []
    # One (epsilon, delta) bounds almost nothing from about epsilon 4: say so, and which epsilon would help.
    if everything:
        one, two = (power_words(power_at_most(less, delta)) for less in (1.0, 2.0))
        words += [
            f"the bound does not keep a test with {blind} false alarms from finding almost every true case"
            + _against(everything, powers),
            f"at epsilon 1 it would find at most {one}, at epsilon 2 at most {two}",
        ]
    if kinds:
        (most, first), *rest = ((power, _against(some, powers)) for power, some in kinds.items())
        # The table below has every observer; a sentence with more than a few is not read.
        between = len(rest) - 1 if len(rest) > FEW else 0
        bounds = [f"{most} of the true cases{first}", *(power + against for power, against in rest[between:])]
        joined = f" down to {bounds[1]}" if between else "".join(f", {bound}" for bound in bounds[1:])
        words.append(f"a test with {blind} false alarms finds at most {bounds[0]}{joined}")
    return f"In numbers: {'; '.join([*words, f'a blind guess finds {blind}'])}."


def _against(kinds: Sequence[str], powers: Mapping[str, float]) -> str:
    if len(kinds) == len(powers):
        return ""
    return f" ({kinds[0]} and {len(kinds) - 1} more)" if len(kinds) > FEW else f" ({', '.join(kinds)})"


def power_words(power: float) -> str:
    """Return a power in percent, rounded up."""
    return f"{format_upper(100 * power)} %"


def attack_words(hits: Sequence[float]) -> str:
    """Return the powers at `ALARMS` false alarms, rounded up.

    >>> attack_words((0.334, 0.58))
    '33.4 % at 1 %, 58.0 % at 5 %'
    """
    return ", ".join(f"{power_words(power)} at {100 * alarms:g} %" for alarms, power in zip(ALARMS, hits, strict=True))


def pair_attack(run: RunView, composed: Composed) -> str:
    """Return what the best attack finds on one line of sight, or "" if nothing or everything reaches the observer."""
    if not composed or math.isinf(run.epsilon_of(composed)):
        return ""
    hits = [run.power_of(composed, alarms) for alarms in ALARMS]
    return f"The best attack finds at most {attack_words(hits)} false alarms."


def factor_words(epsilon: float, delta: float) -> str:
    """Return the definition with its numbers.

    >>> factor_words(8.0, 1e-3)
    'Any outcome is at most 2,981 times as likely in one case as in the other, plus δ = 0.001.'
    """
    if epsilon > LARGEST_FACTOR:
        return "At this epsilon an outcome may be almost certain in one case and almost impossible in the other."
    # Printed beside the power, because a rare outcome may tell more than the average one.
    factor = format_upper(math.exp(epsilon), digits=4)
    return (
        f"Any outcome is at most {factor} times as likely in one case as in the other, plus δ = {format_short(delta)}."
    )


def most_hits(run: RunView, kind: str, alarms: float = FALSE_ALARMS) -> float:
    """Return the best power of a test with these false alarms against one kind of observer.

    Guarantees: an upper bound for every subject. The stated (epsilon, delta) gives one; so does each pair on the curve
    of a composition in the ledger, and the least of them holds. Curves are not used if the page states more than the
    ledger adds up to, because the ledger is then not the whole claim, nor if there are more than `CURVES`.
    """
    stated, compositions = run.spent[kind], run.compositions_seen_by(kind)
    if not compositions and not stated:
        # Nothing reached the observer: it guesses blindly.
        return alarms
    if not compositions or len(compositions) > CURVES or stated > (1 + 1e-6) * max(map(run.epsilon_of, compositions)):
        return power_at_most(stated, run.delta or 0.0, alarms)
    # The larger epsilon of the page also bounds every composition, so the least of the bounds holds.
    return min(
        power_at_most(stated, run.delta or 0.0, alarms), max(run.power_of(some, alarms) for some in compositions)
    )


@dataclass(frozen=True)
class SightRow:
    """What one kind of observer can learn of the least protected subject."""

    observer: str
    subjects: str
    trusted: bool
    epsilon: float
    hits: tuple[float, ...]
    """Powers of the best test at `ALARMS` false alarms."""

    @property
    def text(self) -> str:
        """Return the bound on epsilon, rounded up."""
        return format_upper(self.epsilon)

    @property
    def remark(self) -> str:
        """Return the meaning of a bound that is infinite or zero; "" for any other."""
        if self.trusted:
            return "trusted: no bound"
        if math.isinf(self.epsilon):
            return "no bound: without noise"
        return "" if self.epsilon else "nothing reaches it"

    @property
    def meters(self) -> list[dict[str, str]]:
        """Return each power as a number and as lengths of a bar, in percent and rounded up."""
        return [
            {
                "alarms": f"{100 * alarms:g}",
                "text": "100 %" if hits >= 1 else power_words(hits),
                "hits": f"{100 * hits:.1f}",
            }
            for alarms, hits in zip(ALARMS, self.hits, strict=True)
        ]


def sight_rows(run: RunView) -> list[SightRow]:
    """Return a row for every kind of observer, the trusted parties last, without a bound."""
    everyone = frozenset[str]().union(*{release.subjects for release in run.ledger})
    names = write_parties(everyone)
    # Many kinds that learn nothing are one row, so that the first screen holds the others.
    rows = [
        _sight_row(run, kind, names) if kind in run.spent else SightRow(kind, names, False, 0.0, ALARMS)
        for kind in merge_silent(run.spent)
    ]
    if run.trusted:
        whole = (1.0,) * len(ALARMS)
        rows.append(SightRow(write_parties(frozenset(run.trusted)), names, True, math.inf, whole))
    return rows


def merge_alike(rows: Sequence[SightRow]) -> list[SightRow]:
    """Return the rows with those of equal numbers merged; each number and name is the one that bounds the others."""
    alike = defaultdict[tuple[Any, ...], list[SightRow]](list)
    for row in rows:
        alike[row.remark, row.text, *(meter["text"] for meter in row.meters)].append(row)
    merged = []
    for some in alike.values():
        worst = next((row.subjects for row in some if row.subjects.startswith(WORST)), some[0].subjects)
        hits = tuple(map(max, zip(*(row.hits for row in some), strict=True)))
        names, epsilon = ", ".join(row.observer for row in some), max(row.epsilon for row in some)
        merged.append(replace(some[0], observer=names, subjects=worst, epsilon=epsilon, hits=hits))
    return merged


def _sight_row(run: RunView, kind: str, names: str) -> SightRow:
    alike = len(run.compositions_seen_by(kind)) < 2
    whole = math.isinf(run.spent[kind])
    hits = tuple(1.0 if whole else most_hits(run, kind, alarms) for alarms in ALARMS)
    return SightRow(kind, names if alike else WORST + names, False, run.spent[kind], hits)


def sight_terms(run: RunView) -> str:
    """Return what every epsilon of the page is per, at which delta and for which neighbours."""
    if run.unit is Unit.NONE:
        return "no guarantee: nothing is noised"
    return terms_words(run.unit, run.fact("adjacency"), run.delta)


def terms_words(unit: str, adjacency: Any, delta: float | None) -> str:
    """Return the terms of an epsilon.

    >>> terms_words("sample", "replace", 1e-5)
    'per example, exchanged for any other, δ = 1e-5'
    """
    who = "example" if unit == Unit.SAMPLE else "client"
    words = [f"per {who}", NEIGHBOURS.get(adjacency, ""), f"δ = {format_short(delta)}" if delta else ""]
    return ", ".join(word for word in words if word)


def limit_words(run: RunView) -> list[str]:
    """Return what the guarantee does not say."""
    if run.unit is Unit.NONE or run.epsilon is None or math.isinf(run.epsilon):
        return []
    limits = ["It does not hide what is true of the whole population: a model may tell of people who never took part."]
    if run.unit is Unit.CLIENT:
        limits.append("A person whose data are held by several clients is protected by less than this epsilon says.")
    else:
        limits.append("A person with several examples is protected by less than this epsilon says.")
    if run.trusted:
        limits.append(f"It does not bind those who are trusted: {', '.join(run.trusted)}.")
    return limits


def together_words(run: RunView) -> str:
    """Return the joint cost of the run and the runs that its model started from, or ""."""
    together = run.together
    if together is None:
        return ""
    names = ", ".join(str(one["run_dir"]) for one in together["runs"])
    if together.get("unknown"):
        return f"Together with the runs this model started from: epsilon unknown. {together['unknown']}."
    who = "on the same data" if together["same_data"] else "whose clients are assumed to be the same"
    epsilon = math.inf if together["epsilon"] is None else float(together["epsilon"])
    return f"Together with {names}, {who}, which this model started from: epsilon {format_upper(epsilon)}."


def unfinished_words(run: RunView) -> str:
    """Return a note about releases of an unfinished round, or that the rounds' epsilon does not cover."""
    if not run.unfinished:
        # A tolerance for the arithmetic: the same composition accounted twice may differ in the last digits.
        more = any(run.spent[kind] > value * (1 + 1e-6) for kind, value in run.written.items())
        return "The ledger adds up to more than the last round wrote; the larger epsilon is shown." if more else ""
    return (
        f"The ledger holds {format_plural(run.unfinished, 'release')} of a round that is not finished "
        "or was broken off; epsilon counts them."
    )
