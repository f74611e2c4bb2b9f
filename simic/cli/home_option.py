"""``--home``: the same option before the verb, after it, or after a group of verbs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer

from simic.runtime.home import HOME_VARIABLE

__all__ = ["HomeOption", "give_home_option"]

_CHOSEN = "simic.home"


def _choose(context: typer.Context, home: str | None) -> str | None:
    """Set the home of this process and its children.

    Raises BadParameter (exit 2) for an empty name, as an unset variable in a script gives, for the ~ of an unknown
    user, and for a second home.
    """
    if home is None:
        return None
    if not home:
        raise typer.BadParameter("expected the path of a home, found an empty name")
    try:
        chosen = str(Path(home).expanduser().absolute())
    except RuntimeError as error:
        raise typer.BadParameter(f"{home}: {error}") from None
    before = context.meta.setdefault(_CHOSEN, chosen)
    if before != chosen:
        raise typer.BadParameter(f"one command works in one home, found {before} and {chosen}")
    os.environ[HOME_VARIABLE] = chosen
    return chosen


HomeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--home",
        metavar="PATH",
        callback=_choose,
        help="Folder of data/, mlruns/ and .prefect/; default: SIMIC_HOME, else the current folder if it is a home, "
        "else the checkout that holds it, else the current folder.",
    ),
]


def give_home_option(app: typer.Typer) -> None:
    """Add the option to every verb and group registered on ``app``, directly or in a group."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_home(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.typer_instance.callback()(_only_home)
            give_home_option(group.typer_instance)


def _only_home(home: HomeOption = None) -> None:
    pass


def _with_home(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return the verb with one more option, whose callback does the work."""

    @wraps(verb)
    def run(*, home: str | None = None, **options: Any) -> Any:  # noqa: ARG001
        return verb(**options)

    # Names in annotations belong to the verb's own module, so they are resolved here.
    hints, known = get_type_hints(verb, include_extras=True), inspect.signature(verb)
    own = [parameter.replace(annotation=hints[name]) for name, parameter in known.parameters.items()]
    option = inspect.Parameter("home", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=HomeOption)
    run.__signature__ = known.replace(parameters=[*own, option])  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, "home": HomeOption}
    return run
