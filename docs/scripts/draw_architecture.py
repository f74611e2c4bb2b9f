"""Draw the packages of the code and the imports between them into ``docs/architecture.md``.

Run ``make architecture`` after a change of packages or imports; a test fails if the page is out of date.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOTS = ("simic", "flows", "tasks")

Graph = dict[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the file of every module of ``ROOTS``; a package is named after its folder."""
    found = {}
    for name in ROOTS:
        for path in (root / name).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a syntax tree without the branches that only a type checker reads."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.If) and child in node.body and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield from runtime_nodes(child)


def imports(source: str, names: set[str] | dict[str, Path]) -> set[str]:
    """Return those of ``names`` that a source imports while it runs, at the top of the file or in a function."""
    found: set[str] = set()
    for node in runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found |= {inner} if inner in names else {node.module} & set(names)
    return found


def import_graph(root: Path = ROOT) -> Graph:
    """Return for each module the modules of ``ROOTS`` that it imports at run time."""
    files = modules(root)
    return {name: imports(path.read_text("utf-8"), files) for name, path in files.items()}


PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by docs/scripts/draw_architecture.py -->", "<!-- end of the drawing -->"


def package_of(module: str) -> str:
    """Return the package of a module: a folder of simic, or flows, or tasks."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "simic" else parts[0]


def package_graph(graph: Graph) -> Graph:
    """Return for each package the packages that it imports."""
    found: Graph = {}
    for module, targets in graph.items():
        package = package_of(module)
        if package in ("simic", "simic.__main__"):
            continue
        others = {package_of(target) for target in targets} - {package, "simic"}
        found.setdefault(package, set()).update(others)
    return found


def layers(root: Path = ROOT) -> list[list[str]]:
    """Return the packages of every layer, from the top, as the import contracts in pyproject.toml declare them."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    declared = {contract["id"]: contract.get("layers") for contract in project["tool"]["importlinter"]["contracts"]}
    above = [layer.split(" : ") for layer in declared["order"][:-1]]
    inside = [[f"simic.{name.strip()}" for name in layer.split("|")] for layer in declared["inside"]]
    named = {package for layer in above for package in layer} | {"simic.__main__"}
    return above + [rest for layer in inside if (rest := [package for package in layer if package not in named])]


def direct(graph: Graph) -> Graph:
    """Return the imports that no chain of other imports implies."""

    def below(package: str) -> set[str]:
        return {inner for target in graph[package] for inner in (target, *below(target))}

    return {
        package: {target for target in targets if not any(target in below(other) for other in targets - {target})}
        for package, targets in graph.items()
    }


def short(package: str) -> str:
    """Return the name of a package as it is shown."""
    return package.removeprefix("simic.")


def mermaid(levels: list[list[str]], graph: Graph) -> str:
    """Return the picture: a box for each package, a frame for each layer, an arrow for each direct import."""
    lines = ["```mermaid", "flowchart TD"]
    for number, packages in enumerate(levels):
        frame = f"  subgraph layer{len(levels) - number}[layer {len(levels) - number}]"
        lines += [frame, *(f"    {short(package)}" for package in sorted(packages)), "  end"]
    lines += [
        f"  {short(package)} --> {short(target)}"
        for packages in levels
        for package in sorted(packages)
        for target in sorted(direct(graph)[package])
    ]
    return "\n".join([*lines, "```"])


def holds(package: str, root: Path = ROOT) -> str:
    """Return the first paragraph of a package's docstring on one line."""
    source = root.joinpath(*package.split("."), "__init__.py").read_text("utf-8")
    return " ".join((ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0].split())


def table(levels: list[list[str]], graph: Graph) -> str:
    """Return a row for each package: its layer, what it holds, every package that it imports."""
    lines = ["| layer | package | holds | imports |", "|---|---|---|---|"]
    for number, packages in enumerate(levels):
        for package in sorted(packages):
            targets = ", ".join(sorted(map(short, graph[package]))) or "nothing"
            lines.append(f"| {len(levels) - number} | `{package.replace('.', '/')}` | {holds(package)} | {targets} |")
    return "\n".join(lines)


def drawing(root: Path = ROOT) -> str:
    """Return the drawn part of the page."""
    levels, graph = layers(root), package_graph(import_graph(root))
    return f"{BEGIN}\n\n{mermaid(levels, graph)}\n\n{table(levels, graph)}\n\n{END}"


def redrawn(page: str, root: Path = ROOT) -> str:
    """Return a page with its drawn part drawn again."""
    before, _, rest = page.partition(BEGIN)
    return before + drawing(root) + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text("utf-8")), "utf-8")
