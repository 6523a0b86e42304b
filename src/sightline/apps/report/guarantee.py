"""The top of the report: results, the guarantee in plain words, and events explained."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import singledispatch

from sightline.apps.report.elements import (
    NONE,
    Content,
    Section,
    format_count,
    format_duration,
    format_metric,
    format_plural,
    format_short,
    format_upper,
)
from sightline.apps.report.run_view import RunView
from sightline.events import (
    Adjacency,
    Allocation,
    Clear,
    ConvexSegment,
    Event,
    Exponential,
    FixedCohort,
    Gaussian,
    Poisson,
    Pooled,
    PooledDraws,
    Product,
    Pure,
    Repeat,
    ReplacedSegment,
    Segment,
    Split,
    Unit,
    WithoutReplacement,
    to_json,
)
from sightline.formatting import METRICS, digits_down, digits_up
from sightline.ledger import NOBODY, Parties, Release, write_parties

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


@singledispatch
def explain_event(event: Event, who: str = "subject") -> str:
    """Return what an event did, in words; `who` is the sampled unit.

    >>> explain_event(Poisson(0.5, Gaussian(1.2)), who="client")
    'Gaussian noise, z = 1.2, each client sampled in secret with probability 0.5'
    """
    # The fallback for event types without their own words, such as those of plugins.
    plain = to_json(event)
    settings = ", ".join(f"{name} = {value}" for name, value in plain.items() if name != "kind")
    return str(plain["kind"]).replace("_", " ") + (f" ({settings})" if settings else "")


@explain_event.register
def _(event: Gaussian, who: str = "subject") -> str:
    return f"Gaussian noise, z = {digits_down(event.noise_multiplier, 4)}"


@explain_event.register
def _(event: Clear, who: str = "subject") -> str:
    return "without noise"


@explain_event.register
def _(event: Pure, who: str = "subject") -> str:
    return f"pure differential privacy, ε = {digits_up(event.epsilon, 4)}"


@explain_event.register
def _(event: Exponential, who: str = "subject") -> str:
    return f"a choice by the exponential mechanism, ε = {digits_up(event.epsilon, 4)}"


@explain_event.register
def _(event: Poisson, who: str = "subject") -> str:
    inside = explain_event(event.event, who)
    return f"{inside}, each {who} sampled in secret with probability {format_short(event.rate, 4)}"


@explain_event.register(WithoutReplacement)
@explain_event.register(FixedCohort)
def _(event: WithoutReplacement | FixedCohort, who: str = "subject") -> str:
    return (
        f"{explain_event(event.event, who)}, a hidden cohort of exactly {event.cohort:,} of {event.population:,} {who}s"
    )


@explain_event.register
def _(event: Split, who: str = "subject") -> str:
    return f"{explain_event(event.event, who)}, each {who} hidden in one of {format_count(event.parts)} parts"


@explain_event.register
def _(event: Allocation, who: str = "subject") -> str:
    hidden = f"each {who} in exactly {format_count(event.uses)} of {format_count(event.steps)} steps, a hidden choice"
    return f"{explain_event(event.event, who)}, {hidden}"


@explain_event.register
def _(event: Pooled, who: str = "subject") -> str:
    return f"{explain_event(event.event, who)}, in a sum with the noise of {format_count(event.noises)} {who}s"


@explain_event.register
def _(event: Segment | ReplacedSegment, who: str = "subject") -> str:
    steps = "1 hidden step" if event.steps == 1 else f"{format_count(event.steps)} hidden steps"
    inside = f"each {who} sampled in secret with probability {format_short(event.rate, 4)} at every step"
    first = f"{format_short(event.first_step, 4)} of a step's effect at its first draw"
    other = "" if isinstance(event, Segment) else f", for any other {who} in its place"
    return f"{explain_event(event.event, who)}, the end of {steps} in a ball, {inside}, {first}{other}"


@explain_event.register
def _(event: ConvexSegment, who: str = "subject") -> str:
    steps = "1 hidden step" if event.steps == 1 else f"{format_count(event.steps)} hidden steps"
    inside = f"each {who} sampled in secret with probability {format_short(event.rate, 4)} at every step"
    return f"{explain_event(event.event, who)}, the end of {steps} of a convex objective, {inside}"


@explain_event.register
def _(event: PooledDraws, who: str = "subject") -> str:
    drawn = f"each of {format_count(event.others + 1)} sends with probability {format_short(event.rate, 4)}"
    return f"{explain_event(event.event, who)}, in a sum with the noise of the other {who}s who send: {drawn}"


@explain_event.register
def _(event: Repeat, who: str = "subject") -> str:
    return f"{format_count(event.times)} times: {explain_event(event.event, who)}"


@explain_event.register
def _(event: Product, who: str = "subject") -> str:
    if not event.events:
        return "nothing new: worked out from earlier releases alone"
    return "together: " + "; ".join(explain_event(part, who) for part in event.events)


def sentence_shape(words: str) -> str:
    """Return the words without their numbers: explanations of one shape can be merged."""
    return NUMBER.sub("#", words)


def told_as_one(explanations: Collection[str]) -> str:
    """Merge explanations of one shape into one, with the range of each number that differs.

    >>> told_as_one(["Gaussian noise, z = 1.2", "Gaussian noise, z = 0.8", "Gaussian noise, z = 1"])
    'Gaussian noise, z = 0.8 to 1.2'
    """
    texts = sorted(set(explanations))
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([sorted(set(column), key=_number_in) for column in columns])

    def spanned(_: re.Match[str]) -> str:
        found = next(ranges)
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    return NUMBER.sub(spanned, texts[0])


def _number_in(text: str) -> float:
    return float(text.replace(",", ""))


Key = tuple[str, str, str, Parties, int, Parties]


@dataclass
class LedgerRow:
    """Releases of one kind: source, content, subjects, protection, audience, rounds and count."""

    what: str
    audience: Parties
    peers: int
    coins_known_to: Parties
    clear: bool
    of_itself: bool
    first: int
    last: int
    sources: set[str] = field(default_factory=set)
    subjects: set[Parties] = field(default_factory=set)
    explanations: set[str] = field(default_factory=set)
    count: int = 0

    @property
    def source(self) -> str:
        """Return who published it."""
        return write_parties(frozenset(self.sources))

    @property
    def about(self) -> str:
        """Return whose data it depends on."""
        if self.of_itself:
            return "itself" if len(self.sources) == 1 else "each of itself"
        everyone = write_parties(NOBODY.union(*self.subjects)) or "nobody"
        sizes = sorted(len(some) for some in self.subjects)
        span = (
            format_count(sizes[0])
            if sizes[0] == sizes[-1]
            else f"{format_count(sizes[0])} to {format_count(sizes[-1])}"
        )
        return everyone if len(self.subjects) == 1 else f"{everyone}, {span} at a time"

    @property
    def seen_by(self) -> str:
        """Return who saw it; peers are others of the senders' own kind."""
        peers = "the others" if self.peers == len(self.sources) - 1 else f"{format_count(self.peers)} of the others"
        words = [peers] if self.peers and self.of_itself else []
        return ", ".join(filter(None, [*words, write_parties(self.audience)])) or "nobody"

    @property
    def how(self) -> str:
        """Return how it was protected, and who knows the sampling draws."""
        words = told_as_one(self.explanations)
        return words + (f"; sampling known to {write_parties(self.coins_known_to)}" if self.coins_known_to else "")

    @property
    def when(self) -> str:
        """Return the rounds in which it was made."""
        return (
            format_count(self.first)
            if self.first == self.last
            else f"{format_count(self.first)}–{format_count(self.last)}"
        )

    def take(self, release: Release, words: str) -> None:
        """Add one more release of this kind."""
        self.count += 1
        self.first, self.last = min(self.first, release.time), max(self.last, release.time)
        self.sources.add(release.source)
        self.explanations.add(words)
        if not self.of_itself:
            self.subjects.add(release.subjects)


