"""Whether growing pays in a training loop of one's own: arms trained with the same seeds, compared by pairs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field, ValidationError

from simic.contracts.base import Contract, Count, Finite, NonNegative, UnitInterval
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.results.comparison import LEVEL, Verdict, verdict_of
from simic.contracts.results.trials import Estimate
from simic.ledgers.ledger import Ledger
from simic.numerics.comparisons import holm, minimum_detectable_effect, sign_flip_p
from simic.numerics.intervals import student_interval
from simic.runtime.locks import exclusive
from simic.runtime.progress import NoProgress, RichProgress

__all__ = ["ArmDifference", "Training", "TrainingComparison", "compare_trainings"]

Name = Annotated[str, Field(min_length=1, max_length=64)]
Train: TypeAlias = Callable[[str, int], float | tuple[float, int]]
"""Trains an arm with a seed and returns its score, or its score and the number of parameters of its network."""
MOST_TRAININGS = 100_000
_BEGIN = b'{"arm":'
"""How every line of a results file begins."""
_HEADER = ("arm", "score", "difference", "verdict", "adjusted p", "parameters", "seconds")


class Training(Contract):
    """Result of one training of an arm with one random seed."""

    arm: Name
    seed: int
    score: Finite
    """In the unit of the caller; higher is better."""
    parameters: Count | None
    """Of its network; null if the caller did not say."""
    seconds: NonNegative
    """Wall-clock time that the training took."""


class ArmDifference(Contract):
    """An arm minus the first one, paired by seed; scores in the unit of the caller."""

    arm: Name
    verdict: Verdict
    """Better or worse where ``adjusted_p`` is at most 0.05."""
    difference: Estimate
    """Mean difference with Student's interval over seeds."""
    p: UnitInterval
    """Two-sided p value of the difference, from sign flips of the pairs."""
    adjusted_p: UnitInterval
    """``p`` adjusted for all arms by Holm's method."""
    detectable: NonNegative | None
    """Smallest mean difference that these seeds show with 80 % power in the strictest step of Holm's method; null where
    so few seeds can show nothing, or all differences are equal."""


