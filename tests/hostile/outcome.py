"""What becomes of a hostile experiment file: an experiment that survives its own writing, or one line."""

from pathlib import Path

from sightline.config import read, to_toml
from sightline.errors import InvalidInput


def outcome(path: Path, text: str) -> str:
    """`experiment`, `one line`, or `crash: ...`."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        experiment = read(path)
        path.write_text(to_toml(experiment), encoding="utf-8")
        return "experiment" if read(path) == experiment else "crash: written and read it is another"
    except InvalidInput as error:
        return "one line" if "\n" not in str(error) and len(str(error)) < 1000 else "crash: not one short line"
    except Exception as error:
        return f"crash: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
