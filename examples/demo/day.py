"""A day of Simic: a champion is published, two consumers grow networks under it, and a run learns from their reports.

If the gate accepts what the run learned, both consumers take it, and it is rolled back. With ``--kill`` consumers and
the nightly run are killed with kill -9 at random points. Exit code 1 if a step does not do what it should.

Usage: python day.py [--kill] [--seed 0] [--json] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import Failed, Killer, Program, install, start_redis, verb

HERE = Path(__file__).resolve().parent
TRAININGS, EPOCHS = 3, 10
INTERVAL_S = 1.0
"""Seconds between two looks for a policy."""
KILLS, KILL_PAUSE_S = 5, (4.0, 12.0)
"""Most kills while the consumers train under one policy, and the bounds of the time between two of them."""
PATIENCE_S = 900.0
"""Longest wait for the consumers; a slow machine needs longer than the story."""
NAMES = ("folder", "redis")
REPORTS = """
SELECT run_id, count(*) AS reports, count(DISTINCT step) AS steps, max(step) AS last
FROM reports WHERE host.family IN ('shop_folder', 'shop_redis') AND policy_version = '{policy}' GROUP BY run_id
"""
LEARNED = """
SELECT count(*) AS rows, count_if(family IN ('shop_folder', 'shop_redis')) AS of_consumers
FROM rewards WHERE snapshot = '{snapshot}'
"""


class Day:
    """The home, the bus, the consumers, and what was seen of them."""

    def __init__(self, root: Path, options: argparse.Namespace, tell: Callable[[str], None]) -> None:
        self.root, self.tell, self.is_killing = root, tell, options.kill
        self.chance = random.Random(options.seed)  # noqa: S311 - moments of kills
        self.home, self.found = root / "home", dict[str, Any]()
        self.programs: dict[str, Program] = {}
        self.redis, self.url = start_redis(root / "redis")
        install(root / "site", HERE / "nets.py", {"narrow": "NARROW"})
        path = os.pathsep.join([str(root / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {
            **os.environ, "SIMIC_HOME": str(self.home), "REDIS_URL": self.url, "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1", "COLUMNS": "200",
        }  # fmt: skip

    def simic(self, *words: str, codes: tuple[int, ...] = (0,), kill_after: float | None = None) -> Any:
        return verb(self.environment, *words, codes=codes, kill_after=kill_after)

    def run(self, *words: str, codes: tuple[int, ...] = (0,), kill_after: float | None = None) -> Any:
        return self.simic("run", "--profile", str(HERE / "day.toml"), *words, codes=codes, kill_after=kill_after)

    # -- the steps ----------------------------------------------------------------------------------

    def publish_champion(self) -> None:
        """Train on hosts like the consumers' networks, judge, promote and publish."""
        done = self.run()
        self.found["first"] = done["version"]["digest"]
        self.tell(f"the gate accepted {self.short('first')}: {_gain(done)}; it is champion and published")

    def start_consumers(self) -> None:
        """Start ``simic follow`` for the one that reads a folder, and both consumers."""
        common = ["--keys", self.home / "data" / "keys", "--policies", self.home / "data" / "policies"]
        follow = [Path(sys.executable).with_name("simic"), "follow", self.url, "--trusted-keys", common[1],
                  "--policies", common[3], "--into", self.root / "followed", "--interval", str(INTERVAL_S)]  # fmt: skip
        self._start("follow", follow)
        where = {
            "folder": [self.root / "followed", "--reports", self.root / "reports", "--seed", "100"],
            "redis": [self.url, "--home", self.home, "--seed", "200"],
        }
        for name, words in where.items():
            own = ["--own", self.root / name, "--name", f"shop_{name}", "--trainings", str(TRAININGS)]
            own += ["--epochs", str(EPOCHS), "--interval", str(INTERVAL_S)]
            self._start(name, [sys.executable, HERE / "consumer.py", *words, *common, *own])

    def wait_for(self, key: str) -> None:
        """Wait until both consumers follow a policy and have trained under it, while they are killed if asked."""
        killer = Killer(list(self.programs.values()), self.chance, KILL_PAUSE_S, KILLS) if self.is_killing else None
        if killer is not None:
            killer.start()
        try:
            self._wait(lambda: all(len(self._trained(name, key)) == TRAININGS for name in NAMES), f"train under {key}")
        finally:
            if killer is not None:
                killer.stop()
        ways = ", ".join(f"{name} {_mean(self._trained(name, key)):.1f} %" for name in NAMES)
        kills = f"; kill -9 so far: {self.kills}" if self.is_killing else ""
        what = f"trained {TRAININGS} networks each, mean accuracy {ways}{kills}"
        self.tell(f"both consumers follow {self.short(key)} and {what}")

    def check_reports(self, key: str) -> None:
        """Land what was reported of trainings under a policy, and compare it with what the consumers say they did."""
        own = self.simic("ingest", "--spool", str(self.root / "reports"))
        bus = self.simic("ingest")
        landed = {row["run_id"]: row for row in self.simic("sql", REPORTS.format(policy=self.found[key]))}
        told = {run: one for name in NAMES for run, one in self._trained(name, key).items()}
        quarantined = own["quarantined"] + bus["quarantined"]
        again = own["duplicate"] + bus["duplicate"]
        wrong = [run for run in told if landed.get(run, {}).get("reports") != told[run]["reports"]]
        wrong += [run for run, row in landed.items() if run not in told or row["steps"] != row["last"] + 1]
        if wrong or quarantined:
            raise Failed(
                f"reports of {len(wrong)} trainings are not as told, {quarantined} are quarantined: {wrong[:3]}"
            )
        count = sum(row["reports"] for row in landed.values())
        self.found[f"reports_under_{key}"] = count
        self.tell(f"{count} reports of {len(told)} trainings landed, each once ({again} came twice); none is lost")

    def learn_overnight(self) -> None:
        """Train on all reports, those of the consumers among them; the gate may reject the result."""
        moment = self.chance.uniform(10.0, 40.0) if self.is_killing else None
        done = self.run("--seed", "1", codes=(0, 3), kill_after=moment)
        snapshot = done["trainings"][-1]["snapshot_digest"]
        (row,) = self.simic("sql", LEARNED.format(snapshot=snapshot))
        reported = self.found["reports_under_first"]
        if row["of_consumers"] != reported:
            raise Failed(f"the snapshot has {row['of_consumers']} rows of the consumers, not {reported}")
        self.found.update(nightly_rows=row["rows"], nightly_rows_of_consumers=row["of_consumers"])
        verdict = "accepted it" if done["code"] == 0 else "rejected it, so the champion stays"
        killed = f", killed after {moment:.0f} s and given again" if moment is not None else ""
        share = f"{row['rows']} rows, {row['of_consumers']} of them from the consumers"
        self.tell(f"the nightly run{killed} learned from {share}; the gate {verdict}")
        self.found["nightly_accepted"] = done["code"] == 0
        if done["code"] == 0:
            self.found["second"] = done["version"]["digest"]

    def roll_back(self) -> None:
        """Let both take the new champion, if there is one, and go back to the first as an operator does."""
        if "second" not in self.found:
            self.tell("the gate let no second champion through, so there is nothing to roll back")
            return
        self.wait_for("second")
        self.check_reports("second")
        done = self.simic("rollback", "--reason", "a demonstration")
        if done["digest"] != self.found["first"]:
            raise Failed(f"the rollback restored {done['digest'][:12]}, not {self.short('first')}")
        self.check_return(_seconds(done["publication"]["finished_at"]))

    def check_return(self, delivered: float) -> None:
        """Wait for the policy before in both consumers; each takes it at its first look after it could see it."""
        self._wait(lambda: all(self._follows(name) == self.found["first"] for name in NAMES), "follow the rollback")
        last = {name: [one for one in self._journal(name) if one["event"] == "policy"][-1] for name in NAMES}
        heard = {"redis": delivered, "folder": (self.root / "followed" / "current").lstat().st_mtime}
        late = [name for name in NAMES if last[name]["looked_before"] > heard[name] + INTERVAL_S]
        if late:
            raise Failed(f"{' and '.join(late)} looked after the rollback and did not take it")
        waits = ", ".join(f"{name} after {last[name]['at'] - delivered:.1f} s" for name in NAMES)
        self.tell(f"rolled back to {self.short('first')}; both took it at their first look: {waits}")

    def check_policies(self) -> None:
        """No consumer ever followed anything but what was published."""
        known = {self.found[key] for key in ("first", "second") if key in self.found}
        followed = {one["digest"] for name in NAMES for one in self._journal(name) if one["event"] == "policy"}
        if followed - known:
            raise Failed(f"a consumer followed a policy that was never published: {sorted(followed - known)}")
        self.found["kills"] = self.kills
        self.tell(
            f"followed were {len(followed)} policies, each verified at every load and published; kill -9: {self.kills}"
        )

    # -- what the consumers did ----------------------------------------------------------------------

    @property
    def kills(self) -> int:
        return sum(program.kills for program in self.programs.values())

    def short(self, key: str) -> str:
        return str(self.found[key])[:12]

    def close(self) -> None:
        for program in self.programs.values():
            program.end()
        self.redis.kill()
        self.redis.wait()

    def _start(self, name: str, command: list[Any]) -> None:
        self.programs[name] = Program(list(map(str, command)), self.environment, self.root / f"{name}.log")

    def _wait(self, is_done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_done():
            if time.monotonic() > deadline:
                raise Failed(f"the consumers did not {what} within {PATIENCE_S:.0f} s")
            if not self.is_killing:
                for program in self.programs.values():
                    program.check()
            time.sleep(0.2)

    def _journal(self, name: str) -> list[dict[str, Any]]:
        path = self.root / name / "journal.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]  # the last one may be half written

    def _trained(self, name: str, key: str) -> dict[str, dict[str, Any]]:
        entries = [one for one in self._journal(name) if one["event"] == "trained" and one["digest"] == self.found[key]]
        return {one["run"]: one for one in entries}

    def _follows(self, name: str) -> str | None:
        followed = [one["digest"] for one in self._journal(name) if one["event"] == "policy"]
        return followed[-1] if followed else None


def _gain(run: dict[str, Any]) -> str:
    over = run["validation"]["differences"]["wait"]
    return f"{_points(over)} points over never growing on {over['n']} hosts"


def _points(estimate: dict[str, Any]) -> str:
    return f"{estimate['mean']:+.1f} [{estimate['lower']:+.1f}, {estimate['upper']:+.1f}]"


def _mean(trained: dict[str, dict[str, Any]]) -> float:
    return 100.0 * sum(one["accuracy"] for one in trained.values()) / max(len(trained), 1)


def _seconds(moment: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(moment).timestamp()


STEPS: tuple[tuple[str, Callable[[Day], None]], ...] = (
    ("a first run in a new home", Day.publish_champion),
    ("two consumers start: one reads the folder of `simic follow`, one reads Redis", Day.start_consumers),
    ("they take the policy, grow networks and report", lambda day: day.wait_for("first")),
    ("every report is counted", lambda day: day.check_reports("first")),
    ("a run learns from the reports", Day.learn_overnight),
    ("a second champion is published and rolled back", Day.roll_back),
    ("what was followed", Day.check_policies),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kill", action="store_true", help="kill -9 consumers and the nightly run at random points")
    parser.add_argument("--seed", type=int, default=0, help="seed of these points (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and the story on stderr")
    parser.add_argument("--keep", type=Path, help="a new folder for everything, which stays; default: a temporary one")
    options = parser.parse_args()
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr if options.json else sys.stdout, flush=True)

    with tempfile.TemporaryDirectory(prefix="simic-day-") as temporary:
        root = Path(temporary) / "day" if options.keep is None else options.keep.absolute()
        root.mkdir(parents=True)
        day, failure = None, None
        try:
            day = Day(root, options, tell)
            for title, step in STEPS:
                tell(f"-- {title}")
                step(day)
        except Failed as error:
            failure = str(error)
            tell(f"FAILED: {failure}")
        finally:
            if day is not None:
                day.close()
    if options.json:
        found = {} if day is None else day.found
        print(json.dumps({**found, "seconds": time.monotonic() - began, "failure": failure}))
    return 0 if failure is None else 1


if __name__ == "__main__":
    raise SystemExit(main())
