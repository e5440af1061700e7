"""Whether a JSON Schema reads everything that another one lets through, and if not, where and why.

The question is whether every instance that the writer's schema allows is accepted by the reader's. It is answered
keyword by keyword, and "yes" only if it can be shown: a changed `pattern`, say, is a problem that says so.

An open object (no `additionalProperties`, or true) is read the way people mean it: a producer does not already
use, with some other meaning, a name that the reader's schema introduces. So adding an optional property to an open
object is compatible. Read strictly, as sets of instances, it is not: the undeclared property could have had any
type. `strict` chooses that reading. In both, closing an open object is a problem. Each alternative of `anyOf`, `oneOf`
and `if` is read by itself: what only another alternative names is not named.

Recursive schemas are compared by assuming the pair under comparison when it comes up again deeper in the instance.
All work is counted: a schema built to take for ever ends in a problem that says it is too complex.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from tailrace.schemas.compatibility.document import Document, Incomparable, Problem
from tailrace.schemas.compatibility.json_apart import apart
from tailrace.schemas.compatibility.json_arrays import array_problems
from tailrace.schemas.compatibility.json_combinations import alternatives, cases, combination_problems
from tailrace.schemas.compatibility.json_facts import Fact, Facts, Key, Writer, facts_of
from tailrace.schemas.compatibility.json_nodes import Node, Nodes, Numbers, Resource
from tailrace.schemas.compatibility.json_objects import object_problems
from tailrace.schemas.compatibility.json_rules import NUMBERS, Rules, rules_of
from tailrace.schemas.compatibility.json_sameness import Sameness
from tailrace.schemas.compatibility.json_scalars import (
    number_problems,
    string_problems,
    type_problems,
    value_problems,
)
from tailrace.schemas.compatibility.json_unevaluated import possibly_evaluated
from tailrace.schemas.strict_json import Json

MAX_STEPS = 100_000
"""Comparisons of a pair. Large real schemas take a few thousand; this many take seconds."""
MAX_NESTING = 80
"""Pairs within pairs: more than real schemas nest, and well within Python's own stack."""

_CORE = Resource("", 2020, -1)
"""Where nodes stand that occur in no schema, but follow from one."""


def json_problems(
    reader: Document, writer: Document, reader_name: str, writer_name: str, *, strict: bool = False
) -> tuple[Problem, ...]:
    """Why `reader` may refuse what `writer` allows; empty if it never does."""
    try:
        return Comparison(reader, writer, reader_name, writer_name, strict).problems()
    except Incomparable as error:
        return (error.problem,)


