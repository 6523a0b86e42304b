"""The command line: `sightline` and its commands, imported on first use, with every error on one line."""

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn, TextIO, get_args

import click

from sightline.errors import SightlineError, one_line, printable


def examples_epilog(*lines: str) -> str:
    """Return the epilog that shows these command lines, each given without its leading `sightline`.

    >>> examples_epilog("datasets").splitlines()[1:]
    ['Examples:', '  sightline datasets']
    """
    # click wraps a paragraph unless it starts with this character.
    as_they_stand = "\b"
    return "\n".join([as_they_stand, "Examples:", *(f"  sightline {line}" for line in lines)])


def set_option(help: str) -> Callable[[Any], Any]:
    """Return the option `--set`, which changes keys of the experiment and completes them in a shell."""
    return click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help=help, shell_complete=complete_keys
    )


def complete_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return keys of an experiment with their equals sign; after it, the values of a key that lists them."""
    from sightline.config.experiment_file import list_keys

    key, equals, start = incomplete.partition("=")
    if not equals:
        return [f"{known}=" for known in list_keys() if known.startswith(key)]
    kinds = _parts_of(list_keys()[key].annotation) if key in list_keys() else []
    values = [value for value in kinds if isinstance(value, str)] + (["true", "false"] if bool in kinds else [])
    return [f"{key}={value}" for value in values if value.startswith(start)]


def complete_over(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return keys and values for `--over`; after a comma, the values that are not yet named."""
    before, comma, last = incomplete.rpartition(",")
    if not comma:
        return complete_keys(ctx, param, incomplete)
    key, _, named = before.partition("=")
    values = [one.partition("=")[2] for one in complete_keys(ctx, param, f"{key}={last}")]
    return [f"{before},{value}" for value in values if value not in named.split(",")]


def _parts_of(annotation: Any) -> list[Any]:
    """Return the parts of an annotation: its alternatives, and the words of a Literal."""
    return [annotation, *(part for inner in get_args(annotation) for part in _parts_of(inner))]


COMMANDS = {
    "run": "train an experiment file; progress, a summary and report.html",
    "new": "write a commented experiment file to begin with",
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
    "server": "make a server for real sites, invite them, run an experiment on them",
    "site": "join a server, approve experiments for a site, see its budget, answer for it",
    "experiments": "the papers' figures and tables as files that run",
    "datasets": "what data is available, where it was looked for, how to get the rest",
    "completion": "a script that lets your shell complete commands, options and files",
}

HOMES = {
    "new": "info",
    "calibrate": "account",
    "groups": "account",
    "compare": "report",
    "sweep": "report",
    "serve": "report",
    "flower": "site",
    "experiments": "info",
    "datasets": "info",
    "completion": "info",
}
"""Commands that live in the module of another command."""

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells use it."""

END_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a command as Ctrl-C does, with the exit code 128 + signal."""

_received: list[int] = []
"""The signal that ended this process, if any."""

EXAMPLES = """
\b
Examples:
  sightline run examples/quickstart.toml
  sightline run examples/quickstart.toml --set privacy.epsilon=4 --json
  sightline account poisson --noise 1.0 --rate 0.01 --steps 10000 --delta 1e-5
"""


