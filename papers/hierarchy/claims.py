"""What the H2FDP paper says of Figures 4, 6, 7 and 9, and what came out; Figures 5, 8 and 10 are in costs.py."""

from collections.abc import Iterable, Iterator
from statistics import fmean

from papers.findings import Finding, Point, Verdict
from papers.hierarchy.costs import find_savings, find_weights, saved_by_control
from papers.hierarchy.results import Row, accuracy_gain, by_seed, find_seeds, jump_size, mean_accuracy
from papers.hierarchy.words import (
    CLIPPED,
    CLIPPED_RUN,
    CNN_SETTING,
    CONTROLLED,
    COSTLY,
    DATA,
    DEVIATION,
    LONG_ALONE,
    LOUD_RUN,
    MODULE,
    NOISE_IS_SMALL,
    NOT_RUN,
    PRINTED,
    SEGMENTS,
    TRUE_COST,
    UNNAMED,
)
from papers.paired import Estimate, judge_difference, pair_by_seed

GAINS = {"fashion_mnist": (6.0, 3.0), "cifar10": (12.0, 8.0)}
"""Figure 4: points gained at p_c = .5, and how near p_c = 1 comes to no privacy."""
TRUST = {"fashion_mnist": (10.0, 25.0), "cifar10": (20.0, 40.0)}
"""Figure 6: points gained by trust in all edges, at the least and at epsilon = .5."""
SIZES = {"fashion_mnist": 42.0, "cifar10": 25.0}
"""Figure 7: points gained from 10 to 50 devices, at the most."""
BUDGETS = {"fashion_mnist": (13.0, 8.5), "cifar10": (20.0, 6.1)}
"""Figure 9: points lost from epsilon 1 to .5, gained from 1 to 1.5."""
Runs = dict[int, Row]


class Arms:
    """The cells of one data set by figure and name."""

    def __init__(self, rows: list[Row], data: str) -> None:
        self.rows, self.data, self.title = rows, data, DATA[data]

    def __getitem__(self, key: tuple[str, str]) -> Runs:
        return find_seeds(self.rows, *key, self.data)

    def has(self, figure: str, *names: str) -> bool:
        """Whether all of them were run."""
        return all(self[figure, name] for name in names)

    def command(self, parts: str) -> str:
        """What makes the numbers; those of CIFAR-10 are a part of their own."""
        return f"{MODULE} {parts}" if self.data == "fashion_mnist" else f"{MODULE} cifar"

    def at(self, epsilon: float, share: float) -> Runs:
        """The runs with this budget and this share of trusted edges."""
        named = {1.0: ("fig4", ""), 0.2: ("loud", ""), 1.5: ("fig9", "eps=1.5 ")}
        figure, before = named.get(epsilon, ("fig6", f"eps={epsilon:g} "))
        return self[figure, f"{before}p={share:g}"]

    def trust_gain(self, epsilon: float, share: float = 1.0) -> Estimate | None:
        """Points that trust in this share of the edges gains over trust in none."""
        none, some = self.at(epsilon, 0.0), self.at(epsilon, share)
        return accuracy_gain(none, some) if none.keys() & some.keys() else None


def list_findings(rows: list[Row]) -> list[Finding]:
    """Figure by figure."""
    found: list[Finding] = []
    for data in DATA:
        arms = Arms(rows, data)
        for part in (find_trust, find_budgets, find_networks, find_more_budget, find_single_steps, find_cnn):
            found += part(arms)
        found += find_savings(rows, data)
    found += [*find_weights(rows), *list_missing(rows)]
    return sorted(found, key=lambda one: (int(one.result.split()[1].rstrip(",")), one.result.endswith("CIFAR-10")))


def judge_regimes(paper: float, ours: Estimate, louder: Iterable[Estimate | None]) -> Verdict:
    """As `judge_difference`; where another amount of noise gives the paper's size, it depends on the regime."""
    plain = judge_difference(paper, ours)
    others = [judge_difference(paper, one) for one in louder if one is not None]
    return Verdict.REGIME if plain is not Verdict.REPRODUCED and Verdict.REPRODUCED in others else plain


def tell_gains(gains: dict[str, Estimate | None]) -> str:
    """Every gain that there is, with the regime it is from."""
    return "; ".join(f"{name}: {gain}" for name, gain in gains.items() if gain is not None)


