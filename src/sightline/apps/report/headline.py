"""The top of the page: what came out, and what the guarantee means in plain words."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from sightline.apps.report.numbers import (
    NONE,
    format_count,
    format_duration,
    format_metric,
    format_plural,
    format_short,
    format_upper,
)
from sightline.apps.report.run_view import RunView
from sightline.apps.report.section import Content, Section
from sightline.events import Adjacency, Unit
from sightline.shown import METRICS

FALSE_ALARMS = 0.05
"""The share of false alarms at which the guarantee is put into words."""
EMPTY = 0.95
"""A power beyond which a bound on it says nothing worth a number."""
HARDLY, LIMITED = 0.15, 0.5
"""Powers up to which an observer can hardly tell, and gets limited evidence; a blind guess has `FALSE_ALARMS`."""
CURVES = 40
"""No trade-off curves for more different compositions than these: one takes about 0.04 s."""
LARGEST_FACTOR = 14.0
"""Beyond this epsilon, e^epsilon (a million) is not printed."""


def headline_content(run: RunView) -> Content:
    """Name, status, figures, promise and its limits."""
    return {
        "name": run.name,
        "status": str(run.fact("status", "unknown")),
        "reason": str(run.fact("status_reason", "")),
        "stopped": run.fact("status") == "stopped",
        "about": about_run(run),
        "figures": headline_figures(run),
        "promise": promise_words(run),
        "limits": limit_words(run),
        "unfinished": unfinished_words(run),
        "together": together_words(run),
        "guarantee": list(run.fact("guarantee", [])) if run.unit is not Unit.NONE else [],
        "caveats": list(run.fact("caveats", [])),
    }


SECTION = Section("headline", "Result", headline_content)


def about_run(run: RunView) -> list[str]:
    """Short facts for the line under the name."""
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
    """The numbers that a reader looks for first, each with its name and what it is of."""
    planned = run.fact("rounds_planned")
    found = [
        (f"Test {run.metric.title}", format_metric(run.metric, run.last(run.metric.test_key)), metrics_note(run)),
        ("Epsilon", epsilon_words(run), _epsilon_note(run)),
        ("Protected", protected_subjects(run), _adjacency_words(run)),
        ("Clients", format_count(run.fact("clients")), clients_note(run)),
        ("Rounds", format_count(run.rounds_done), f"of {format_count(planned)} planned" if planned else ""),
        ("Releases", format_count(len(run.ledger)), "in the ledger"),
    ]
    return [{"name": name, "value": value, "note": note} for name, value, note in found]


def metrics_note(run: RunView) -> str:
    """The task's other metrics, and the loss where it is none of them."""
    others = [(metric, run.last(metric.test_key)) for metric in run.metrics[1:]]
    if run.metric.name != "loss":
        others.append((METRICS["loss"], run.last("test_loss")))
    return ", ".join(f"{metric.title} {format_metric(metric, value)}" for metric, value in others if value is not None)


def clients_note(run: RunView) -> str:
    """The decile of the clients at the worse end, and the worst with the number of examples that say so."""
    metric = run.metric
    worst, most = run.last(metric.client_key("worst")), run.last(metric.client_key("decile"))
    examples = run.last("client_worst_examples")
    if worst is None:
        return ""
    of = f" (of {format_plural(int(examples), 'example')})" if examples else ""
    return (
        f"{metric.decile_title} {format_metric(metric, most)}, " if most is not None else ""
    ) + f"worst {format_metric(metric, worst)}{of}"


def epsilon_words(run: RunView) -> str:
    """The headline's epsilon: rounded up, or the plain word that there is none."""
    if run.unit is Unit.NONE:
        return "none"
    return NONE if run.epsilon is None else format_upper(run.epsilon)


def _epsilon_note(run: RunView) -> str:
    if run.unit is Unit.NONE or (run.epsilon is not None and math.isinf(run.epsilon)):
        return "no guarantee"
    target = run.fact("target_epsilon")
    words = f"at δ = {format_short(run.delta)}" if run.delta else ""
    return words + (f", target {format_short(target)}" if target else "")


def protected_subjects(run: RunView) -> str:
    """Whom the guarantee is for."""
    return {Unit.CLIENT: "each client", Unit.SAMPLE: "each example", Unit.NONE: "nobody"}[run.unit]


def _adjacency_words(run: RunView) -> str:
    if run.unit is Unit.NONE:
        return "no noise was added"
    return {Adjacency.ADD_REMOVE: "added or removed", Adjacency.REPLACE: "exchanged for any other"}.get(
        run.fact("adjacency"), ""
    )


def promise_words(run: RunView) -> list[str]:
    """What the guarantee means, in a few sentences; the first is set larger."""
    if run.unit is Unit.NONE:
        return [
            "There is no privacy guarantee.",
            "The models were published without noise: an observer may learn anything that they reveal.",
        ]
    if run.epsilon is None:
        return ["The run has not yet stated an epsilon, so nothing is promised here."]
    if math.isinf(run.epsilon):
        against = ", ".join(kind for kind, epsilon in run.spent.items() if math.isinf(epsilon))
        return [f"There is no privacy guarantee against {against}.", "Something reached them without noise."]
    powers = {kind: most_hits(run, kind) for kind in run.spent}
    strength = strength_words(run.epsilon, max(powers.values()), observer_question(run))
    return [strength, test_power_words(powers, run.delta or 0.0), factor_words(run.epsilon, run.delta or 0.0)]


def observer_question(run: RunView) -> str:
    """What an observer must not find out."""
    if run.fact("adjacency") == Adjacency.REPLACE:
        return (
            f"which of two sets of data any one {run.who} held" if run.who == "client" else "what any one example was"
        )
    return "whether any one client took part" if run.who == "client" else "whether any one example was used"