class Lazy(click.Group):
    """A command group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command and return the command, or None."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = import_module(f"sightline.apps.cli.{HOMES.get(cmd_name, name)}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; suggest the nearest name if it is mistyped."""
        # Checked here, so that an unknown command is one line in our form and not click's usage text.
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from sightline.errors import did_you_mean, invalid

            invalid("command", args[0], "no such command", did_you_mean(args[0], list(COMMANDS)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


class WholeSentences(click.Group):
    """A command group whose list of commands has whole first sentences, wrapped and not cut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every command with the first sentence of its help."""
        commands = [(name, self.commands[name].get_short_help_str(limit=1000)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(commands)


@click.group(cls=Lazy, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sightline")
def sightline() -> None:
    """Federated learning in which privacy is accounted along every line of sight."""


def main() -> NoReturn:
    """Run the command line; every user error is one line on stderr.

    Guarantees: no file or folder that a command makes is writable by others, whatever the umask.
    """
    # Keep the user's umask and add only the write bit for others.
    os.umask(os.umask(0o077) | 0o002)
    # The current folder may have been removed.
    with suppress(OSError):
        sys.path.insert(0, os.getcwd())
    # Before any command starts, so that a run ended by SIGTERM leaves a directory that can be resumed.
    heed_signals()
    escape_unprintable(sys.stdout)
    sys.exit(flush_output(run_arguments(sys.argv[1:])))


def heed_signals() -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, unless they are ignored, as under nohup."""
    for number in END_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt the command once; a second signal does not disturb its shutdown."""
    # Only the first signal interrupts: a second one in the middle of saving would leave a half-written state.
    if not _received:
        _received.append(number)
        raise KeyboardInterrupt


def end_words() -> str:
    """Return how an interrupted command ended."""
    return f"ended by {signal.Signals(_received[0]).name}" if _received else "interrupted"


def escape_unprintable(stream: TextIO | None) -> None:
    """Escape characters that the encoding of a stream lacks, where they would raise an error."""
    if stream is not None and getattr(stream, "errors", "") == "strict":
        stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined,unused-ignore]


def flush_output(code: int) -> int:
    """Flush the output and return the exit code, which becomes 1 if flushing fails and the command did not."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            # Python flushes again at exit and would report the same error a second time.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout:
                code = code or _end_by_failed_writing(error)
    return code


def run_arguments(arguments: list[str], group: click.Group | None = None) -> int:
    """Run the command line, or another group of commands, and return its exit code.

    0 success, 2 bad input, 3 budget, 130 Ctrl-C, 128 + the number of another signal, 1 anything else.
    """
    # click knows only KeyboardInterrupt; the exit code of the actual signal is restored here.
    code = _call_command(arguments, group or sightline)
    return 128 + _received[0] if code == INTERRUPTED and _received else code


def _call_command(arguments: list[str], group: click.Group) -> int:
    if "_SIGHTLINE_COMPLETE" in os.environ:
        # Registers our completion for bash.
        import_module("sightline.apps.cli.info")
    try:
        result = group.main(arguments, prog_name="sightline", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SightlineError as error:
        return _say_line(str(error), error.exit_code)
    except (sqlite3.DatabaseError, MemoryError) as error:
        return _say_line(
            f"{type(error).__name__}: the database cannot be read or written, or memory is full ({error})", 1
        )
    except click.UsageError as error:
        return _say_line(_usage_line(error, arguments), 2)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    # click turns KeyboardInterrupt into Abort; its message may say how to resume.
    except click.exceptions.Abort as stop:
        said = stop.__cause__.args if isinstance(stop.__cause__, KeyboardInterrupt) else ()
        return _say_line("; ".join([end_words(), *map(str, said)]), INTERRUPTED)
    except (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return _say_line(one_line("file", error.filename, f"cannot be used ({error.strerror})"), 2)
    except OSError as error:
        return _end_by_failed_writing(error)


def _end_by_failed_writing(error: OSError) -> int:
    """Return the exit code after a failed read or write; print one line, unless a reader closed the pipe."""
    # The terminal is gone, and with it the place for a message.
    if _received:
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return 1
    if error.filename is not None:
        return _say_line(one_line("file", error.filename, f"cannot be used ({error.strerror})"), 1)
    return _say_line(f"the output or a file: reading or writing failed ({error.strerror or error})", 1)


def _usage_line(error: click.UsageError, arguments: list[str]) -> str:
    """Return what is wrong and where to look; for an option that is a key of an experiment, how to set the key."""
    takes_set = error.ctx is not None and any(option.name == "overrides" for option in error.ctx.command.params)
    if isinstance(error, click.NoSuchOption) and takes_set:
        from sightline.config.experiment_file import find_keys, list_keys

        name = error.option_name.lstrip("-").replace("-", "_")
        if name == "dry_run" and error.ctx is not None and error.ctx.command.name == "run":
            return one_line(error.option_name, True, "no such option", "write --plan")
        keys = find_keys(name) or [key for key in list_keys() if key == name]
        if keys:
            value = _value_after(error.option_name, arguments)
            way_out = " or ".join(f"--set {key}={value}" for key in keys)
            return one_line(error.option_name, value, "not an option but a key of the experiment", f"write {way_out}")
    path = error.ctx.command_path if error.ctx else "sightline"
    return " ".join(error.format_message().split()) + f"; see {path} --help"


def _value_after(option: str, arguments: list[str]) -> str:
    """Return the value that a command line gives to an option, or VALUE."""
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and after and not after.startswith("-"):
            return after
    return "VALUE"


def _say_line(line: str, code: int) -> int:
    # On a full device, or without a terminal, the exit code still tells.
    with suppress(OSError):
        click.echo(f"sightline: {printable(line)}", err=True)
    return code


if __name__ == "__main__":
    main()
