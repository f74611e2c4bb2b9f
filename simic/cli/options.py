"""Options that several verbs share, and the composition root they lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from simic.cli.edge import parse_overrides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from simic.app import App
    from simic.runtime.progress import Progress

__all__ = ["AsJson", "Overrides", "ProfileName", "Seed", "open_app", "show_progress"]

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the receipt as JSON on stdout, nothing else.")]
ProfileName: TypeAlias = Annotated[
    str, typer.Option("--profile", help="A named recipe (default, quick, nightly) or the path of a TOML file.")
]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", min=0, help="Root of all randomness.")]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--override", "-o", metavar="SECTION.KEY=VALUE", help="Change one setting of the profile."),
]


def show_progress() -> Progress:
    """Bars on stderr."""
    from simic.runtime.progress import RichProgress

    return RichProgress()


def open_app(
    profile: str = "default",
    seed: int = 0,
    overrides: Sequence[str] | None = None,
    extra: Mapping[str, object] | None = None,
    spool: Path | None = None,
) -> App:
    """The composition root of one verb, in the home that applies here."""
    from simic.app import App
    from simic.runtime.settings import load_profile, resolve_home

    config = load_profile(profile, {**parse_overrides(overrides or ()), **(extra or {})})
    return App(resolve_home(), config, seed, progress=show_progress(), spool=spool)