class _Teller:
    """Groups releases into rows; costly work is done once per distinct event and audience."""

    def __init__(self, unit: Unit) -> None:
        self.who = "example" if unit is Unit.SAMPLE else "client"
        self.rows: dict[Key, LedgerRow] = {}
        self._words: dict[Event, tuple[str, str]] = {}
        self._audiences: dict[tuple[str, Parties], tuple[Parties, int]] = {}

    def add(self, release: Release) -> None:
        """Add a release to the row of its kind."""
        words, form = self._words.get(release.event) or self._explain_event(release.event)
        # Releases of many clients about themselves become one row; their sources are listed by kind.
        of_itself = release.subjects == {release.source}
        source = kind_of(release.source) if of_itself else release.source
        rest, peers = self._split_audience(source, release) if of_itself else (release.audience, 0)
        key = (source, release.what, form, rest, peers, release.coins_known_to)
        if key not in self.rows:
            self.rows[key] = _start_row(release, rest, peers, of_itself)
        self.rows[key].take(release, words)

    def _explain_event(self, event: Event) -> tuple[str, str]:
        words = explain_event(event, self.who)
        return self._words.setdefault(event, (words, sentence_shape(words)))

    def _split_audience(self, kind: str, release: Release) -> tuple[Parties, int]:
        """Return the audience's members of other kinds, and the number of members of the sender's own kind."""
        key = (kind, release.audience)
        if key not in self._audiences:
            rest = frozenset(name for name in release.audience if kind_of(name) != kind)
            self._audiences[key] = (rest, len(release.audience) - len(rest))
        rest, peers = self._audiences[key]
        # The cache is shared by all senders of a kind; whether the sender is in its own audience is not.
        return rest, peers - (release.source in release.audience)


