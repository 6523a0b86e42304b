"""Runs that are cut off, and everything a run leaves that must not depend on it."""

from sightline.engine import RunRecord


def left_behind(path):
    """The model's bytes, the ledger's bodies, every round's metrics without its seconds."""
    record = RunRecord.open(path)
    rounds = [{key: value for key, value in row.items() if key != "seconds"} for row in record.rounds()]
    bodies = [release.body() for release in record.ledger()]
    record.close()
    return (path / "model.safetensors").read_bytes(), bodies, rounds


class Crash(BaseException):
    """Stands for the power cut: nothing catches it."""


def crash_in(monkeypatch, module, name, call, *, before):
    """Let the `call`-th call of module.name crash, before or after doing its work."""
    real, calls = getattr(module, name), iter(range(1, 10**6))

    def crashing(*args, **kwargs):
        now = next(calls) == call
        if now and before:
            raise Crash
        result = real(*args, **kwargs)
        if now:
            raise Crash
        return result

    monkeypatch.setattr(module, name, crashing)
