"""The officer's record of a run: the promise in lay words, who is trusted, what is not covered, how to verify it."""

import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

from sightline.apps.report.guarantee import (
    ALARMS,
    SightRow,
    about_run,
    limit_words,
    merge_alike,
    observer_question,
    promise_words,
    sight_rows,
    sight_terms,
    together_words,
    unfinished_words,
)
from sightline.apps.report.ledger_rows import LedgerRow, tell_ledger
from sightline.apps.report.page import render_page
from sightline.apps.report.run_view import Content, Frame, RunView
from sightline.apps.report.sections import clients_figures, machine_facts, privacy_facts, shown_facts, training_facts
from sightline.engine.record import replace_nonfinite
from sightline.errors import invalid
from sightline.events import Unit
from sightline.formatting import format_count, format_plural, write_whole

OFFICER = "officer.html"

PARAMETERS = {
    "unit": ("What is protected", "whom the promise is made to"),
    "adjacency": ("Worlds compared", "what an observer must tell apart"),
    "where": ("Noise is added", "the party that adds the noise sees the values without it"),
    "clip_norm": ("Limit of an update", "the most that one of them can move a model in one step (clip norm)"),
    "noise_multiplier": ("Noise, in limits", "the noise as a multiple of that limit; more noise protects more"),
    "noise_std": ("Noise", "the standard deviation of the noise"),
    "target_epsilon": ("Epsilon aimed at", "the epsilon that the noise was chosen for"),
    "delta": ("Delta", "the chance that the promise of epsilon does not hold"),
    "accountant": ("Adding up", "the method by which the cost of all releases is added up"),
    "noise": ("Random numbers", "where the noise comes from"),
}
"""Name and meaning of each privacy parameter, in lay words."""

VALUES = {
    ("unit", "client"): "one client with all its data",
    ("unit", "sample"): "one example (a record)",
    ("adjacency", "add_remove"): "with and without one",
    ("adjacency", "replace"): "one exchanged for any other",
    **{("where", name): f"by the {name}s" for name in ("client", "edge")} | {("where", "server"): "by the server"},
    ("accountant", "pld"): "privacy loss distributions",
    ("accountant", "rdp"): "Rényi differential privacy",
}
"""Values of parameters in lay words."""

FACTS = {
    "parameters": "numbers in the model",
    "MKL_CBWR": "setting of the arithmetic library",
    "sampling.clients": "clients taking part",
    "sampling.samples": "examples used in a step",
    "paths of local training": "",
}
"""Names of facts in lay words; "" leaves a fact out."""

FACTOR = ("a factor of e^epsilon, plus delta", "the factor in section 1, plus delta")
"""The formula in the sentences of a guarantee, and the words in its place."""

GLOSSARY = {
    "epsilon": "The most that an observer can learn of one client or example. At epsilon 1 an outcome is at most "
    "2.72 times as likely with it as without it, at epsilon 2 at most 7.39 times. 0 is nothing; ∞ is no limit.",
    "delta": "A small probability with which the limit of epsilon may be exceeded.",
    "client, example": "A client is a participant, such as a hospital or a phone, with all its data. An example is one "
    "record of its data. The promise is made to one of the two; this page says to which.",
    "observer": "A party that sees some of what is released: the server, other clients, the public.",
    "trusted": "A party that the promise does not bind, because it receives values before noise is added.",
    "release": "A value that left a participant. All are listed in the ledger, with what they reveal.",
    "ledger": "The list of all releases. Each entry is hashed with the one before, so that none can be changed or "
    "removed without changing the digest.",
    "attack": "A test by which an observer decides whether one client or example was used. A false alarm is a yes for "
    "one that was not used; a true case found is a yes for one that was.",
    "adjacency": "Which two worlds an attack must tell apart: with and without one, or with another in its place.",
    "noise": "Random numbers added to a value before it is released.",
    "clipping": "Scaling an update down to a fixed length, so that no client or example outweighs the noise.",
}


def officer_content(run: RunView) -> Content:
    """Return everything on the page."""
    rows, releases = sight_rows(run), tell_ledger(run.ledger, run.unit)
    return {
        "name": run.name,
        "status": str(run.fact("status", "unknown")),
        "about": about_run(run),
        "warnings": officer_warnings(run),
        "promise": promise_words(run),
        "lay": lay_words(run, rows) if run.unit is not Unit.NONE else [],
        "guarantee": [words.replace(*FACTOR) for words in run.fact("guarantee", [])],
        "sight": merge_alike(rows),
        "who": run.who,
        "terms": sight_terms(run),
        "trusted": [trust_words(run, name, releases) for name in run.trusted],
        "limits": [*limit_words(run), *map(str, run.fact("caveats", []))],
        "size": size_facts(run),
        "parameters": [
            (name, VALUES.get((name, value), value), *PARAMETERS.get(name, (name, "")))
            for name, value in shown_facts(privacy_facts(run))
        ],
        "training": plain_names(shown_facts(training_facts(run))),
        "machine": plain_names(shown_facts(machine_facts(run))),
        "releases": format_plural(len(run.ledger), "release"),
        "head": run.head,
        "commands": verify_commands(run),
        "glossary": GLOSSARY,
    }


def size_facts(run: RunView) -> list[tuple[str, str]]:
    """Return how many clients, examples and rounds the run had."""
    sizes, planned = [int(size) for size in run.fact("sizes", [])], run.fact("rounds_planned")
    rounds = format_count(run.rounds_done) + (f" of {format_count(planned)} planned" if planned else "")
    return [*clients_figures(run, sizes, 0)[: 2 if sizes else 1], ("Rounds", rounds)]


