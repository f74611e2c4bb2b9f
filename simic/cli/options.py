"""Options shared by several verbs, and the container that they open."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from simic.app.names.controller_names import check_words
from simic.app.names.host_set_names import check_run
from simic.cli import completion
from simic.cli.console import parse_overrides
from simic.contracts.errors import ConfigError
from simic.contracts.names import KEY_LIMIT, MODELS
from simic.contracts.splits import Split
from simic.controllers.plugins import CONTROLLERS
from simic.runtime.home import HomeUse, resolve_home
from simic.runtime.progress import Progress, RichProgress
from simic.runtime.settings import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from typer.models import OptionInfo

    from simic.app.container import Container
__all__ = [
    "CONSULTING_HELP",
    "CONTROLLER_HELP",
    "CONTROLLER_NAMES",
    "POLICY_NAMES",
    "SEARCHED_HELP",
    "AsJson",
    "HostKeys",
    "Hosts",
    "Land",
    "ModelName",
    "Overrides",
    "PolicyName",
    "PolicyOrRules",
    "ProfileName",
    "Reason",
    "Seed",
    "SetName",
    "SnapshotName",
    "SplitName",
    "TrustedKeys",
    "check_page_name",
    "command_text",
    "naming_options",
    "number",
    "open_container",
    "parse_host_keys",
    "parse_named_hosts",
    "show_progress",
    "whole_number",
]

_CONTROLLERS = {name: text for name, text in CONTROLLERS.summaries().items() if name in completion.NAMED}
CONTROLLER_NAMES = ", ".join(sorted(_CONTROLLERS, key=completion.NAMED.index))
CONTROLLER_HELP = "; ".join(f"{name}: {_CONTROLLERS[name]}" for name in CONTROLLER_NAMES.split(", "))
"""Help text for controllers, one line each, built from the modules."""
POLICY_NAMES = "champion, tamiyo/2, 2, the first 8 or more characters of a digest, or a path"
"""Names of a policy that every verb accepts."""
SEARCHED_HELP = (
    "simulate grows every action at the first decision to its end and hindsight every plan of one seed; both take the "
    "best of the host by the return and are scored by test accuracy, at about 20 and 37 times the cost"
)
"""What arms do that search on every host."""
CONSULTING_HELP = (
    "with +karn behind its name a policy consults the Karn trained last, with +karn/DIGEST another one, with "
    "+karn/champion the promoted one"
)


def _model(text: str) -> str:
    """Return the name of a registered model; raise a usage error with the known names if there is none."""
    if text not in MODELS:
        raise typer.BadParameter(f"expected {' or '.join(MODELS)}, found {text!r}")
    return text


AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print only JSON to stdout.")]
ModelName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--model",
        parser=_model,
        metavar=f"<{'|'.join(MODELS)}>",
        help="Registered model: tamiyo, the policies, or karn, which they may consult.",
        autocompletion=completion.models,
    ),
]
PolicyName: TypeAlias = Annotated[str, typer.Argument(help=f"{POLICY_NAMES}.", autocompletion=completion.policies)]
PolicyOrRules: TypeAlias = Annotated[
    str,
    typer.Argument(
        help=f"A policy ({POLICY_NAMES}), or a controller with fixed rules, such as wait or heuristic.",
        autocompletion=completion.controllers,
    ),
]
ProfileName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--profile",
        help="A shipped profile (default, quick, nightly) or the path of a TOML file.",
        autocompletion=completion.profiles,
    ),
]
Reason: TypeAlias = Annotated[str, typer.Option(help="Reason; kept in the journal.")]
SetName: TypeAlias = Annotated[
    str | None,
    typer.Option("--set", help="The set of hosts; default: the profile's.", autocompletion=completion.sets),
]

SnapshotName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Snapshot directory, the first 4 or more characters of a digest, or a curate receipt; default: the "
        "newest.",
        autocompletion=completion.snapshots,
    ),
]


def _split(text: str) -> Split:
    """Return the split of that name; raise a usage error with the known names if there is none."""
    try:
        return Split(text)
    except ValueError:
        known = ", ".join(split.value for split in Split)
        raise typer.BadParameter(f"expected {known}, found {text!r}") from None


SplitName: TypeAlias = Annotated[
    Split | None,
    typer.Option(
        "--split",
        parser=_split,
        metavar=f"<{'|'.join(split.value for split in Split)}>",
        help="Split from which hosts are drawn, unless their keys are given. Make choices on validation hosts, "
        "so that test hosts have selected nothing. Default: test.",
    ),
]


def whole_number(*names: str, least: int, most: int | None = None, about: str) -> OptionInfo:
    """Return an option for a whole number from ``least`` to ``most``, both included; ``about`` is its help text."""
    return _bounded(int, "a whole number", names, least, most, about)


def number(*names: str, least: float, most: float | None = None, about: str) -> OptionInfo:
    """Return an option for a number, not NaN, from ``least`` to ``most``, both included; ``about`` is its help text."""
    return _bounded(float, "a number", names, least, most, about)


def _bounded(
    kind: Callable[[str], float], noun: str, names: Sequence[str], least: float, most: float | None, about: str
) -> OptionInfo:
    expected = f"{least} or more" if most is None else f"{noun} from {least} to {most}"

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            wanted = f"{noun}, {expected}" if most is None else expected
            raise typer.BadParameter(f"expected {wanted}, found {text!r}") from None
        if not least <= value or (most is not None and value > most):  # `not <=` also refuses NaN
            raise typer.BadParameter(f"expected {expected}, found {value}")
        return value

    bounds = f"x>={least}" if most is None else f"{least}<=x<={most}"
    option: OptionInfo = typer.Option(*names, parser=parse, metavar=f"<{kind.__name__}> [{bounds}]", help=about)
    return option


Seed: TypeAlias = Annotated[int, whole_number("--seed", least=0, about="Random seed.")]
HostKeys: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Host keys, from any split: A:B (B excluded), A,B,C, or a mix; default: hosts of --split, as many as "
        "--hosts says."
    ),
]
"""Of the verbs that compare on hosts of one split."""
Hosts: TypeAlias = Annotated[
    int | None,
    whole_number(
        "--hosts",
        least=1,
        most=100_000,
        about="Number of hosts of each family; sets trial.hosts_per_family. Default: the profile's.",
    ),
]


def _pairs(given: list[str] | None) -> list[str] | None:
    """Return the overrides; without their form a value that follows would be an unexpected argument."""
    for pair in given or ():
        if "=" not in pair[1:]:
            raise typer.BadParameter(f"expected SECTION.KEY=VALUE, found {pair!r}")
    return given


Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        "-o",
        metavar="SECTION.KEY=VALUE",
        callback=_pairs,
        help="Change a setting; repeatable.",
    ),
]

Land: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--land",
        help="Also put the episodes on the bus as judging experience, which no training uses; sets trial.land.",
    ),
]
TrustedKeys: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--trusted-keys",
        metavar="FOLDER",
        help="Folder of <key id>.pub files; default: the keys of the home. With it, a path needs no home.",
    ),
]
"""Of the verbs that load one policy."""


def show_progress() -> Progress:
    """Return progress bars on stderr."""
    return RichProgress()


_FLAGS = {"world.set": "--set", "curate.reward.family": "--reward", "trial.hosts_per_family": "--hosts"}
"""Options that do not have the name of their setting."""


def check_page_name(out: Path) -> None:
    """Check the name of a page that a verb is to write.

    Raises:
        ConfigError: if it does not end in .md.
    """
    if out.suffix != ".md":
        raise ConfigError(f"--out: expected a file name that ends in .md, found {out}")


def command_text(verb: str, arguments: Sequence[str], options: Mapping[str, object]) -> str:
    """Return a command of simic as a shell takes it.

    Args:
        verb: its name.
        arguments: those without an option.
        options: values by option. None and False are left out, True is the option alone, a list or tuple repeats it.
    """
    words = ["simic", verb, *arguments]
    for option, given in options.items():
        for value in given if isinstance(given, (list, tuple)) else [given]:
            if value is not None and value is not False:
                words += [option] if value is True else [option, str(value)]
    return shlex.join(words)


def open_container(
    profile: str = "default",
    seed: int = 0,
    overrides: Sequence[str] | None = None,
    extra: Mapping[str, object] | None = None,
    spool: Path | None = None,
    *,
    use: HomeUse = HomeUse.CHANGE,
    controllers: Sequence[str] = (),
) -> Container:
    """Return the container of one verb for its home; only ``use`` MAKE creates a home.

    Verbs call this before they import what loads torch, which takes seconds, so that a name that does not exist is
    answered at once. ``extra`` holds settings that options of their own give, None for an option that was not given; an
    error names the option. ``controllers`` are names of controllers and policies.
    """
    given = {name: value for name, value in (extra or {}).items() if value is not None}
    flags = {name: _FLAGS.get(name) or "--" + name.rpartition(".")[2].replace("_", "-") for name in given}
    config = load_profile(profile, {**parse_overrides(overrides or ()), **given}, flags)
    check_run(config)
    check_words(controllers)
    from simic.app.container import Container

    if spool is not None:
        from simic.bus.spool.place import refuse_topic_folder

        refuse_topic_folder(spool, "--spool")
        _create(spool)
    return Container(resolve_home(), config, seed, progress=show_progress(), spool=spool, use=use)


def _create(spool: Path) -> None:
    """Create the directory of ``--spool`` before any work is done for it. A full disk is left to the bus to report."""
    try:
        spool.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT):
            raise ConfigError(
                f"--spool: cannot create {spool}: {error.strerror}; give a directory that can be created"
            ) from error


MOST_KEYS = 1_000_000


def parse_host_keys(text: str) -> list[int]:
    """Parse ``A:B`` (from A up to, not including, B), ``A,B,C``, or a mix; no key twice."""
    keys: list[int] = []
    for part in text.split(","):
        first, colon, last = (piece.strip() for piece in part.partition(":"))
        bounds = [_key(first, text), _key(last, text) if colon else _key(first, text) + 1]
        if bounds[1] <= bounds[0]:
            raise ConfigError(f"--host-keys: expected A:B with A below B, found {part.strip()!r}")
        if bounds[1] - bounds[0] > MOST_KEYS:
            raise ConfigError(f"--host-keys {text!r}: {part!r} holds more than {MOST_KEYS} keys")
        keys.extend(range(*bounds))
    if len(set(keys)) != len(keys):
        raise ConfigError(f"--host-keys {text!r} names a key twice")
    return keys


def parse_named_hosts(host_keys: str | None, choosing: Mapping[str, object]) -> list[int] | None:
    """Parse ``--host-keys`` if it is given.

    Args:
        host_keys: the option.
        choosing: the verb's other options that choose hosts, by name; what is not given is false.

    Raises:
        ConfigError: if another of them is given too, or the keys cannot be parsed.
    """
    if host_keys is None:
        return None
    for option, given in choosing.items():
        if given:
            raise ConfigError(f"--host-keys names the hosts, so {option} has no meaning; give one of them")
    return parse_host_keys(host_keys)


def _key(piece: str, text: str) -> int:
    if not piece.isascii() or not piece.isdecimal() or not 0 <= int(piece) <= KEY_LIMIT:
        raise ConfigError(f"--host-keys expects A:B or A,B,C with numbers in [0, 2**31), found {text!r}")
    return int(piece)


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Name the option in a ConfigError about an argument of the Python API, whose message begins with ``argument: ``.

    Args:
        options: option by argument.
    """
    try:
        yield
    except ConfigError as error:
        argument, colon, message = str(error).partition(": ")
        if not colon or argument not in options:
            raise
        raise ConfigError(f"{options[argument]}: {message}") from error
