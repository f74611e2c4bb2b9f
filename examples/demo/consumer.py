"""A program in production: it follows the policy, grows networks of its own under it, and reports.

Started again after kill -9 it goes on where it was: the trainings resume to the bit, and a report that it sends twice
has the same id both times, so it lands once. ``day.py`` starts two of these.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import simic

SAMPLES = 400
"""Training samples; as many validate, and 400 test."""


class Source(Protocol):
    """Where the policy comes from; None before the first one."""

    def look(self) -> simic.Policy | None: ...


class FromBus:
    """The updates on a bus, which a Subscriber verifies."""

    def __init__(self, place: str, keys: str, policies: str, own: Path) -> None:
        self._subscriber = simic.Subscriber(place, trusted_keys=keys, policies=policies, state=own / "followed")

    def look(self) -> simic.Policy | None:
        try:
            self._subscriber.poll()
        except simic.TransientError as error:  # the bus is away: the policy stays
            print(error, flush=True)
        return self._subscriber.policy


class FromFolder:
    """The folder that ``simic follow`` keeps; what it holds is verified again here."""

    def __init__(self, place: str, keys: str) -> None:
        self._link, self._keys = Path(place) / "current", keys
        self._held: simic.Policy | None = None

    def look(self) -> simic.Policy | None:
        path = self._link.resolve()  # once: the link may change at any time, the directory stays a while
        if self._link.exists() and (self._held is None or self._held.digest != path.name):
            self._held = simic.load_policy(path, trusted_keys=self._keys)
        return self._held


class Blocks(nn.Module):
    """A stem, two residual blocks of two hidden units, and a head: too small for its task."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.stem = nn.Linear(inputs, 24)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 2), nn.ReLU(), nn.Linear(2, 24)) for _ in range(2))
        self.after = nn.ModuleList(nn.Identity() for _ in range(2))
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs] -> [B, 4]"""
        x = self.stem(x)
        for block, after in zip(self.blocks, self.after, strict=True):
            x = after(x + block(x))
        logits: Tensor = self.head(x)
        return logits


def samples(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Pairs of digits in three parts, [n, 32] each; the four labels are the signs of two products of components."""
    images = torch.from_numpy(load_digits().data).float()
    centred = images - images.mean(0)
    components = centred @ torch.linalg.svd(centred, full_matrices=False)[2].T[:, :16]
    components = components / components.std(0)
    chance = torch.Generator().manual_seed(seed)
    first, second = (components[torch.randint(len(images), (2 * SAMPLES + 400,), generator=chance)] for _ in range(2))
    labels = 2 * (first[:, 0] * second[:, 0] > 0).long() + (first[:, 2] * second[:, 2] > 0).long()
    inputs = torch.cat([first, second], dim=1)
    sizes = [SAMPLES, SAMPLES, 400]
    return list(zip(inputs.split(sizes), labels.split(sizes), strict=True))


class Consumer:
    """One consumer: its source of policies, its folder, and where its reports go."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.own = options, options.own
        self.own.mkdir(parents=True, exist_ok=True)
        self.source: Source = (
            FromBus(options.source, options.keys, options.policies, self.own)
            if "://" in options.source
            else FromFolder(options.source, options.keys)
        )
        self.policy: simic.Policy | None = None
        self._looked_at = 0.0

    def run(self) -> None:
        """Look, and train what is to be trained, until the file ``stop`` is there."""
        while not (self.own / "stop").exists():
            self.look()
            job = self._next_job()
            if job is None:
                time.sleep(self.options.interval)
            else:
                self._train(job)

    def look(self) -> None:
        """Look for a policy, and write into the journal that there is another one."""
        began = time.time()
        found = self.source.look()
        if found is not None and (self.policy is None or found.digest != self.policy.digest):
            self._note(event="policy", digest=found.digest, looked_before=self._looked_at)
            self.policy = found
        self._looked_at = began

    def _next_job(self) -> dict[str, Any] | None:
        """Return the training that a kill interrupted, or else the next one under the current policy."""
        for path in sorted(self.own.glob("job-*.json")):
            job: dict[str, Any] = json.loads(path.read_text())
            if not (self.own / f"{job['name']}.done").exists():
                return job
        if self.policy is None:
            return None
        number = len(list(self.own.glob(f"job-{self.policy.digest[:12]}-*.json")))
        if number == self.options.trainings:
            return None
        name = f"{self.policy.digest[:12]}-{number}"
        job = {"name": name, "digest": self.policy.digest, "seed": self.options.seed + number}
        _replace(self.own / f"job-{name}.json", json.dumps(job).encode())
        return job

    def _train(self, job: dict[str, Any]) -> None:
        """Train a network under the policy with which the job began, and save it after each epoch."""
        torch.manual_seed(job["seed"])
        train, validation, test = samples(job["seed"])
        model = Blocks(train[0].shape[1])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        policy = self.policy
        if policy is None or policy.digest != job["digest"]:  # it was replaced since; its digest and seal are checked
            policy = simic.load_policy(Path(self.options.policies) / job["digest"], trusted_keys=self.options.keys)
        grower = simic.Grower(
            model, optimizer, slots=["stem", "after.0", "after.1"], validation=validation, test=test,
            epochs=self.options.epochs, policy=policy, name=self.options.name, seed=job["seed"],
            report_to=self.options.reports or simic.Home(self.options.home),
        )  # fmt: skip
        saved = self.own / f"{job['name']}.pt"
        if saved.exists():
            state = torch.load(saved, weights_only=True)
            grower.load_state_dict(state["grower"])
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["chance"])
            done = state["epochs"]
        else:
            done = 0
            self._save(saved, grower, model, optimizer, done)  # so that the episode keeps its name after any kill
        run = torch.load(saved, weights_only=True)["grower"]["run_id"]
        accuracy = 0.0
        while not grower.is_finished:
            model.train()
            for rows in torch.randperm(SAMPLES).split(20):
                optimizer.zero_grad()
                grower.loss(model(train[0][rows]), train[1][rows]).backward()
                optimizer.step()
            accuracy = grower.step().validation_accuracy  # the report is on the bus when this returns
            done += 1
            if not grower.is_finished:
                self._save(saved, grower, model, optimizer, done)
            self.look()
        grower.finalize()
        self._note(event="trained", digest=job["digest"], run=run, reports=done, accuracy=accuracy)
        _replace(self.own / f"{job['name']}.done", b"")

    def _save(
        self, path: Path, grower: simic.Grower, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int
    ) -> None:
        state = {"grower": grower.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "chance": torch.get_rng_state(), "epochs": epochs}, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def _note(self, **entry: Any) -> None:
        with (self.own / "journal.jsonl").open("ab") as journal:
            journal.write(json.dumps({"at": time.time(), **entry}).encode() + b"\n")
            journal.flush()
            os.fsync(journal.fileno())


def _replace(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").replace(path)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="redis://host:port/database, or the folder that `simic follow` keeps")
    parser.add_argument("--own", type=Path, required=True, help="folder of this program alone")
    parser.add_argument("--keys", required=True, help="folder of trusted public keys")
    parser.add_argument("--policies", required=True, help="folder of policies by digest")
    parser.add_argument("--reports", help="spool folder of the reports; default: the bus of --home")
    parser.add_argument("--home", help="home to whose bus reports go: REDIS_URL, or its spool")
    parser.add_argument("--name", default="shop", help="name of the networks in the reports (%(default)s)")
    parser.add_argument("--trainings", type=int, default=3, help="networks that grow under each policy (%(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of a training (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first network (%(default)s)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between looks while idle (%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    torch.set_num_threads(1)
    Consumer(parse()).run()
