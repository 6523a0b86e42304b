"""A claim of a paper, what came out here, the verdict, and the command that shows it."""

from collections.abc import Iterable
from dataclasses import dataclass

HEADER = ("figure or table", "the paper", "here", "verdict", "command")


@dataclass(frozen=True)
class Claim:
    """One row of a system's table."""

    result: str
    paper: str
    here: str
    verdict: str
    command: str

    @property
    def cells(self) -> list[str]:
        """As the table shows it."""
        return [self.result, self.paper, self.here, self.verdict, f"`{self.command}`"]


def table(claims: Iterable[Claim]) -> str:
    """All of them in Markdown."""
    lines = [list(HEADER), ["---"] * len(HEADER), *(claim.cells for claim in claims)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def judged(holds: bool) -> str:
    """The two plain verdicts."""
    return "reproduced" if holds else "not reproduced"
