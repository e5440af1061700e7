"""Writes a module of models as text: deterministic, and stable under formatters with a line width of at least WIDTH."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator, Sequence

from tailrace.codegen.asyncapi.embedding import key_of
from tailrace.codegen.models.avro_models import FIELD_TYPES, AvroModels
from tailrace.codegen.models.json_models import JsonModels
from tailrace.codegen.models.module import Model, Module, Property, source
from tailrace.codegen.models.names import class_name, field_names
from tailrace.schemas.compiled import CompiledSchema

WIDTH = 88
HEAD = '''"""Models of the registered events.

Written by `tailrace schemas models`: run it again instead of editing this.
"""'''
_MIXED = "# ruff: noqa: N815"
"""Fields have the names that they have in payloads."""
_INDENT = "    "
_FROM = {
    "typing": ("Any", "Literal"),
    "uuid": ("UUID",),
    "decimal": ("Decimal",),
    "pydantic": ("AwareDatetime", "BaseModel", "ConfigDict", "Field", "RootModel"),
    "tailrace.schemas.avro.fields": tuple(sorted(FIELD_TYPES)),
}
_OWN = ("decimal", "typing", "uuid")
_OTHERS = ("pydantic", "tailrace.schemas.avro.fields")


def models_source(schemas: Sequence[CompiledSchema], types: Collection[str] = ()) -> str:
    """Returns a Python module with a model for each schema, or for some types and what they refer to.

    The latest version is named after its type, earlier ones have their version appended: OrderPlacedV1,
    OrderPlacedV1_4_0.
    """
    registered = {key_of(schema): schema for schema in schemas}
    ordered = [registered[key] for key in sorted(registered)]
    latest = {schema.subject: schema.version for schema in ordered}
    module = Module()
    # Those with the expected names come first.
    for schema in sorted(
        ordered, key=lambda each: (each.version != latest[each.subject], each.subject != class_name(each.subject))
    ):
        version = "" if schema.version == latest[schema.subject] else f"V{str(schema.version).replace('.', '_')}"
        module.names[key_of(schema)] = module.taken.free(class_name(schema.subject) + version)
    json = JsonModels([each for each in ordered if each.kind == "json"], registered, module)
    avro = AvroModels(registered, module)
    for schema in ordered:
        if not types or schema.subject in types:
            (avro if schema.kind == "avro" else json).declare(schema)
    return _text(module)


def _text(module: Module) -> str:
    known = frozenset({model.name for model in module.models} | module.literals.keys())
    classes = "\n\n\n".join("\n".join(_class(model, known)) for model in module.models)
    choices = "\n".join(
        f"{name} = Literal[\n{''.join(f'{_INDENT}{value},{chr(10)}' for value in values)}]"
        for name, values in module.literals.items()
    )
    nodes = list(ast.walk(ast.parse(f"{choices}\n{classes}")))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    fields = {ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}
    is_mixed = any(name[0].islower() and name != name.lower() and "_" not in name for name in fields)
    first = f"{HEAD}\n{_MIXED}" if is_mixed else HEAD
    head = f"{first}\n\nfrom __future__ import annotations\n\n{_imports(used)}"
    return "\n\n\n".join(part for part in (f"{head}\n\n{choices}" if choices else head, classes) if part) + "\n"


def _imports(used: set[str]) -> str:
    def lines(modules: Sequence[str]) -> Iterator[str]:
        for module in modules:
            names = [name for name in _FROM[module] if name in used]
            line = f"from {module} import {', '.join(names)}"
            if len(line) > WIDTH:
                line = f"from {module} import (\n" + "".join(f"{_INDENT}{name},\n" for name in names) + ")"
            if names:
                yield line

    own = [*(["import datetime as dt"] if "dt" in used else []), *lines(_OWN)]
    return "\n\n".join("\n".join(block) for block in (own, list(lines(_OTHERS))) if block)


def _class(model: Model, known: frozenset[str]) -> Iterator[str]:
    yield f"class {model.name}({'BaseModel' if model.root is None else 'RootModel[Any]'}):"
    if model.about:
        yield from _docstring(model.about)
        yield ""
    if model.root is not None:
        yield from _field(Property("root", model.root), "root")
        return
    names = field_names([each.name for each in model.properties], known)
    settings = [*(['extra="allow"'] if model.is_open else [])]
    # Pydantic reserves names that begin with model_, unless configured otherwise.
    settings += ["protected_namespaces=()"] if any(name.startswith("model_") for name in names.values()) else []
    if settings:
        yield f"{_INDENT}model_config = ConfigDict({', '.join(settings)})"
        yield ""
    for each in model.properties:
        yield from _field(each, names[each.name])
        if each.about:
            yield from _docstring(each.about)


def _field(of: Property, name: str) -> Iterator[str]:
    start = f"{_INDENT}{name}: {of.type}"
    if name == of.name:
        line = start if of.default is None else f"{start} = {of.default}"
        # There is no line break that suits every width.
        yield line if len(line) <= WIDTH else f"{line}  # fmt: skip"
        return
    arguments = [*([] if of.default is None else [f"default={of.default}"]), f"alias={source(of.name)}"]
    line = f"{start} = Field({', '.join(arguments)})"
    if len(line) <= WIDTH:
        yield line
        return
    yield f"{start} = Field("
    yield from (f"{_INDENT * 2}{argument}," for argument in arguments)
    yield f"{_INDENT})" if len(start) + len(" = Field(") <= WIDTH else f"{_INDENT})  # fmt: skip"


def _docstring(text: str) -> list[str]:
    line = f'{_INDENT}"""{text}"""'
    if len(line) <= WIDTH:
        return [line]
    first, *rest = textwrap.wrap(f'"""{text}', WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return [first, *rest, f'{_INDENT}"""']
