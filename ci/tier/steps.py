"""The steps of the GPU tier, as data: what each runs, what it shows, and how long it may take.

They run in the order of the list, the most valuable first.
"""

from dataclasses import dataclass
from typing import Any

CUDA = ("cuda",)
REAL = ("cuda", "cpu")
ANY = ("cuda", "cpu", "pretend")


@dataclass(frozen=True, slots=True)
class Step:
    """One program, which runs in a process of its own."""

    name: str
    shows: str
    # The arguments of Python, with placeholders.
    words: str
    # The limit in seconds, and the fewest seconds with which the step is started at all.
    most: int
    least: int = 10
    # The devices on which it runs.
    devices: tuple[str, ...] = ANY
    # An optional module that it needs.
    module: str = ""
    # Whether it needs the other NCCL, which the variable NCCL names.
    nccl: bool = False
    # The suffix of the file that gets its standard output: json for a document, or txt.
    ending: str = "json"

    @property
    def sized(self) -> bool:
        """Whether its number of cases can be chosen, and with it how long it takes."""
        return "{cases}" in self.words

    def command(self, **values: str) -> list[str]:
        """Return the arguments of Python with these values; empty arguments are dropped."""
        return list(filter(None, (word.format(**values) for word in self.words.split())))


RANKS = "--device {device} --ranks 4 --json --deadline {deadline}"
PAGES = "--report {out}/pages"


def _check(name: str, options: str, where: str, **more: Any) -> Step:
    words = f"-m harness check {RANKS} {PAGES} --cases {{cases}} --limit {{limit}} {options}"
    return Step(f"check-{name}", f"generated cases pass {where}", words, 240, 45, **more)


def _record(dtype: str) -> tuple[Step, Step]:
    return (
        Step(
            f"record-{dtype}",
            f"what the device computes in {dtype}, stored as goldens",
            f"-m harness golden generate {RANKS} --dtype {dtype} --out {{out}}/{dtype}",
            most=90,
        ),
        Step(
            f"again-{dtype}",
            "computed again it is the same to the last bit, or what moved says why",
            f"-m harness golden verify {RANKS} --store {{out}}/{dtype}",
            most=90,
        ),
    )


def _tests(name: str, path: str, shows: str, most: int, module: str = "") -> Step:
    # Other plugins of the runner and warnings of its torch must not disturb the tests. `dev` draws
    # new examples every time, and keeps those that failed for the next.
    words = (
        "-m pytest -q --slow -p harness.plugin -p _hypothesis_pytestplugin "
        "--hypothesis-profile=dev -o filterwarnings=default -o junit_family=xunit1 "
        "--harness-device {device} {require} "
        f"--harness-deadline {{deadline}} --harness-report {{out}}/pages "
        f"--junitxml={{out}}/{name}.xml properties/{path}"
    )
    return Step(name, shows, words, most, 60, REAL, module, ending="txt")


def _long(tokens: int, most: int) -> Step:
    return Step(
        f"long-{tokens}",
        f"one step of {tokens:,} tokens over two ranks: its verdict, seconds and memory",
        f"ci/bench.py --length {tokens} --device {{device}} --json",
        most,
        30,
        CUDA,
    )


BUGS = "B11b,B16,B14,B29,B43,B60,B71b,B76,B89,B108,B101,B123,B132,B145"

