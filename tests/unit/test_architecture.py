"""``docs/architecture.md`` shows the packages and imports that the code has."""

from __future__ import annotations

import pytest
from draw_architecture import (
    BEGIN,
    END,
    PAGE,
    Graph,
    direct,
    holds,
    import_graph,
    imports,
    layers,
    package_graph,
    package_of,
    redrawn,
)


def test_the_page_is_current() -> None:
    page = PAGE.read_text("utf-8")
    assert (page.count(BEGIN), page.count(END)) == (1, 1)
    assert redrawn(page) == page, "make architecture"


def test_every_package_is_in_one_layer_and_imports_lower_layers_only() -> None:
    levels = layers()
    graph = package_graph(import_graph())
    height = {package: -number for number, packages in enumerate(levels) for package in packages}
    assert sorted(height) == sorted(graph)
    assert sum(map(len, levels)) == len(height)
    assert {
        (package, target) for package in graph for target in graph[package] if height[target] >= height[package]
    } == set()


def test_every_package_has_a_docstring_for_the_table() -> None:
    assert {package for package in package_graph(import_graph()) if len(holds(package).split()) < 4} == set()


def test_an_import_that_a_chain_of_imports_implies_is_not_drawn() -> None:
    graph: Graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": set(), "d": set()}
    assert direct(graph) == {"a": {"b", "d"}, "b": {"c"}, "c": set(), "d": set()}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from simic.a import b", {"simic.a.b"}),
        ("from simic.a import name", {"simic.a"}),
        ("import simic.a.b", {"simic.a.b"}),
        ("def f():\n    from simic.a.b import name", {"simic.a.b"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import simic.a\nelse:\n    import simic", {"simic"}),
        ("import json", set()),
    ],
)
def test_imports_are_those_of_run_time(source: str, expected: set[str]) -> None:
    assert imports(source, {"simic", "simic.a", "simic.a.b"}) == expected


def test_a_package_is_a_folder_of_simic_or_flows_or_tasks() -> None:
    names = {"simic.hosts.batched.conv": "simic.hosts", "flows.retrain": "flows", "simic.app": "simic.app"}
    assert {name: package_of(name) for name in names} == names