def show_point(label: str, paper: float | None, ours: Estimate, published: Estimate | None = None) -> Point:
    """A line of the picture."""
    error = 0.0 if ours.error != ours.error else ours.error
    return Point(label, paper, ours.mean, error, None if published is None else published.mean)


def other_gain(arms: Arms, figure: str, share: float) -> Estimate | None:
    """What trust gains with Proposition 3.1's noise, with clipped steps, or over 200 intervals."""
    if not arms.has(figure, "p=0", f"p={share:g}"):
        return None
    return accuracy_gain(arms[figure, "p=0"], arms[figure, f"p={share:g}"])


def spent(arms: Arms) -> float:
    """The epsilon that Proposition 3.1's noise for epsilon 1 costs in truth."""
    return max((row["epsilon"] for row in arms["published", "p=0.5"].values()), default=float("nan"))


def find_trust(arms: Arms) -> Iterator[Finding]:
    """Figure 4."""
    if not arms.has("fig4", "HFL", "p=0", "p=0.5", "p=1"):
        return
    yield find_half(arms)
    yield find_whole(arms)
    yield find_shortfall(arms)
    jumps = {share: by_seed(arms.at(1.0, share), jump_size) for share in (0.0, 0.5, 1.0)}
    calmer = pair_by_seed(jumps[0.0], jumps[1.0])
    means = [fmean(jumps[share].values()) for share in (0.0, 0.5, 1.0)]
    yield Finding(
        f"Figure 4, {arms.title}",
        "the accuracy jumps less, the more edges are trusted",
        PRINTED[arms.data],
        "-",
        f"mean jump {means[0]:.2f} -> {means[1]:.2f} -> {means[2]:.2f} points at p_c = 0, .5, 1; from 0 to 1 {calmer}",
        Verdict.REPRODUCED if calmer.mean < 0 else Verdict.NOT_REPRODUCED,
        "" if calmer.mean < 0 else f"{NOISE_IS_SMALL} {LOUD_RUN}",
        arms.command("fig4"),
    )


def find_half(arms: Arms) -> Finding:
    """Figure 4: what trust in half of the edges gains."""
    paper, gain = GAINS[arms.data][0], accuracy_gain(arms["fig4", "p=0"], arms["fig4", "p=0.5"])
    louder = {f"epsilon {epsilon:g}": arms.trust_gain(epsilon, 0.5) for epsilon in (0.5, 0.2)}
    louder[CLIPPED] = other_gain(arms, "clipped", 0.5)
    long = other_gain(arms, "long", 0.5)
    as_printed = other_gain(arms, "published", 0.5)
    verdict = judge_regimes(paper, gain, [*louder.values(), as_printed])
    return Finding(
        f"Figure 4, {arms.title}",
        f"p_c = .5 gains {paper:g} points over HFL-DP",
        PRINTED[arms.data],
        "-" if as_printed is None else f"{as_printed}; {TRUE_COST.format(spent(arms))}",
        tell_gains({"epsilon 1": gain, "epsilon 1, k = 200": long, **louder}),
        verdict,
        "" if verdict is Verdict.REPRODUCED else f"{NOISE_IS_SMALL} {CLIPPED_RUN}",
        arms.command("fig4 fig6 loud clipped published long"),
        (
            show_point("gain at p_c = .5", paper, gain, as_printed),
            *(show_point(f"the same, {name}", paper, one) for name, one in louder.items() if one is not None),
        ),
    )


def find_whole(arms: Arms) -> Finding:
    """Figure 4: how many times that trust in all edges gains."""
    ratios = {}
    for epsilon in (1.0, 0.5, 0.2):
        half, whole = arms.trust_gain(epsilon, 0.5), arms.trust_gain(epsilon, 1.0)
        if half is not None and whole is not None and half.mean > 0:
            ratios[epsilon] = (
                whole.mean / half.mean,
                f"epsilon {epsilon:g}: {whole.mean / half.mean:.1f} times, {whole}",
            )
    half, whole = other_gain(arms, "published", 0.5), other_gain(arms, "published", 1.0)
    same = whole.mean / half.mean if half and whole and half.mean > 0 else None
    right = [1.5 <= ratio <= 2.5 for ratio, _ in ratios.values()]
    verdict = Verdict.REPRODUCED if 1.0 in ratios and right[0] else Verdict.REGIME if any(right) else Verdict.SAME_SIGN
    return Finding(
        f"Figure 4, {arms.title}",
        "at p_c = 1 the gain almost doubles",
        PRINTED[arms.data],
        "-" if same is None else f"{same:.1f} times, {whole}",
        "; ".join(said for _, said in ratios.values()),
        verdict,
        "" if verdict is Verdict.REPRODUCED else f"{NOISE_IS_SMALL} {LOUD_RUN}",
        arms.command("fig4 fig6 loud published"),
        (Point("p_c = 1 gains times p_c = .5", 2.0, ratios[1.0][0] if 1.0 in ratios else None, 0.0, same),),
    )