def _start_row(release: Release, audience: Parties, peers: int, of_itself: bool) -> LedgerRow:
    return LedgerRow(
        what=release.what,
        audience=audience,
        peers=peers,
        coins_known_to=release.coins_known_to,
        clear=holds_clear(release.event),
        of_itself=of_itself,
        first=release.time,
        last=release.time,
    )


def tell_ledger(releases: Iterable[Release], unit: Unit) -> list[LedgerRow]:
    """Return the rows, in the order in which their kinds first appeared."""
    teller = _Teller(unit)
    for release in releases:
        teller.add(release)
    return list(teller.rows.values())


def holds_clear(event: Event) -> bool:
    """Return whether anything in the event has no noise."""
    if isinstance(event, Product):
        return any(holds_clear(part) for part in event.events)
    inner = getattr(event, "event", None)
    return holds_clear(inner) if isinstance(inner, Event) else isinstance(event, Clear)


def kind_of(name: str) -> str:
    """Return the kind in a participant's name.

    >>> kind_of("client-12"), kind_of("server")
    ('client', 'server')
    """
    return re.sub(r"-\d+$", "", name)


FALSE_ALARMS = 0.05
"""False alarm rate at which the guarantee is put into words."""
EMPTY = 0.95
"""Power above which a bound is not worth a number."""
HARDLY, LIMITED = 0.15, 0.5
"""Powers up to which an observer "can hardly tell" and "gets limited evidence"; a blind guess has `FALSE_ALARMS`."""
CURVES = 40
"""Limit of distinct compositions for which trade-off curves are computed: one takes about 0.04 s."""
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
    """Return the task's other metrics, and the loss if it is not one of them."""
    others = [(metric, run.last(metric.test_key)) for metric in run.metrics[1:]]
    if run.metric.name != "loss":
        others.append((METRICS["loss"], run.last("test_loss")))
    return ", ".join(f"{metric.title} {format_metric(metric, value)}" for metric, value in others if value is not None)


def clients_note(run: RunView) -> str:
    """Return the decile of clients at the worse end, and the worst client with its number of examples."""
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
    """Return the headline's epsilon, rounded up, or "none"."""
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
    """Return whom the guarantee protects."""
    return {Unit.CLIENT: "each client", Unit.SAMPLE: "each example", Unit.NONE: "nobody"}[run.unit]


def _adjacency_words(run: RunView) -> str:
    if run.unit is Unit.NONE:
        return "no noise was added"
    return {Adjacency.ADD_REMOVE: "added or removed", Adjacency.REPLACE: "exchanged for any other"}.get(
        run.fact("adjacency"), ""
    )


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
        kinds[_power_words(power) if power <= EMPTY else ""].append(kind)
    everything = kinds.pop("", [])
    words = []
    # One (epsilon, delta) bounds almost nothing from about epsilon 4: say so, and which epsilon would help.
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


def power_at_most(epsilon: float, delta: float, false_alarms: float = FALSE_ALARMS) -> float:
    """Return the best power of a test between neighbouring data sets: min(e^eps a + delta, 1 - e^-eps (1 - a - delta)).

    Reference: Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", Theorem 2.1.
    """
    # exp overflows above 709.
    grown = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    return min(1.0, grown, 1 - math.exp(-epsilon) * (1 - false_alarms - delta))


def most_hits(run: RunView, kind: str) -> float:
    """Return the best power of a test with `FALSE_ALARMS` false alarms against one kind of observer.

    Guarantees: an upper bound for every subject. The stated (epsilon, delta) gives one; so does each pair on the curve
    of a composition in the ledger, and the least of them holds. Curves are not used if the page states more than the
    ledger adds up to, because the ledger is then not the whole claim, nor if there are more than `CURVES`.
    """
    # One pair (epsilon, delta) bounds the power badly; each composition proves a whole curve of pairs.
    stated = power_at_most(run.spent[kind], run.delta or 0.0)
    found = run.compositions_seen_by(kind)
    if not found or len(found) > CURVES or run.spent[kind] > (1 + 1e-6) * max(map(run.epsilon_of, found)):
        return stated
    curves = [run.curve_of(composed) for composed in found]
    return min(stated, max(1.0 if curve is None else curve.most_hits(FALSE_ALARMS) for curve in curves))


def limit_words(run: RunView) -> list[str]:
    """Return what the guarantee does not say."""
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
    """Return the joint cost of the run and the runs that its model started from, or ""."""
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
    """Return a note about releases of an unfinished round, or that the rounds' epsilon does not cover."""
    if not run.unfinished:
        # A tolerance for the arithmetic: the same composition accounted twice may differ in the last digits.
        more = any(run.spent[kind] > value * (1 + 1e-6) for kind, value in run.written.items())
        return "The ledger adds up to more than the last round wrote; the larger epsilon is shown." if more else ""
    return (
        f"The ledger holds {format_plural(run.unfinished, 'release')} of a round that is not finished "
        "or was broken off; epsilon counts them."
    )
