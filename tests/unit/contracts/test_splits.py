"""A host's split is a matter of its hash: for ever the same, independent of order, near the shares."""

from __future__ import annotations

from collections import Counter

from simic.contracts.splits import Split, split_of


def test_known_keys_stay_where_they_are() -> None:
    assert [key for key in range(60) if split_of("benchmark", key) is Split.TEST] == [4, 12, 13, 32, 36, 42, 44, 49]
    assert [key for key in range(60) if split_of("benchmark", key) is Split.VALIDATION] == [7, 8, 9, 23, 34]


def test_shares_are_near_eighty_ten_ten() -> None:
    counts = Counter(split_of("benchmark", key) for key in range(20_000))
    assert {split: round(count / 20_000, 2) for split, count in counts.items()} == {
        Split.TRAIN: 0.80,
        Split.VALIDATION: 0.10,
        Split.TEST: 0.10,
    }


def test_another_set_splits_differently() -> None:
    here, there = ([split_of(name, key) for key in range(200)] for name in ("benchmark", "other"))
    assert here != there


def test_every_family_has_test_hosts() -> None:
    families = Counter(key % 5 for key in range(2000) if split_of("benchmark", key) is Split.TEST)
    assert min(families.values()) >= 25
