"""Everything a run leaves that must not depend on interruptions."""

from sightline.engine.record import RunRecord


def left_behind(path):
    """The model's bytes, the ledger's bodies, every round's metrics without its seconds."""
    record = RunRecord.open(path)
    rounds = [{key: value for key, value in row.items() if key != "seconds"} for row in record.rounds()]
    bodies = [release.body() for release in record.ledger()]
    record.close()
    return (path / "model.safetensors").read_bytes(), bodies, rounds