def find_shortfall(arms: Arms) -> Finding:
    """Figure 4: how near trust in all edges comes to no privacy."""
    paper = GAINS[arms.data][1]
    short = accuracy_gain(arms["fig4", "p=1"], arms["fig4", "HFL"])
    words = [
        f"{mean_accuracy(arms['fig4', 'HFL'])} without privacy, {mean_accuracy(arms['fig4', 'p=1'])}: short by {short}"
    ]
    if arms.has("long", "HFL", "p=1"):
        words.append(f"k = 200: short by {accuracy_gain(arms['long', 'p=1'], arms['long', 'HFL'])}")
    if arms.has("clipped", "no noise", "p=1"):
        lost = accuracy_gain(arms["clipped", "no noise"], arms["fig4", "HFL"])
        words.append(f"clipped steps of single examples without noise: short by {lost}")
        words.append(f"and with the noise that these need: {mean_accuracy(arms['clipped', 'p=1'])}")
    as_printed = None
    if arms.has("published", "p=1"):
        as_printed = accuracy_gain(arms["published", "p=1"], arms["fig4", "HFL"])
    holds = short.mean <= paper
    return Finding(
        f"Figure 4, {arms.title}",
        f"p_c = 1 comes within {paper:g} points of no privacy",
        PRINTED[arms.data],
        "-" if as_printed is None else f"short by {as_printed}; {TRUE_COST.format(spent(arms))}",
        "; ".join(words),
        Verdict.REPRODUCED if holds else Verdict.SAME_SIGN,
        "" if holds else f"the noise alone: what is missing falls with epsilon (`{MODULE} fig6`)",
        arms.command("fig4 clipped published long"),
        (show_point("p_c = 1 short of no privacy", paper, short, as_printed),),
    )


def find_budgets(arms: Arms) -> Iterator[Finding]:
    """Figure 6."""
    gains = {epsilon: arms.trust_gain(epsilon) for epsilon in (0.2, 0.5, 1.0, 4.0)}
    half, one, four = gains[0.5], gains[1.0], gains[4.0]
    if half is None or one is None or four is None:
        return
    least, much = TRUST[arms.data]
    here = tell_gains({f"epsilon {epsilon:g}": gain for epsilon, gain in gains.items()})
    title = f"Figure 6, {arms.title}"
    left = pair_by_seed(by_seed(arms.at(4.0, 0.0)), by_seed(arms["fig4", "HFL"]))
    cause = (
        f"there is no more to gain than noise takes away: at epsilon 4 trust in nobody is {left} short of no privacy "
        f"(`{MODULE} fig4 fig6`)"
    )
    as_printed = other_gain(arms, "published", 1.0)
    printed = "-" if as_printed is None else f"epsilon 1: {as_printed}; {TRUE_COST.format(spent(arms))}"
    clipped = other_gain(arms, "clipped", 1.0)
    here += f"; {CLIPPED}: {clipped}" if clipped else ""
    known = [gain for gain in (*gains.values(), clipped) if gain is not None]
    reached = [judge_difference(least, gain) is Verdict.REPRODUCED for gain in known]
    sign = Verdict.SAME_SIGN if min(gain.mean for gain in known) > 0 else Verdict.NOT_REPRODUCED
    word = Verdict.REPRODUCED if all(reached) else Verdict.REGIME if any(reached) else sign
    points = tuple(show_point(f"epsilon {e:g}", least, gain) for e, gain in gains.items() if gain is not None)
    claim = f"trust in all edges gains at least {least:g} points"
    why = "" if word is Verdict.REPRODUCED else cause
    yield Finding(title, claim, PRINTED[arms.data], printed, here, word, why, arms.command("fig4 fig6 loud"), points)
    claim = f"{much:g} points at epsilon = .5"
    word = judge_regimes(much, half, [gains[0.2], clipped])
    why = "" if word is Verdict.REPRODUCED else f"{NOISE_IS_SMALL} {CLIPPED_RUN}"
    yield Finding(title, claim, PRINTED[arms.data], "-", here, word, why, arms.command("fig6 loud clipped"))