class TrainingComparison(Contract):
    """All trainings and what they show; ``print`` gives a table, ``model_dump_json`` everything."""

    arms: list[Name]
    """The first one is what the others are compared with."""
    seeds: list[int]
    trainings: list[Training]
    """Those of the first seed come first, in the order of the arms."""
    differences: list[ArmDifference]
    """Of each arm but the first."""

    def of(self, arm: str) -> list[Training]:
        """Return the trainings of an arm, in the order of the seeds."""
        return [training for training in self.trainings if training.arm == arm]

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw every difference with its interval, and those of single seeds, as a PNG file."""
        from simic.validation.training_plot import draw_trainings  # it loads Matplotlib

        first = np.array([training.score for training in self.of(self.arms[0])])
        rows = [
            (
                difference.arm,
                difference.difference,
                np.array([training.score for training in self.of(difference.arm)]) - first,
            )
            for difference in self.differences
        ]
        return draw_trainings(self.arms[0], rows, Path(path))

    def __str__(self) -> str:
        by_arm = {difference.arm: difference for difference in self.differences}
        rows = [_HEADER, *(self._row(arm, by_arm.get(arm)) for arm in self.arms)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *self._notes()])

    def _row(self, arm: str, difference: ArmDifference | None) -> tuple[str, ...]:
        mine, first = self.of(arm), self.of(self.arms[0])
        score, seconds = _mean(training.score for training in mine), _mean(training.seconds for training in mine)
        sizes = [training.parameters for training in mine if training.parameters is not None]
        size = f"{_mean(sizes):,.0f}" if len(sizes) == len(mine) else "-"
        if difference is None:
            return arm, f"{score:.4g}", "-", "-", "-", size, f"{seconds:.3g}"
        times = f"{seconds:.3g} ({seconds / max(_mean(training.seconds for training in first), 1e-9):.2g} x)"
        gain = difference.difference
        shown = f"{gain.mean:+.3g} [{gain.lower:+.3g}, {gain.upper:+.3g}]"
        return arm, f"{score:.4g}", shown, difference.verdict.value, f"{difference.adjusted_p:.2g}", size, times

    def _notes(self) -> list[str]:
        share = self.differences[0].difference.confidence
        notes = [
            f"{len(self.seeds)} seeds. difference: minus {self.arms[0]}, paired by seed, with its {100 * share:g}% "
            f"interval. adjusted p: up to {LEVEL:g} a difference is shown."
        ]
        if len(self.differences) * 2.0 ** (1 - len(self.seeds)) > LEVEL:
            notes.append(f"So few seeds can show no difference, however large: give {self._least_seeds()} or more.")
            return notes
        for difference in self.differences:
            if difference.verdict is not Verdict.NOT_SHOWN:
                continue
            if difference.detectable is None:
                notes.append(
                    f"{difference.arm}: all seeds differ by the same, so it is unknown which difference they show."
                )
            else:
                notes.append(
                    f"{difference.arm}: so many seeds show a difference of about {difference.detectable:.2g} or more."
                )
        return notes

    def _least_seeds(self) -> int:
        return math.ceil(1.0 + math.log2(len(self.differences) / LEVEL))


def compare_trainings(
    train: Train,
    arms: Sequence[str],
    *,
    seeds: Iterable[int] = range(16),
    confidence: float = 0.95,
    results: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> TrainingComparison:
    """Train every arm with every seed and say of each arm whether it is better or worse than the first one.

    An arm is a name that ``train`` understands, such as ``plain``, ``heuristic`` or ``champion``. ``train`` draws all
    its random numbers from the seed, so that arms with the same seed have the same data, weights and batches.

    Args:
        train: Function of arm and seed that returns a score, higher is better, or a pair of score and parameters.
        arms: Two or more names; the first is compared with each other one.
        seeds: Two or more seeds. 6 can show a difference between two arms, 7 among three.
        confidence: Of the intervals, above 0.5 and below 1.
        results: File of JSON lines to which every training is added. Trainings that it holds already are not repeated,
            so a comparison that was killed continues. Remove it when the code of ``train`` changes. One comparison at a
            time uses it, as a file beside it says, whose name ends in ``.lock``.
        progress: Show a bar on stderr.

    Raises:
        ConfigError: for wrong arguments, or a score that is not finite.
        ContractError: if ``results`` holds something else than trainings.
        IntegrityError: if it holds a line that is no object. A training that a kill cut off at the end is ignored.
        TransientError: if it cannot be written, or another comparison uses it.
    """
    if not callable(train):
        raise ConfigError(f"train: expected a function of arm and seed, found {train!r:.100}")
    if not isinstance(results, (str, os.PathLike, type(None))):
        raise ConfigError(f"results: expected the path of a file, found {results!r:.100}")
    names, numbers = _checked(arms, seeds, confidence)
    shown = RichProgress() if progress else NoProgress()
    with _results(results) as ledger, shown.task("trainings", len(names) * len(numbers)) as advance:
        done = {} if ledger is None else _read(ledger)
        for seed in numbers:
            for arm in names:
                if (arm, seed) not in done:
                    done[arm, seed] = training = _train(train, arm, seed)
                    if ledger is not None:
                        ledger.append(training.model_dump())
                advance(1, note=f"{arm}, seed {seed}")
    return TrainingComparison(
        arms=names,
        seeds=numbers,
        trainings=[done[arm, seed] for seed in numbers for arm in names],
        differences=_differences(names, numbers, done, confidence),
    )


def _checked(arms: Sequence[str], seeds: Iterable[int], confidence: float) -> tuple[list[str], list[int]]:
    for name, given in (("arms", arms), ("seeds", seeds)):
        if not isinstance(given, Iterable):
            raise ConfigError(f"{name}: expected two or more, as a list, found {given!r:.100}")
    names, numbers = list(arms), list(seeds)
    if isinstance(arms, str) or len(names) < 2:
        raise ConfigError(f"arms: expected two or more different names, found {arms!r}")
    if bad := [name for name in names if not isinstance(name, str) or not 0 < len(name) <= 64]:
        raise ConfigError(f"arms: expected names of 1 to 64 characters, found {bad[0]!r}")
    if len(set(names)) < len(names):
        raise ConfigError(f"arms: expected two or more different names, found {arms!r}")
    if len(numbers) < 2 or any(type(number) is not int for number in numbers) or len(set(numbers)) < len(numbers):
        raise ConfigError(f"seeds: expected two or more different whole numbers, found {numbers!r}")
    if len(names) * len(numbers) > MOST_TRAININGS:
        raise ConfigError(f"expected at most {MOST_TRAININGS:,} trainings, found {len(names) * len(numbers):,}")
    if not isinstance(confidence, Real) or not 0.5 < confidence < 1.0:
        raise ConfigError(f"confidence: expected a number above 0.5 and below 1, found {confidence!r}")
    return names, numbers


def _train(train: Train, arm: str, seed: int) -> Training:
    started = time.perf_counter()
    returned = train(arm, seed)
    seconds = time.perf_counter() - started
    score, parameters = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    try:
        return Training(arm=arm, seed=seed, score=float(score), parameters=parameters, seconds=seconds)
    except (ValidationError, TypeError, ValueError) as error:
        raise ConfigError(
            f"train({arm!r}, {seed}): expected a finite score, or a pair of score and number of parameters; found "
            f"{returned!r}"
        ) from error


@contextmanager
def _results(path: str | os.PathLike[str] | None) -> Iterator[Ledger | None]:
    """Give the file of trainings to one comparison, or None if there is none."""
    if path is None:
        yield None
        return
    place = Path(path)
    if place.is_dir():
        raise ConfigError(f"results: expected the path of a file, found the folder {place}")
    with exclusive(place.with_name(f"{place.name}.lock"), f"the comparison in {place}"):
        yield Ledger(place)


def _read(ledger: Ledger) -> dict[tuple[str, int], Training]:
    """Return the trainings of a file by arm and seed; an append will cut off what follows its last line end."""
    trainings = dict[tuple[str, int], Training]()
    for number, record in enumerate(ledger.read(), 1):
        try:
            training = Training.model_validate(record)
        except ValidationError as error:
            what = str(record)[:80]
            raise ContractError(f"{ledger.path}, line {number}: expected a training, found {what}") from error
        trainings[training.arm, training.seed] = training
    if (torn := ledger.torn_bytes()) and not _is_begun(tail := ledger.path.read_bytes()[-torn:]):
        raise ContractError(
            f"{ledger.path}: expected lines of trainings, found {tail[:80]!r} without a line end: name another file "
            "for results"
        )
    return trainings


def _is_begun(tail: bytes) -> bool:
    """Return whether a kill may have left ``tail`` of the line of a training."""
    begin = tail.replace(b" ", b"")[: len(_BEGIN)]
    return begin == _BEGIN[: len(begin)]


def _differences(
    arms: Sequence[str], seeds: Sequence[int], done: Mapping[tuple[str, int], Training], confidence: float
) -> list[ArmDifference]:
    first, *others = (np.array([done[arm, seed].score for seed in seeds]) for arm in arms)
    pairs = [other - first for other in others]
    raw = [sign_flip_p(pair) for pair in pairs]
    differences = []
    for arm, values, p, adjusted in zip(arms[1:], pairs, raw, holm(raw).tolist(), strict=True):
        mean, lower, upper = student_interval(values, confidence)
        differences.append(
            ArmDifference(
                arm=arm,
                verdict=Verdict.NOT_SHOWN if mean == 0.0 else verdict_of(mean > 0.0, adjusted),
                difference=Estimate(mean=mean, lower=lower, upper=upper, confidence=confidence, n=len(values)),
                p=p,
                adjusted_p=adjusted,
                detectable=minimum_detectable_effect(values, len(pairs), alpha=LEVEL),
            )
        )
    return differences


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
