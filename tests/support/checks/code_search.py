"""Searches in the syntax trees of the production code: what is reached, what is used, what is read."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from draw_architecture import Graph, import_graph, modules

__all__ = ["constants", "parsed", "reached", "unread_fields", "unused_definitions"]

Trees = Mapping[str, ast.Module]
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@cache
def parsed() -> Trees:
    """Return the syntax tree of every module of simic, flows and tasks."""
    return {name: ast.parse(path.read_text("utf-8")) for name, path in modules().items()}


def constants(tree: ast.AST) -> set[str]:
    """Return every string of a module outside ``__all__``."""
    exported = {id(inner) for node in ast.walk(tree) if _is_export_list(node) for inner in ast.walk(node)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exported
    }


def _is_export_list(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets)


def reached(
    entries: Iterable[str], plugins: Mapping[str, str], graph: Graph | None = None, trees: Trees | None = None
) -> set[str]:
    """Return the modules that run when one of ``entries`` runs.

    A module reaches what it imports at run time, its own packages, and each module that one of its strings names, as
    ``module`` (for ``python -m``) or ``module:attribute``. ``plugins`` maps a folder to the module that lists its
    files: once that module is reached, so is every file of the folder.
    """
    graph, trees = import_graph() if graph is None else graph, parsed() if trees is None else trees
    todo, found = list(entries), set[str]()
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        todo += [name.rpartition(".")[0]] if "." in name else []
        todo += graph[name]
        todo += [module for text in constants(trees[name]) if (module := text.partition(":")[0]) in graph]
        folders = [folder for folder, lister in plugins.items() if lister == name]
        todo += [module for module in graph if module.rpartition(".")[0] in folders]
    return found


def unused_definitions(trees: Trees, public: Iterable[str] = ()) -> set[str]:
    """Return public functions, classes and methods of simic that no code outside themselves names.

    A definition at the top of a module is used if another module imports it, if the rest of its module names it, or
    if it is an attribute somewhere (``module.name``). A method is used if something reads an attribute of its name.
    Both are used if a string is their name (``getattr``, a table of factories), if a string with an example for users
    has it (``from simic...``), or if ``public`` has it. A decorated definition at the top of a module is registered
    elsewhere and counts as used. A name that several classes share hides an unused one among them.
    """
    attributes, imported, words = Counter[str](), Counter[tuple[str, str]](), set(public)
    for tree in trees.values():
        attributes += _attributes(tree)
        imported.update((node.module or "", alias.name) for node in ast.walk(tree)
                        if isinstance(node, ast.ImportFrom) for alias in node.names)  # fmt: skip
        words |= constants(tree)
        words |= {word for text in constants(tree) if "from simic." in text for word in re.findall(r"\w+", text)}
    unused = set()
    for module, tree in trees.items():
        for node in _public(tree):
            outside = attributes[node.name] > _attributes(node)[node.name]
            is_used = node.name in words or outside
            named = imported[module, node.name] or _names(tree)[node.name] > _names(node)[node.name]
            if not (is_used or named or node.decorator_list):
                unused.add(f"{module}.{node.name}")
            for method in _public(node) if isinstance(node, ast.ClassDef) else ():
                if method.name not in words and attributes[method.name] <= _attributes(method)[method.name]:
                    unused.add(f"{module}.{node.name}.{method.name}")
    return unused


def _public(node: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    return (child for child in node.body if isinstance(child, _DEFINITIONS) and not child.name.startswith("_"))


def _names(node: ast.AST) -> Counter[str]:
    return Counter(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _attributes(node: ast.AST) -> Counter[str]:
    return Counter(inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute))


def unread_fields(
    sections: Mapping[str, Mapping[str, str]], properties: Mapping[str, Mapping[str, set[str]]], trees: Trees
) -> set[str]:
    """Return ``Class.field`` for each field of ``sections`` that no expression of ``trees`` reads.

    ``sections`` maps a class to its fields and their types; ``properties`` maps a class to its properties and the
    fields that these read, which count as read when the property is. A read counts only where the type before the dot
    is known, so ``threads`` of one section is not taken for ``threads`` of another. Types come from the
    annotations of parameters, variables, fields, properties and results, and from assignments. Where all that fails, an
    attribute is looked up by its name, if every class that has it gives it one type.
    """
    search = _Reads(sections, trees)
    read = search.find()
    for owner, mine in properties.items():
        for name, fields in mine.items():
            if (owner, name) in read:
                read |= {(owner, field) for field in fields}
    return {f"{owner}.{field}" for owner, fields in sections.items() for field in fields if (owner, field) not in read}


class _Reads(ast.NodeVisitor):
    """Notes (class, attribute) for each attribute that is read off an expression of a known class."""

    def __init__(self, sections: Mapping[str, Mapping[str, str]], trees: Trees) -> None:
        self._trees, self._read = trees, set[tuple[str, str]]()
        self._scopes: list[dict[str, str | None]] = [{}]
        self._class = ""
        nodes = [node for tree in trees.values() for node in ast.walk(tree)]
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        self._known = {node.name for node in classes} | set(sections)
        self._bases = {node.name: [ast.unparse(base) for base in node.bases] for node in classes}
        self._types = {(owner, name): kind for owner, mine in sections.items() for name, kind in mine.items() if kind}
        self._results = {
            node.name: kind
            for node in nodes
            if isinstance(node, ast.FunctionDef) and (kind := self._annotated(node.returns))
        }
        for owner in classes:
            for node in owner.body:
                if isinstance(node, ast.AnnAssign) and (kind := self._annotated(node.annotation)):
                    self._types[owner.name, ast.unparse(node.target)] = kind
                elif isinstance(node, ast.FunctionDef) and (kind := self._annotated(node.returns)):
                    self._types[owner.name, node.name] = kind

    def find(self) -> set[tuple[str, str]]:
        """Search all modules, twice: the second time with what constructors further on assign."""
        for tree in (*self._trees.values(), *self._trees.values()):
            self._scopes = [{}]
            self.visit(tree)
        return self._read

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Search a body with the types of its parameters."""
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        scope = {argument.arg: self._annotated(argument.annotation) for argument in arguments}
        if self._class and arguments and arguments[0].arg == "self":
            scope["self"] = self._class
        self._scopes.append(scope)
        self.generic_visit(node)
        self._scopes.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Search a class; its methods know what ``self`` is."""
        outer, self._class = self._class, node.name
        self.generic_visit(node)
        self._class = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        """Give names and attributes of ``self`` the type of what is assigned to them."""
        self.visit(node.value)
        for target in node.targets:
            pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for left, right in pairs:
                kind = self._type(right)
                if isinstance(left, ast.Name):
                    self._scopes[-1][left.id] = kind
                elif isinstance(left, ast.Attribute) and ast.unparse(left.value) == "self" and kind is not None:
                    self._types[self._class, left.attr] = kind

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Give a variable its declared type."""
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            self._scopes[-1][node.target.id] = self._annotated(node.annotation)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note a read."""
        owner = self._type(node.value)
        if isinstance(node.ctx, ast.Load) and owner is not None:
            self._read.add((owner, node.attr))
        self.generic_visit(node)

    def _annotated(self, annotation: ast.expr | None) -> str | None:
        """Return the one known class that an annotation names, as ``X``, ``X | None`` or ``"X"``."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        if isinstance(annotation, ast.BinOp):
            sides = {self._annotated(annotation.left), self._annotated(annotation.right)} - {None}
            return sides.pop() if len(sides) == 1 else None
        return annotation.id if isinstance(annotation, ast.Name) and annotation.id in self._known else None

    def _type(self, node: ast.expr) -> str | None:
        """Return the class of an expression, or None where it is not known."""
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in reversed(self._scopes) if node.id in scope), None)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                return self._type(node.func)
            name = ast.unparse(node.func)
            return name if name in self._known else self._results.get(name)
        if not isinstance(node, ast.Attribute):
            return None
        owner = self._type(node.value)
        if owner is not None:
            return self._held(owner, node.attr)
        held = {kind for (_, name), kind in self._types.items() if name == node.attr}
        return held.pop() if len(held) == 1 else None

    def _held(self, owner: str, name: str) -> str | None:
        """Return the class of an attribute, which a base class may declare."""
        if (owner, name) in self._types:
            return self._types[owner, name]
        found = (self._held(base, name) for base in self._bases.get(owner, ()))
        return next((kind for kind in found if kind is not None), None)
