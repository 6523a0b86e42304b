"""The table of verdicts in certificate_verdicts.md.

python -m tests.models.certificate_table    prints it
"""

from pathlib import Path

from tests.models.certificate_cases import CASES

PAGE = Path(__file__).with_name("certificate_verdicts.md")


def table_lines() -> list[str]:
    """The lines of the table, certified modules first."""
    lines = ["| module | verdict | the proof ends at |", "|---|---|---|"]
    for case in sorted(CASES.values(), key=lambda case: case.objects is not None):
        words = f"{case.says[0].upper()}{case.says[1:]}".replace("|", "\\|")
        verdict = "certified" if case.objects is None else "not certified"
        lines.append(f"| {words} | {verdict} | {f'`{case.objects}`' if case.objects else ''} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table_lines()))
