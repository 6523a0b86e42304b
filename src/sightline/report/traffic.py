"""What went over the wires, and how long it took."""

from sightline.report.numbers import floats_as_bytes, format_count, format_duration
from sightline.report.run import RunView
from sightline.report.section import Content, Section


def traffic_content(run: RunView) -> Content | None:
    """Totals and the mean of a round, for each direction."""
    if not run.rounds:
        return None
    done = len(run.rounds)
    rows = []
    for name, key in (("Clients to server", "uplink_floats"), ("Server to clients", "downlink_floats")):
        if any(value is not None for value in run.series(key)):
            total = run.total(key)
            rows.append((name, format_count(total), floats_as_bytes(total), floats_as_bytes(total / done)))
    seconds = run.fact("seconds") or run.total("seconds") or None
    if not rows and seconds is None:
        return None
    return {"rows": rows, "seconds": format_duration(seconds), "pace": format_duration(run.total("seconds") / done)}


TRAFFIC_SECTION = Section("traffic", "Traffic and time", traffic_content)