STEPS = (
    Step("packages", "which packages are missing or too old, and which are needed",
         "ci/packages.py", 30, 1, ending="txt"),
    Step("doctor", "devices, transports and kernels that can run here, and why the others cannot",
         "-m harness doctor --json", 180),
    Step("machine", "the GPU, cores, memory and disk; seconds to import torch and to look up the "
         "host's own name", "ci/tier/machine.py", 120),
    Step("first-cases", "two ranks come up and judge three cases",
         "-m harness check --device {device} --ranks 2 --sp 2 --dp 1 --cases 3 --deadline 150 "
         "--json", 180),
    Step("probe", "seconds until four ranks are up and the first case is judged; then cases per "
         "second and memory: the steps of generated cases are sized by it",
         f"ci/tier/probe.py {RANKS} --cases 20 --dtype fp64,fp32,bf16,fp16", 180),
    Step("attention", "which fused attention runs, forward and backward, by dtype, head size, "
         "mask and shared kv heads, how far it is off, and which one torch takes by itself",
         "ci/tier/attention.py {device}", 120, 60, REAL),
    Step("collectives", "which collectives gloo carries between two ranks on the device, by dtype",
         "ci/tier/collectives.py {device}", 150, 60, REAL),
    Step("golden", "the stored cases come out right on every mesh of four ranks",
         f"-m harness golden verify {RANKS} {PAGES}", 180, 30),
    _check("fp64", "--dtype fp64", "in fp64, in either dialect"),
    _check("bf16", "--dtype bf16", "in bf16"),
    _check("fp32", "--dtype fp32", "in fp32"),
    _check("varlen", "--dtype bf16,fp16 --kernel varlen", "in bf16 and fp16 with torch's kernel "
           "for rows end to end", devices=CUDA),
    _check("flash", "--dtype bf16,fp16 --kernel flash", "the same with flash-attn, where it is "
           "installed", devices=CUDA, module="flash_attn"),
    _tests("kernels", "test_kernels.py", "attention kernels agree", 240),
    _tests("recipes", "meta/recipes/test_recipes.py", "right steps of any model and loss pass, "
           "and each fault is found", 600, "transformers"),
    Step("mutants", "the check can fail here: a known bug of every stage is found and named",
         f"-m harness mutants {RANKS} {PAGES} --cases 60 --only {BUGS}", 450, 60),
    *_record("bf16"),
    Step("nccl", "one rank computes over NCCL itself",
         "-m harness check --device {device} --ranks 1 --sp 1 --dp 1 --transport nccl --cases 20 "
         "--deadline {deadline} --json", 120, 30, CUDA),
    Step("nccl-shared", "two ranks share one GPU over the NCCL that was brought along",
         "-m harness check --device {device} --ranks 2 --sp 2 --dp 1 --transport nccl --cases 20 "
         "--deadline {deadline} --json", 180, 60, CUDA, nccl=True),
    _check("fp16", "--dtype fp16", "in fp16"),
    Step("rate", "cases per second against a bare loop on the same ranks",
         "ci/bench.py --rate --cases 20 --rounds 3 --device {device} --json", 240, 60,
         REAL),
    _long(4096, 90),
    _long(16384, 120),
    _long(65536, 420),
    _tests("around", "step/test_around.py", "wrappers change nothing", 900),
    _tests("equivalence", "test_equivalence.py", "sharded training is plain training", 900),
    _tests("metamorphic", "metamorphic", "a step agrees with itself", 900),
    *_record("fp16"),
)  # fmt: skip

# Seconds for all steps of a plan, so that a visit takes less than ten minutes.
VISIT = 500
PLANS = {
    "first": ("packages", "doctor", "machine", "first-cases", "probe", "attention", "collectives"),
    "second": ("golden", "check-fp64", "check-bf16"),
    "third": ("check-fp32", "check-varlen", "check-flash", "kernels"),
    "fourth": ("mutants", "record-bf16", "again-bf16", "nccl", "nccl-shared"),
    "fifth": ("rate", "long-4096", "long-16384", "long-65536"),
    "sixth": ("around", "recipes"),
    "seventh": ("equivalence", "metamorphic"),
    "eighth": ("check-fp16", "record-fp16", "again-fp16"),
}


def chosen(names: list[str], *, sized: bool) -> list[Step]:
    """Return the steps of the named plans and steps, or all; with the probe if any is `sized`."""
    wanted = {step for name in names for step in PLANS.get(name, (name,))}
    steps = [step for step in STEPS if not names or step.name in wanted]
    if sized and any(step.sized for step in steps):
        return [step for step in STEPS if step in steps or step.name == "probe"]
    return steps