class Comparison:
    """One reader against one writer; `reader` and `writer` are how messages call them."""

    def __init__(self, reading: Document, writing: Document, reader: str, writer: str, strict: bool) -> None:
        self.reader, self.writer, self.strict = reader, writer, strict
        self._numbers = Numbers()
        self._nodes = (Nodes(reading, self._numbers, 0), Nodes(writing, self._numbers, 1))
        self._rules: dict[Key, Rules] = {}
        self._facts: dict[Key, Facts] = {}
        self._same = Sameness(self._nodes, self._numbers, self._spend)
        self._found: dict[Hashable, tuple[Problem, ...] | bool] = {}
        self._order: list[Hashable] = []
        self._open: dict[Hashable, int] = {}
        self._assumed: set[Hashable] = set()
        self._level = self._nesting = self._steps = 0

    def problems(self) -> tuple[Problem, ...]:
        reader, writer = (nodes.root for nodes in self._nodes)
        if self._same.of_roots():
            return ()
        return self.covers(Writer((Fact(writer),)), reader)

    # What the parts of the comparison ask each other.

    def covers(self, writer: Writer, node: Node) -> tuple[Problem, ...]:
        """Why an instance for which the writer's facts hold might be refused by `node`."""
        self._spend(node, len(writer.facts))
        if any(fact.holds and self._same.of(fact.node, node) for fact in writer.facts):
            return ()
        key = ("covers", self.strict, writer.key, node.key)
        if key in self._open:
            if self._level > self._open[key]:
                self._assumed.add(key)
                return ()
            return (Problem(node.place, "refers to itself without end"),)
        if key not in self._found:
            self._decide(key, node, lambda: self._compared(writer, node), ())
        problems = self._found[key]
        return problems if isinstance(problems, tuple) else ()

    def apart(self, writer: Writer, node: Node) -> bool:
        """Whether it can be shown that no instance of the writer is accepted by `node`."""
        self._spend(node, len(writer.facts))
        key = ("apart", self.strict, writer.key, node.key)
        if key in self._open:
            return False
        if key not in self._found:
            self._decide(key, node, lambda: self._shown_apart(writer, node), True)
        return bool(self._found[key])

    def strictly(self, writer: Writer, node: Node) -> tuple[Problem, ...]:
        """`covers` as sets of instances: what is concluded from a denial must hold whatever producers do."""
        before, self.strict = self.strict, True
        problems = self.covers(writer, node)
        self.strict = before
        return problems

    def below(self, facts: Iterable[Fact], node: Node) -> tuple[Problem, ...]:
        """`covers` for a part of the instance, about which these facts are known."""
        self._level += 1
        problems = self.covers(Writer(tuple(facts)), node)
        self._level -= 1
        return problems

    def strictly_below(self, facts: Iterable[Fact], node: Node) -> tuple[Problem, ...]:
        self._level += 1
        problems = self.strictly(Writer(tuple(facts)), node)
        self._level -= 1
        return problems

    def apart_below(self, facts: Iterable[Fact], node: Node) -> bool:
        self._level += 1
        shown = self.apart(Writer(tuple(facts)), node)
        self._level -= 1
        return shown

    def possible(self, facts: Iterable[Fact]) -> bool:
        """False if there is no such part."""
        return not self.facts(Writer(tuple(facts))).impossible

    def node(self, schema: Json) -> Node:
        """A node that occurs in no schema, but follows from one."""
        return Node(schema, _CORE, "#", (self._numbers.of(schema), _CORE))

    def rules(self, node: Node) -> Rules:
        if node.key not in self._rules:
            self._spend(node, 1)
            self._rules[node.key] = rules_of(node, self._side(node))
        return self._rules[node.key]

    def facts(self, writer: Writer) -> Facts:
        if writer.key not in self._facts:
            facts = facts_of(writer, self.rules, self._closing, self.node)
            self._spend(
                writer.facts[0].node if writer.facts else self._nodes[0].root,
                len(facts.parts) + len(facts.values or ()) // 8,
            )
            self._facts[writer.key] = facts
        return self._facts[writer.key]

    # How one pair is decided.

    def _compared(self, writer: Writer, node: Node) -> tuple[Problem, ...]:
        facts, rules = self.facts(writer), self.rules(node)
        if facts.impossible:
            return ()
        if not self.strict and alternatives(self, writer, facts):
            # What an open object does not name is only known once it is known which alternative holds.
            smaller = alternatives(self, writer, facts) if self.strictly(writer, node) else []
        else:
            problems = tuple(dict.fromkeys(self._demands(writer, facts, rules)))
            if not problems or self._contradictory(writer, facts):
                return ()
            smaller = cases(self, writer, facts, rules)
            if not smaller:
                return problems
        return tuple(dict.fromkeys(problem for case in smaller for problem in self.covers(case, node)))

    def _shown_apart(self, writer: Writer, node: Node) -> bool:
        smaller = alternatives(self, writer, self.facts(writer))
        before, self.strict = self.strict, self.strict or bool(smaller)
        shown = apart(self, writer, node)
        self.strict = before
        return shown or (bool(smaller) and all(self.apart(case, node) for case in smaller))

    def _demands(self, writer: Writer, facts: Facts, rules: Rules) -> Iterator[Problem]:
        yield from type_problems(self, facts, rules)
        if facts.values is not None:
            yield from value_problems(self, facts, rules)
        else:
            if facts.types & rules.types & NUMBERS:
                yield from number_problems(self, facts, rules)
            if "string" in facts.types & rules.types:
                yield from string_problems(self, facts, rules)
        if "object" in facts.types & rules.types:
            yield from object_problems(self, writer, facts, rules)
        if "array" in facts.types & rules.types:
            yield from array_problems(self, facts, rules)
        yield from combination_problems(self, writer, rules)

    def _contradictory(self, writer: Writer, facts: Facts) -> bool:
        """Whether something that does not hold would have to."""
        holding = Writer(tuple(fact for fact in writer.facts if fact.holds), writer.settled)
        return any(not self.strictly(holding, denied) for denied in facts.negated)

    def _closing(self, part: Rules) -> Rules | None:
        """`unevaluatedProperties` of a writer, said as `additionalProperties` beside all that may be evaluated."""
        if part.unevaluated is None:
            return None
        evaluated = possibly_evaluated(part, self.rules)
        if evaluated.all_names:
            return None
        anything = self.node(True)
        closing = Rules(part.node, additional=part.unevaluated)
        closing.properties = dict.fromkeys(sorted(evaluated.names), anything)
        closing.patterns = dict.fromkeys(sorted(evaluated.patterns), anything)
        return closing

    def _decide(self, key: Hashable, node: Node, work: Callable[[], tuple[Problem, ...] | bool], good: object) -> None:
        if self._nesting >= MAX_NESTING:
            raise Incomparable(node.place, f"is nested more than {MAX_NESTING} levels deep, so it was not compared")
        self._open[key] = self._level
        self._nesting += 1
        before = len(self._order)
        result = self._found[key] = work()
        self._nesting -= 1
        del self._open[key]
        if result == good:
            self._order.append(key)
        elif key in self._assumed:
            # What was shown in the meantime may rest on this pair, which does not hold.
            for other in self._order[before:]:
                self._found.pop(other, None)
            del self._order[before:]

    def _spend(self, node: Node, steps: int) -> None:
        self._steps += 1 + steps
        if self._steps > MAX_STEPS:
            raise Incomparable("#", f"is too complex to compare; the comparison was given up at {node.place}")

    def _side(self, node: Node) -> Nodes:
        return self._nodes[max(node.resource.side, 0)]