def find_networks(arms: Arms) -> Iterator[Finding]:
    """Figure 7."""
    if not arms.has("fig7", "2x5", "6x5", "2x15", "2x25") or not arms.at(1.0, 0.5):
        return
    small, wide, large = arms["fig7", "2x5"], arms.at(1.0, 0.5), arms["fig7", "2x25"]
    more, larger = accuracy_gain(small, wide), accuracy_gain(small, large)
    best, most = max((more, larger), key=lambda gain: gain.mean), SIZES[arms.data]
    loud = accuracy_gain(arms["loud", "2x5"], arms["loud", "2x25"]) if arms.has("loud", "2x5", "2x25") else None
    word = judge_regimes(most, best, [loud])
    cause = f"ten devices already reach {mean_accuracy(small)} at epsilon 1: {NOISE_IS_SMALL} {LOUD_RUN}"
    title, command = f"Figure 7, {arms.title}", arms.command("fig4 fig7 loud")
    yield Finding(
        title,
        f"from 10 to 50 devices the accuracy gains up to {most:g} points",
        PRINTED[arms.data],
        "-",
        tell_gains({"more subnets": more, "larger subnets": larger, "larger subnets, epsilon .2": loud}),
        word,
        "" if word is Verdict.REPRODUCED else cause,
        command,
        (show_point("10 -> 50 devices, at the most", most, best),),
    )
    ahead = accuracy_gain(wide, large)
    thirty = accuracy_gain(arms["fig7", "6x5"], arms["fig7", "2x15"])
    holds = ahead.mean > 0
    yield Finding(
        title,
        "larger subnets beat more subnets",
        PRINTED[arms.data],
        "-",
        f"50 devices: {ahead}; 30 devices: {thirty}",
        Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED,
        "" if holds else f"with one trusted subnet of 25 devices the untrusted half has the same noise (`{command}`)",
        command,
        (show_point("larger against more, 50 devices", None, ahead), show_point("30 devices", None, thirty)),
    )


def find_more_budget(arms: Arms) -> Iterator[Finding]:
    """Figure 9."""
    less, one, more = (arms.at(epsilon, 0.5) for epsilon in (0.5, 1.0, 1.5))
    if not (less and one and more):
        return
    down, up = accuracy_gain(one, less), accuracy_gain(one, more)
    fifth = arms.at(0.2, 0.5)
    louder = (accuracy_gain(one, fifth), accuracy_gain(fifth, less)) if fifth else (None, None)
    lost, won = BUDGETS[arms.data]
    title, command = f"Figure 9, {arms.title}", arms.command("fig4 fig6 fig9 loud")
    for claim, paper, ours, other, named in (
        (f"epsilon from 1 to .5 costs {lost:g} points", -lost, down, louder[0], "from 1 to .2"),
        (f"epsilon from 1 to 1.5 gains {won:g} points", won, up, louder[1], "from .2 to .5"),
    ):
        word = judge_regimes(paper, ours, [other])
        left = accuracy_gain(one, arms["fig4", "HFL"])
        cause = f"at epsilon 1 the noise costs {left} in all, and it weighs more below (`{command}`)"
        here = tell_gains({claim.split(" points")[0].rsplit(" ", 2)[0]: ours, f"epsilon {named}": other})
        why = "" if word is Verdict.REPRODUCED else cause
        points = (show_point(claim.split(" points")[0], paper, ours),)
        yield Finding(title, claim, PRINTED[arms.data], "-", here, word, why, command, points)


