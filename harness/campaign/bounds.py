"""The bounds of what was judged: beyond them nothing is known. Needs no torch."""

from dataclasses import dataclass, field

from harness.case import Case

# Fields of a case as they are told; many values are told as the largest.
LARGEST = ("rows", "tokens a row", "micro-batches", "heads", "window")
VALUES = {
    "sp": "sp",
    "dp": "dp",
    "kv heads": "kv_heads",
    "head dim": "head_dim",
    "layers": "layers",
    "vocab": "vocab",
    "steps": "steps",
    "dtype": "dtype",
    "loss": "loss",
    "kernel": "kernel",
    "model": "model",
    "wrapper": "wrapper",
}
# What a case has or has not, and is told where no case had it.
TURNED_ON = ("compiled", "mixed", "checkpoint", "tied")


@dataclass(slots=True)
class Bounds:
    """By what it is called, the largest value, or every value that there was."""

    largest: dict[str, int] = field(default_factory=dict)
    values: dict[str, list[str]] = field(default_factory=dict)

    def add(self, case: Case) -> None:
        self._take(
            Bounds(
                {
                    "rows": len(case.rows),
                    "tokens a row": max(map(len, case.rows)),
                    "micro-batches": case.micro_batches,
                    "heads": case.heads,
                    "window": case.window or 0,
                },
                {name: [str(getattr(case, attribute))] for name, attribute in VALUES.items()}
                | {name: [str(int(getattr(case, name)))] for name in TURNED_ON},
            )
        )

    def _take(self, other: "Bounds") -> None:
        for name, most in other.largest.items():
            self.largest[name] = max(most, self.largest.get(name, 0))
        for name, its in other.values.items():
            known = self.values.setdefault(name, [])
            new = [value for value in its if value not in known]
            if new:
                self.values[name] = sorted([*known, *new], key=_in_order)

    def __add__(self, other: "Bounds") -> "Bounds":
        both = Bounds()
        both._take(self)
        both._take(other)
        return both

    def text(self) -> str:
        """In one sentence; nothing where nothing was judged."""
        if not self.largest:
            return ""
        rows, tokens, *others = (f"≤ {self.largest[name]}" for name in LARGEST)
        parts = [
            f"rows {rows} of {tokens} tokens",
            *(f"{name} {','.join(self.values[name])}" for name in VALUES),
            *(f"{name} {most}" for name, most in zip(LARGEST[2:], others, strict=True)),
        ]
        off = [name for name in TURNED_ON if self.values[name] == ["0"]]
        return f"bounds: {'; '.join(parts)}" + (f"; none {', '.join(off)}" if off else "")

    def is_sound(self) -> bool:
        """Whether it says something of everything, or nothing at all."""
        told = {*LARGEST, *VALUES, *TURNED_ON} if self.largest else set[str]()
        return (
            {*self.largest, *self.values} == told
            and all(self.values.values())
            and min(self.largest.values(), default=0) >= 0
        )


def _in_order(value: str) -> tuple[int, str]:
    """Numbers by their size."""
    return len(value), value
