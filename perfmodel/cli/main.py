"""Entry point of `perfmodel`: finds the verb, and turns errors into one line and an exit code.

0 fine; 1 no answer; 2 bad input; 130 interrupted; 141 the reader of a pipe went away. A bug keeps its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence

from perfmodel import __version__
from perfmodel.boundary import path_shown
from perfmodel.errors import LONGEST_LINE, NoAnswerError, PerfModelError, plain, unknown_name

VERBS = {
    "gpus": "list the known GPUs, show one with the source of every number, lint the database",
    "rank": "rank Triton configs for a problem by predicted latency; needs no GPU",
    "predict": "predict one operator, or one Triton config, on a GPU",
    "explain": "say what binds a prediction, what would change it and what it rests on",
    "tune": "time only the best-ranked configs on this machine's GPU and remember the answer; needs a GPU, or a stored answer",
    "measure": "time collectives on this machine's GPUs, as rows that calibrate reads; needs GPUs",
    "plan": "choose GPUs, parallelism and batch for a model and its traffic",
    "estimate": "latency with percentiles, throughput and memory of one deployment under given traffic",
    "memory": "where the memory of one GPU of an engine goes, and how many requests it holds",
    "models": "list the bundled models, or read one from its config",
    "export": "write tuned configs as vLLM, SGLang and Inductor load them, for a GPU that is not there",
    "store": "show, export and import what was timed",
    "calibrate": "measure this machine's GPU for two minutes and fit, or fit measured rows; report on it",
    "evaluate": "score rankings and collectives against measured rows, beside baselines",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_OUTSIDE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EMFILE,
)
"""What a file system says of somebody's files: not a fault of this program."""
_HELP = """\
usage: perfmodel VERB ... [--json | --csv] [--wide]

Predicts GPU performance without a GPU.

verbs:
{verbs}

  perfmodel VERB --help says more; perfmodel --version prints the version.
  --json and --csv print every digit; a table drops the columns that a terminal has no room for, but with --wide.
  eval "$(perfmodel --show-completion bash)" completes words and values in this shell (or zsh, fish).

example:
  perfmodel rank gemm --gpu h100_sxm -m 4096 -n 14336 -k 4096 --dtype bf16 --top-k 8
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    _open_streams()
    if (words := os.environ.get("_PERFMODEL_COMPLETE")) is not None:
        from perfmodel.cli.completion import completions

        print("\n".join(completions(words.split("\n"), list(VERBS))))
        sys.exit(0)
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; a bug raises."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(f"perfmodel: {' '.join(str(message).split())}", file=sys.stderr)
            return _dispatch_whole(arguments)
    except PerfModelError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        if error.errno in _OUTSIDE and error.filename is not None:
            return _fail(f"{path_shown(error.filename)}: {error.strerror}", 1)
        if error.errno not in _FULL:
            raise
        _drop_output()
        return _fail(f"cannot write{f' {path_shown(error.filename)}' if error.filename else ''}: {error.strerror}", 1)
    except ImportError as error:
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):  # a compiled module that was being loaded wraps it
            return _fail("interrupted", 130)
        raise


def _dispatch_whole(arguments: list[str]) -> int:
    """Run one command; into a pipe or file its output goes at once, so that a reader who takes the first line of a few meets no error."""
    if sys.stdout is not None and sys.stdout.isatty():
        return _dispatch(arguments)
    held = io.StringIO()
    try:
        with contextlib.redirect_stdout(held):
            return _dispatch(arguments)
    finally:
        if sys.stdout is not None:
            sys.stdout.write(held.getvalue())
            sys.stdout.flush()
        elif held.getvalue():
            raise NoAnswerError("cannot write: standard output is closed")


def _open_streams() -> None:
    """Occupy closed descriptors, so that no file gets their numbers; let a terminal without Unicode show what it can."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.BytesIO())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is still buffered cannot be written either."""
    with contextlib.suppress(io.UnsupportedOperation, AttributeError):  # no file behind it, or none at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, VERBS))
        print(_HELP.format(verbs="\n".join(f"  {name:{width}}  {what}" for name, what in VERBS.items())), end="")
        return 0
    verb, *rest = arguments
    if verb == "--show-completion":
        from perfmodel.cli.completion import script

        print(script(rest))
        return 0
    if "--wide" in rest:
        os.environ["PERFMODEL_WIDE"] = "1"
        rest = [word for word in rest if word != "--wide"]
    if verb in ("-V", "--version"):
        print(f"perfmodel {__version__}")
        return 0
    if verb not in VERBS:
        raise unknown_name("verb", verb, VERBS)
    return _command(verb, rest)


def _command(verb: str, arguments: list[str]) -> int:
    import typer

    from perfmodel.cli.examples import add_examples

    command = typer.main.get_command(importlib.import_module(f"perfmodel.cli.{verb}").app)
    add_examples(command, verb)
    try:
        # not command.main(): it has its own ideas about Ctrl-C and broken pipes
        with command.make_context(f"perfmodel {verb}", arguments) as context:
            command.invoke(context)
        return 0
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.Exit as done:
        return done.exit_code
    except Exception as error:
        if not hasattr(error, "format_message"):  # not a usage error of the option parser
            raise
        at = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError" and at:
            print(at.get_help())
            return 0
        message = error.format_message() or str(error)
        path = at.command_path if at else f"perfmodel {verb}"
        return _fail(f"{plain(message, LONGEST_LINE - 60)} Try '{path} --help'.", 2)


def _fail(message: str, code: int) -> int:
    if message:
        with contextlib.suppress(OSError):  # nobody is left to tell
            print(f"perfmodel: {plain(message, LONGEST_LINE)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