def find_single_steps(arms: Arms) -> Iterator[Finding]:
    """Figure 4 with clipped steps, every one of them released: a deviation that closes most of the distance."""
    if not arms.has("single", "HFL", "p=0", "p=1") or not arms.has("clipped", "p=0", "p=1"):
        return
    paper = GAINS[arms.data][1]
    short, five = (accuracy_gain(arms[figure, "p=1"], arms["single", "HFL"]) for figure in ("single", "clipped"))
    yield Finding(
        f"Figure 4, clipped, {arms.title}",
        f"p_c = 1 comes within {paper:g} points of no privacy, with a guarantee for any model",
        f"{PRINTED[arms.data]}; {DEVIATION}",
        "-",
        f"an aggregation after every step: {mean_accuracy(arms['single', 'p=1'])}, short by {short}; every 5 steps, as "
        f"printed: {mean_accuracy(arms['clipped', 'p=1'])}, short by {five}",
        judge_shortfall(paper, short, five),
        SEGMENTS,
        f"{MODULE} single clipped",
        (
            show_point("short of no privacy, released every step", paper, short),
            show_point("the same, every 5 steps", paper, five),
        ),
    )
    gain, before = (other_gain(arms, figure, 1.0) for figure in ("single", "clipped"))
    if gain is not None and before is not None:
        paper = 2 * GAINS[arms.data][0]
        word = judge_regimes(paper, gain, [before])
        yield Finding(
            f"Figure 4, clipped, {arms.title}",
            f"p_c = 1 gains about {paper:g} points over HFL-DP (almost twice {paper / 2:g})",
            f"{PRINTED[arms.data]}; {DEVIATION}",
            "-",
            f"an aggregation after every step: {gain}; every 5 steps: {before}",
            word,
            "" if word is Verdict.REPRODUCED else f"little noise leaves trust little to gain: {SEGMENTS}",
            f"{MODULE} single clipped",
            (show_point("gain at p_c = 1, released every step", paper, gain),),
        )


def judge_shortfall(paper: float, ours: Estimate, other: Estimate | None) -> Verdict:
    """Within the paper's distance as printed and otherwise, in one of both, or in neither."""
    near = [one is not None and one.mean <= paper for one in (ours, other)]
    if all(near):
        return Verdict.REPRODUCED
    return Verdict.REGIME if any(near) else Verdict.NOT_REPRODUCED


def find_cnn(arms: Arms) -> Iterator[Finding]:
    """Figure 4 with a loss that is not convex."""
    if not arms.has("cnn", "HFL", "p=0", "p=1"):
        return
    paper, limit = GAINS[arms.data]
    setting, command = CNN_SETTING[arms.data], f"{MODULE} {'cnn' if arms.data == 'fashion_mnist' else 'cnn-cifar'}"
    title, reached = f"Figure 4, CNN, {arms.title}", mean_accuracy(arms["cnn", "p=1"])
    short, gain = (
        accuracy_gain(arms["cnn", "p=1"], arms["cnn", "HFL"]),
        accuracy_gain(arms["cnn", "p=0"], arms["cnn", "p=1"]),
    )
    five = accuracy_gain(arms["cnn", "five p=1"], arms["cnn", "HFL"]) if arms.has("cnn", "five p=1") else None
    here = f"an aggregation after every step: {reached}, short by {short}"
    if five is not None:
        here += f"; every 5 steps, as printed: {mean_accuracy(arms['cnn', 'five p=1'])}, short by {five}"
    if arms.has("cnn", "client p=1"):
        here += f"; noise for whole devices: {mean_accuracy(arms['cnn', 'client p=1'])}"
    cause = SEGMENTS
    if arms.has("cnn", "no noise"):
        lost = accuracy_gain(arms["cnn", "no noise"], arms["cnn", "HFL"])
        here += f"; clipped, no noise: {mean_accuracy(arms['cnn', 'no noise'])}"
        cause = f"clipping alone costs {lost}, the rest is noise (`{command}`); every 5 steps: {SEGMENTS}"
    word = judge_shortfall(limit, short, five)
    yield Finding(
        title,
        f"not convex: p_c = 1 comes within {limit:g} points of no privacy",
        setting,
        "-",
        here,
        word,
        "" if word is Verdict.REPRODUCED else cause,
        command,
        (show_point("CNN, p_c = 1 short of no privacy", limit, short),),
    )
    other = (
        accuracy_gain(arms["cnn", "five p=0"], arms["cnn", "five p=1"])
        if arms.has("cnn", "five p=0", "five p=1")
        else None
    )
    half = accuracy_gain(arms["cnn", "p=0"], arms["cnn", "p=0.5"]) if arms.has("cnn", "p=0.5") else None
    told = {"p_c = 1, every step": gain, "p_c = .5, every step": half, "p_c = 1, every 5 steps": other}
    word = judge_regimes(2 * paper, gain, [other])
    yield Finding(
        title,
        f"not convex: p_c = 1 gains about {2 * paper:g} points over HFL-DP (almost twice {paper:g})",
        setting,
        "-",
        tell_gains(told),
        word,
        "" if word is Verdict.REPRODUCED else f"the gain is what noise takes away: {SEGMENTS}",
        command,
        (show_point("CNN, gain at p_c = 1", 2 * paper, gain),),
    )