def plain_names(facts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the facts under lay names."""
    return [(plain.replace("_", " "), value) for name, value in facts if (plain := FACTS.get(name, name))]


def officer_warnings(run: RunView) -> list[str]:
    """Return what an officer must know before reading on."""
    warnings = [together_words(run), unfinished_words(run)]
    if run.unit is not Unit.NONE and run.fact("noise_source") == "seed":
        warnings.append(
            "This is a simulation: its noise follows from the seed, and who knows the seed can remove it. "
            'For real data set privacy.noise_source = "os".'
        )
    if added := run.fact("rounds_added"):
        words = f"{added} rounds were added after the planned ones had ended. Every epsilon here counts all rounds"
        target = run.fact("target_epsilon")
        warnings.append(words + ("." if target is None else f"; the epsilon of {target:g} in the settings does not."))
    return [words for words in warnings if words]


def lay_words(run: RunView, rows: list[SightRow]) -> list[str]:
    """Return what each untrusted observer can do, in sentences with natural frequencies; equal ones become one."""
    said = defaultdict[str, list[str]](list)
    for row in rows:
        if not row.trusted:
            said[_lay_sentence(run, row)].append(row.observer)
    return [f"{', '.join(observers)}: {sentence}" for sentence, observers in said.items()]


def _lay_sentence(run: RunView, row: SightRow) -> str:
    if row.epsilon == 0:
        return f"nothing reaches it that depends on any one {run.who}."
    if row.hits[-1] >= 1:
        return f"nothing limits what it can learn of any one {run.who}."
    # The row's own texts are rounded up: a sentence never promises more than the table.
    alarm, result = row.meters[-1]["alarms"], row.meters[-1]["text"].removesuffix(" %")
    return (
        f"suppose it guesses {observer_question(run)}, and is wrong about {alarm} of 100 for whom the answer is no. "
        f"Then it is right about at most {result} of 100 for whom the answer is yes. "
        f"A blind guess is right about {alarm}."
    )


def trust_words(run: RunView, name: str, rows: list[LedgerRow]) -> dict[str, Any]:
    """Return a trusted party, what it receives without noise, and whether it knows who was sampled."""
    received = [row for row in rows if row.clear and name in row.audience]
    with_what = [
        f"from {row.source} in rounds {row.when}: {row.what or 'a value'}, computed from the data of "
        + ("the sender" if row.of_itself else row.about)
        for row in received
    ]
    sampling = any(name in row.coins_known_to for row in rows)
    adds_noise = any(row.source == name and not row.clear for row in rows)
    duties = ["must not disclose what it receives"]
    duties += ["must keep secret who was sampled"] if sampling else []
    duties += ["must add the noise that this page states"] if adds_noise else []
    return {"name": name, "receives": with_what, "duties": duties}


def verify_commands(run: RunView) -> list[tuple[str, str]]:
    """Return commands, each with what it shows; they need this run directory and no data."""
    directory = shlex.quote(str(run.directory))
    subjects = sorted(frozenset[str]().union(*{release.subjects for release in run.ledger}))
    commands = [
        (f"sightline report {directory} --json", "checks every hash of the ledger and prints its digest (ledger_head)"),
        (f"sightline report {directory} --ledger ledger.json", "exports the ledger as one JSON file"),
    ]
    for kind, lines in run.lines.items():
        pairs = ((line, name) for line in lines for name in subjects if name not in {line.observer, *line.exempt})
        line, whose = next(pairs, (None, ""))
        if line is None or run.delta is None or run.unit is Unit.NONE:
            continue
        commands.append(
            (
                f"sightline account ledger ledger.json --subject {shlex.quote(whose)} "
                f"--observer {shlex.quote(line.observer)} --delta {run.delta!r} "
                f"--accountant {run.accountant.value}",
                f"adds up again what {kind} can learn of {whose}, from the exported ledger alone",
            )
        )
    return commands


def summarise_officer(run: RunView) -> dict[str, Any]:
    """Return the record as plain values; None stands for infinite."""
    content = officer_content(run)
    sight = [
        {
            "observer": row.observer,
            "trusted": row.trusted,
            "subjects": row.subjects,
            "epsilon": row.epsilon,
            "attack": {f"{alarms:g}": hits for alarms, hits in zip(ALARMS, row.hits, strict=True)},
        }
        for row in sight_rows(run)
    ]
    plain: dict[str, Any] = replace_nonfinite(
        {
            "page": str(run.directory / OFFICER),
            "warnings": content["warnings"],
            "promise": content["promise"] + content["lay"],
            "terms": content["terms"],
            "lines_of_sight": sight,
            "trusted": content["trusted"],
            "not_covered": content["limits"],
            "parameters": dict(shown_facts(privacy_facts(run))),
            "size": dict(content["size"]),
            "ledger": {"releases": len(run.ledger), "digest": run.head},
            "verify": [command for command, _ in content["commands"]],
            "glossary": GLOSSARY,
        }
    )
    return plain


def render_officer(run: RunView) -> str:
    """Return the page as text."""
    parts = [(Frame("officer", "Record"), officer_content(run))]
    return render_page(f"Privacy record of {run.name}", parts, version=run.fact("sightline_version", ""))


def write_officer(run: RunView) -> Path:
    """Write `officer.html` into the run directory, atomically, and return its path."""
    path = run.directory / OFFICER
    try:
        write_whole(path, render_officer(run))
    except OSError as error:
        invalid("--officer", path, f"cannot be written ({error.strerror})", "make the run directory writable")
    return path
