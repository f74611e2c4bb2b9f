"""Every error Simic raises on purpose.

::

    SimicError                     exit 1
    |-- ConfigError                exit 2   a setting, profile, flag or name is wrong
    |-- GateRejectedError          exit 3   the candidate did not pass; the champion stays
    |-- RolloutFailedError         exit 3   the champion failed in production and was rolled back
    |-- TransientError             exit 4   worth trying again: a lock, a bus or a store is busy or away
    |   |-- BusyError                       another process holds a lock
    |   |-- RolloutWaitsError               the plan of a rollout says to wait
    |   |-- CircuitOpenError                something failed again and again, and once more after a pause
    |   `-- UpdateTimeoutError              an update of a training hangs
    |-- ContractError              exit 1   bytes or rows do not keep a contract
    |   `-- DatasetError                    a data set is unusable (one class, NaN, wrong shape)
    |-- IntegrityError             exit 1   a digest or signature does not match what is stored
    |   `-- SmokeTestError                  a new champion cannot be loaded or does not decide
    |-- ResourceLimitError         exit 1   more memory, time, temporary disk or open files than this process may use
    |   `-- OutOfMemoryError                an update did not get the memory that it needs
    |-- IllegalActionError         exit 1   a controller chose what its masks forbid
    `-- TrainingError              exit 1   a collapsed policy, too little experience
        |-- DivergenceError                 a loss, gradient or weight that is not finite
        `-- HopelessError           a training that ended early, because it would not come to anything

Messages say what was expected, what was found, which id, and what to do next.
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "CircuitOpenError",
    "ConfigError",
    "ContractError",
    "DatasetError",
    "DivergenceError",
    "GateRejectedError",
    "HopelessError",
    "IllegalActionError",
    "IntegrityError",
    "OutOfMemoryError",
    "ResourceLimitError",
    "RolloutFailedError",
    "RolloutWaitsError",
    "SimicError",
    "SmokeTestError",
    "TrainingError",
    "TransientError",
    "UpdateTimeoutError",
]


class SimicError(Exception):
    """Base class of all errors; ``exit_code`` is the exit status of the command line."""

    exit_code = 1


class ConfigError(SimicError):
    """A setting, profile, flag or name is wrong; nothing was changed."""

    exit_code = 2


class GateRejectedError(SimicError):
    """The candidate did not pass the gate; the champion is untouched."""

    exit_code = 3


class RolloutFailedError(SimicError):
    """The champion failed in production and was rolled back."""

    exit_code = 3


class TransientError(SimicError):
    """The same call may succeed later."""

    exit_code = 4


class BusyError(TransientError):
    """Another process or thread holds a lock."""


class RolloutWaitsError(TransientError):
    """The plan of a rollout says to wait for time or evidence; nothing was sent."""


class CircuitOpenError(TransientError):
    """Attempts of one kind failed until their circuit breaker opened, and the one after the pause failed too."""


class UpdateTimeoutError(TransientError):
    """An update of a training took longer than its deadline."""

    def __init__(self, message: str = "an update took more than train.safety.update_timeout_s") -> None:
        """Take a message; raised in another thread, the error has only the default."""
        super().__init__(message)


class ContractError(SimicError):
    """Bytes or rows violate the contract they claim to follow."""


class DatasetError(ContractError):
    """A data set cannot train a host."""


class IntegrityError(SimicError):
    """Stored content differs from what was sealed."""


class SmokeTestError(IntegrityError):
    """A new champion cannot be loaded or does not decide; the one before it was restored."""


class ResourceLimitError(SimicError):
    """The work needs more than a limit allows; it is not retried, because it would need the same again."""


class OutOfMemoryError(ResourceLimitError):
    """An update of a training did not get the memory that it needs."""


class IllegalActionError(SimicError):
    """An action outside its masks reached the executor."""


class TrainingError(SimicError):
    """Training was stopped because its result would not be valid."""


class DivergenceError(TrainingError):
    """A loss, a gradient or a weight is not finite, or the loss keeps rising."""


class HopelessError(TrainingError):
    """A training shows by its own measurements that it will not come to anything."""