def list_missing(rows: list[Row]) -> Iterator[Finding]:
    """What of the figures was not run, each with the command that comes nearest."""
    missing = [(figure, claim, "cnn", COSTLY) for figure, claim in NOT_RUN.items()]
    missing.append(("Figure 4", "a CNN of 12 layers", "cnn", UNNAMED))
    missing.append(("Figure 4, CIFAR-10", "k = 200, the paper's number of intervals", "long", LONG_ALONE))
    if not Arms(rows, "fashion_mnist").has("cnn", "p=0.5", "PEDPFL"):
        missing.append(("Figure 4, CNN, Fashion-MNIST", "p_c = .5, and PEDPFL", "cnn", COSTLY))
    if not Arms(rows, "cifar10")["cnn", "p=1"]:
        missing.append(("Figure 4, CNN, CIFAR-10", "a loss that is not convex", "cnn-cifar", COSTLY))
    for result, claim, part, cause in missing:
        command = f"{MODULE} {part}"
        yield Finding(result, claim, "-", "-", "-", Verdict.NOT_RUN, f"{cause} (`{command}`)", command)


def tell_other_losses(rows: list[Row]) -> Iterator[str]:
    """What holds without a convex loss."""
    arms = Arms(rows, "fashion_mnist")
    if arms.has("single", "HFL", "p=0", "p=1") and arms.has("clipped", "p=1"):
        best, whole, none = (mean_accuracy(arms["single", name]).mean for name in ("HFL", "p=1", "p=0"))
        printed = mean_accuracy(arms["clipped", "p=1"]).mean
        yield (
            f"With clipped steps, the guarantee for any model, the printed aggregation every five steps reaches "
            f"{printed:.1f}%, and one after every step {whole:.1f}% against {best:.1f}% without privacy; there trust "
            f"gains {whole - none:.1f} points, because there is little noise."
        )
    if arms.has("cnn", "HFL", "p=0", "p=1"):
        best, whole, none = (mean_accuracy(arms["cnn", name]).mean for name in ("HFL", "p=1", "p=0"))
        gain = accuracy_gain(arms["cnn", "p=0"], arms["cnn", "p=1"])
        short = accuracy_gain(arms["cnn", "p=1"], arms["cnn", "HFL"])
        five = arms["cnn", "five p=1"]
        yield (
            f"With a small CNN, whose loss is not convex, an aggregation after every step reaches {whole:.1f}% at p_c = 1 "
            f"and {none:.1f}% at p_c = 0 against {best:.1f}% without privacy: trust gains {gain} points (the "
            f"paper: about {2 * GAINS['fashion_mnist'][0]:g}), the distance is {short} (the paper: "
            f"{GAINS['fashion_mnist'][1]:g})"
            + (f"; with the printed five steps it reaches {mean_accuracy(five).mean:.1f}%." if five else ".")
        )


def say_to_authors(rows: list[Row]) -> tuple[str, str, str]:
    """What an author of the paper would want to read first."""
    arms = Arms(rows, "fashion_mnist")
    best, whole, none = (mean_accuracy(arms["fig4", name]).mean for name in ("HFL", "p=1", "p=0"))
    printed, _ = saved_by_control(rows, "fashion_mnist", "p=0.5", 0.70, published=True)
    energy, _ = saved_by_control(rows, "fashion_mnist", "p=0.5", 0.75)
    loud = arms.trust_gain(0.2)
    told = ["nothing" if one is None else f"{one.mean:.0f}%" for one in (printed, energy)]
    convex = (
        f"For a convex loss the headline holds with a proven guarantee: softmax regression reaches {whole:.1f}% at "
        f"epsilon 1 with all edges trusted against {best:.1f}% without privacy, because its segments need no clipping and "
        "far less noise. The paper is about losses that are not convex."
    )
    return (
        " ".join((convex, *tell_other_losses(rows))),
        f"Trust matters as much as noise does: p_c = 1 gains {whole - none:.1f} points over p_c = 0 at epsilon 1"
        + ("." if loud is None else f" and {loud.mean:.1f} at epsilon .2."),
        f"Proposition 3.1's noise for epsilon 1 costs epsilon {spent(arms):.0f} in truth; {CONTROLLED.format(*told)}",
    )
