"""The command line: `sightline` and its commands, loaded when they are asked for; errors in one line."""

import os
import sqlite3
import sys
from importlib import import_module
from typing import NoReturn

import click

from sightline.errors import SightlineError, one_line, printable


def examples_epilog(*lines: str) -> str:
    """The epilog that shows these command lines, each given without its leading `sightline`.

    >>> examples_epilog("datasets").splitlines()[1:]
    ['Examples:', '  sightline datasets']
    """
    as_they_stand = "\b"  # click wraps a paragraph unless it opens with this
    return "\n".join([as_they_stand, "Examples:", *(f"  sightline {line}" for line in lines)])


COMMANDS = {
    "run": "train an experiment file; progress, a summary and report.html",
    "account": "epsilon of a scheme, or of an exported ledger",
    "calibrate": "the least noise that meets an epsilon",
    "audit": "attack what a file runs: a lower bound on epsilon beside the claimed one",
    "check-model": "whether a model treats examples apart, where the proof ends, what private steps cost",
    "groups": "epsilon of every pair of workers in overlapping groups",
    "sweep": "every combination of some settings and seeds, side by side",
    "compare": "runs side by side, with mean and spread over seeds",
    "serve": "a local web page over the runs folder",
    "report": "rebuild the report of a run directory",
    "flower": "the same experiment as a Flower app; sites with their own data and budget",
    "site": "approve an experiment for a site, see its budget, answer for it",
    "experiments": "the papers' figures and tables as files that run",
    "datasets": "what data is available, where it was looked for, how to get the rest",
    "completion": "a script that lets your shell complete commands, options and files",
}

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as shells know it."""

EXAMPLES = """
\b
Examples:
  sightline run examples/quickstart.toml
  sightline run examples/quickstart.toml --set privacy.epsilon=4 --json
  sightline account poisson --noise 1.0 --rate 0.01 --steps 10000 --delta 1e-5
"""


class Lazy(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"sightline.apps.cli.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Teach the nearest name when a command is mistyped."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from sightline.errors import did_you_mean, invalid

            invalid("command", args[0], "no such command", did_you_mean(args[0], list(COMMANDS)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Lazy, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sightline")
def sightline() -> None:
    """Federated learning in which privacy is accounted along every line of sight."""


def main() -> NoReturn:
    """Run the command line; every mistake of the user's is one line on stderr.

    Guarantees: no file or folder that a command makes can be written to by everybody, whatever the umask.
    """
    os.umask(os.umask(0o077) | 0o002)
    sys.path.insert(0, os.getcwd())
    sys.exit(run_arguments(sys.argv[1:]))


def run_arguments(arguments: list[str], group: click.Group | None = None) -> int:
    """Call the command line, or another group of commands, and return its exit code.

    0 done, 2 bad input, 3 budget spent, 130 Ctrl-C, 1 anything else.
    """
    try:
        result = (group or sightline).main(arguments, prog_name="sightline", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SightlineError as error:
        return _say_line(str(error), error.exit_code)
    except (sqlite3.DatabaseError, MemoryError) as error:
        return _say_line(
            f"{type(error).__name__}: the database cannot be read or written, or memory is full ({error})", 1
        )
    except click.UsageError as error:
        return _say_line(" ".join(error.format_message().split()) + _usage_hint(error), 2)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.Abort as stop:
        said = stop.__cause__.args if isinstance(stop.__cause__, KeyboardInterrupt) else ()
        return _say_line("; ".join(["interrupted", *map(str, said)]), INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return _say_line(one_line("file", error.filename, f"cannot be used ({error.strerror})"), 2)


def _usage_hint(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "sightline"
    return f"; see {path} --help"


def _say_line(line: str, code: int) -> int:
    click.echo(f"sightline: {printable(line)}", err=True)
    return code


if __name__ == "__main__":
    main()
