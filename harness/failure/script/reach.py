"""All that is needed for something, and the order in which Python can execute it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.failure.script.graph import Definition, External, Graph, Target
from harness.failure.script.module import Part, Statement


@dataclass
class Reached:
    """What a script is made of."""

    # Modules in the order in which they would import each other, each in the order of its source.
    statements: list[Statement] = field(default_factory=list)
    externals: dict[External, None] = field(default_factory=dict)
    parts: set[Part] = field(default_factory=set)


class Reach:
    """Follows what is needed from one definition to the next."""

    def __init__(self, graph: Graph, mentioned: Iterable[str]) -> None:
        self._graph = graph
        self._mentions = set(mentioned)
        self._found = Reached()
        # In the order in which they were come upon.
        self._taken: dict[Statement, None] = {}
        self._maybe: dict[Part, None] = {}
        # Which modules a module needs.
        self._edges: dict[str, dict[str, None]] = {}

    def reached(self, roots: Iterable[Target]) -> Reached:
        waiting: list[Target] = list(reversed(list(roots)))
        while waiting or (wanted := self._wanted()):
            parts = self._take(waiting.pop()) if waiting else wanted
            for part in parts:
                self._found.parts.add(part)
                self._mentions |= part.mentions
                for needed in self._graph.needs(part):
                    waiting.append(needed)
                    if isinstance(needed, Definition):
                        self._edges[part.statement.module.name][needed.module] = None
        modules = [self._graph.module(name) for name in self._sorted()]
        self._found.statements = [s for m in modules for s in m.statements if s in self._taken]
        return self._found

    def _take(self, target: Target) -> list[Part]:
        """The parts of its statements that are needed in any case."""
        if isinstance(target, External):
            self._found.externals[target] = None
            return []
        module = self._graph.module(target.module)
        self._edges.setdefault(module.name, {})
        wanted = module.touching[target.name] + module.effects
        new = [statement for statement in wanted if statement not in self._taken]
        self._taken |= dict.fromkeys(new)
        self._maybe |= {part: None for s in new for part in s.parts if part.member}
        return [s.parts[0] for s in new]

    def _wanted(self) -> list[Part]:
        """Members that somebody has asked for since."""
        asked = self._mentions
        wanted = [p for p in self._maybe if {p.member, f"super.{p.member}"} & asked]
        for part in wanted:
            del self._maybe[part]
        return wanted

    def _sorted(self) -> list[str]:
        """Depth first: every module behind those that it needs."""
        done: dict[str, None] = {}
        begun: set[str] = set()

        def visit(name: str) -> None:
            if name not in begun:
                begun.add(name)
                for other in self._edges[name]:
                    visit(other)
                done[name] = None

        for name in self._edges:
            visit(name)
        return list(done)
