"""A spool is no folder of a topic, nor within one, under whatever name it is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simic.bus.spool.place import refuse_topic_folder
from simic.contracts.errors import ConfigError
from simic.contracts.names import TOPICS


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("inside", ["", "incoming", "done/old"])
def test_a_topic_is_refused_before_it_exists(topic: str, inside: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"; give {tmp_path}$"):
        refuse_topic_folder(tmp_path / topic / inside, "--spool")


@pytest.mark.parametrize("waiting", ["incoming", "claimed"])
def test_a_topic_under_another_name_is_refused(waiting: str, tmp_path: Path) -> None:
    (tmp_path / "renamed" / waiting).mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"found the folder of a topic at .*/renamed; give {tmp_path}$"):
        refuse_topic_folder(tmp_path / "renamed", "--spool")


def test_a_link_to_a_topic_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool" / TOPICS[0]).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "spool" / TOPICS[0])
    with pytest.raises(ConfigError, match=f"; give {tmp_path / 'spool'}$"):
        refuse_topic_folder(tmp_path / "link", "--spool")


def test_a_place_that_cannot_be_looked_at_is_left_to_those_who_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "circle").symlink_to("circle")
    refuse_topic_folder(tmp_path / "circle", "--spool")

    def refuse(path: object, **_: object) -> os.stat_result:
        raise PermissionError(path)

    monkeypatch.setattr(os, "stat", refuse)
    refuse_topic_folder(tmp_path, "--spool")


def test_a_spool_is_taken_new_or_used(tmp_path: Path) -> None:
    refuse_topic_folder(tmp_path / "new", "--spool")
    (tmp_path / TOPICS[0] / "incoming").mkdir(parents=True)
    refuse_topic_folder(tmp_path, "--spool")
