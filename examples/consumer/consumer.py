"""Follow the policy that Simic publishes, and ask it for an action: the loop of a program in production."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import simic


def main() -> None:
    """Look for updates, and print the action of the current policy for one state after each look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="folder of a spool, or redis://host:port/database")
    parser.add_argument("--keys", required=True, help="folder of trusted public keys")
    parser.add_argument("--policies", help="folder of policies by digest; needed with Redis")
    parser.add_argument("--into", default="followed", help="folder of this program alone (%(default)s)")
    parser.add_argument("--state", type=Path, required=True, help="JSON with state and available, as a field report")
    parser.add_argument("--looks", type=int, help="number of looks; without it the program goes on")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between looks (%(default)s)")
    options = parser.parse_args()
    asked = json.loads(options.state.read_text())
    with simic.Subscriber(
        options.source, trusted_keys=options.keys, state=options.into, policies=options.policies
    ) as subscriber:
        looks = 0
        while options.looks is None or looks < options.looks:
            time.sleep(options.interval if looks else 0)
            looks += 1
            try:
                subscriber.poll()
            except simic.TransientError as error:  # the bus is away: the policy stays
                print(f"look {looks}: {error}", flush=True)
            print(f"look {looks}: {answer(subscriber, asked)}", flush=True)


def answer(subscriber: simic.Subscriber, asked: dict[str, object]) -> str:
    """Return what the current policy does; before the first one a host only waits."""
    policy = subscriber.policy
    if policy is None:
        return "no policy yet, so WAIT"
    action = policy.decide(asked["state"], asked["available"])
    return f"policy {policy.digest[:12]} says {action.model_dump_json(exclude_none=True)}"


if __name__ == "__main__":
    main()