def strength_words(epsilon: float, power: float, question: str) -> str:
    """The guarantee in one sentence: by the power of the best test, and "hardly" only up to epsilon 1."""
    if epsilon <= 1 and power <= HARDLY:
        return f"An observer of every published model can hardly tell {question}."
    if power <= LIMITED:
        return f"An observer of every published model gets only limited evidence of {question}."
    return f"What the published models can tell about {question} is bounded, but the bound is loose."


def test_power_words(powers: Mapping[str, float], delta: float) -> str:
    """The best test's power against each kind of observer, rounded up; where it is next to everything, what would help.

    >>> test_power_words({"server": 0.2469, "public": 0.2469}, 1e-4)
    'In numbers: a test with 5 % false alarms finds at most 24.7 % of the true cases; a blind guess finds 5 %.'
    """
    blind = f"{100 * FALSE_ALARMS:g} %"
    kinds = defaultdict[str, list[str]](list)
    for kind, power in sorted(powers.items(), key=lambda one: -one[1]):
        kinds[_power_words(power) if power <= EMPTY else ""].append(kind)
    everything = kinds.pop("", [])
    words = []
    if everything:
        one, two = (_power_words(power_at_most(less, delta)) for less in (1.0, 2.0))
        words += [
            f"the bound does not keep a test with {blind} false alarms from finding almost every true case"
            + _against(everything, powers),
            f"at epsilon 1 it would find at most {one}, at epsilon 2 at most {two}",
        ]
    if kinds:
        (most, first), *rest = ((power, _against(some, powers)) for power, some in kinds.items())
        bounds = [f"{most} of the true cases{first}", *(power + against for power, against in rest)]
        words.append(f"a test with {blind} false alarms finds at most {', '.join(bounds)}")
    return f"In numbers: {'; '.join([*words, f'a blind guess finds {blind}'])}."


def _against(kinds: Sequence[str], powers: Mapping[str, float]) -> str:
    return "" if len(kinds) == len(powers) else f" ({', '.join(kinds)})"


def _power_words(power: float) -> str:
    return f"{format_upper(100 * power)} %"


def factor_words(epsilon: float, delta: float) -> str:
    """The definition with its numbers.

    >>> factor_words(8.0, 1e-3)
    'Any outcome is at most 2,981 times as likely in one case as in the other, plus δ = 0.001.'
    """
    if epsilon > LARGEST_FACTOR:
        return "At this epsilon an outcome may be almost certain in one case and almost impossible in the other."
    factor = format_upper(math.exp(epsilon), digits=4)
    return (
        f"Any outcome is at most {factor} times as likely in one case as in the other, plus δ = {format_short(delta)}."
    )


def power_at_most(epsilon: float, delta: float, false_alarms: float = FALSE_ALARMS) -> float:
    """The best power of a test between two neighbours: min(e^eps a + delta, 1 - e^-eps (1 - a - delta)).

    Reference: Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", Theorem 2.1.
    """
    grown = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    return min(1.0, grown, 1 - math.exp(-epsilon) * (1 - false_alarms - delta))


def most_hits(run: RunView, kind: str) -> float:
    """The best power of a test with `FALSE_ALARMS` against one kind of observer.

    Guarantees: an upper bound for every subject. The stated (epsilon, delta) gives one; so does each pair on the curve
    of a composition in the ledger, and the least of them holds. Curves are left out where the page states more than the
    ledger adds up to, because the ledger is then not the whole claim, and where there are more than `CURVES`.
    """
    stated = power_at_most(run.spent[kind], run.delta or 0.0)
    found = run.compositions_seen_by(kind)
    if not found or len(found) > CURVES or run.spent[kind] > (1 + 1e-6) * max(map(run.epsilon_of, found)):
        return stated
    curves = [run.curve_of(composed) for composed in found]
    return min(stated, max(1.0 if curve is None else curve.most_hits(FALSE_ALARMS) for curve in curves))


def limit_words(run: RunView) -> list[str]:
    """What the guarantee does not say."""
    if run.unit is Unit.NONE or run.epsilon is None or math.isinf(run.epsilon):
        return []
    found = ["It does not hide what is true of the whole population: a model may tell of people who never took part."]
    if run.unit is Unit.CLIENT:
        found.append("A person whose data are held by several clients is protected by less than this epsilon says.")
    else:
        found.append("A person with several examples is protected by less than this epsilon says.")
    if run.trusted:
        found.append(f"It does not bind those who are trusted: {', '.join(run.trusted)}.")
    return found


def together_words(run: RunView) -> str:
    """What the run and those that its model started from cost together; empty where it started from none."""
    found = run.together
    if found is None:
        return ""
    names = ", ".join(str(one["run_dir"]) for one in found["runs"])
    if found.get("unknown"):
        return f"Together with the runs this model started from: epsilon unknown. {found['unknown']}."
    who = "on the same data" if found["same_data"] else "whose clients are assumed to be the same"
    epsilon = math.inf if found["epsilon"] is None else float(found["epsilon"])
    return f"Together with {names}, {who}, which this model started from: epsilon {format_upper(epsilon)}."


def unfinished_words(run: RunView) -> str:
    """A word about releases of a round that has no metrics, or that the rounds' epsilon does not cover."""
    if not run.unfinished:
        more = any(run.spent[kind] > value * (1 + 1e-6) for kind, value in run.written.items())
        return "The ledger adds up to more than the last round wrote; the larger epsilon is shown." if more else ""
    return (
        f"The ledger holds {format_plural(run.unfinished, 'release')} of a round that is not finished "
        "or was broken off; epsilon counts them."
    )
