"""A published library, whose steps have a recipe; a user's package wires it.

Its wiring doubles the loss of the recipe in its own process, as a library may replace what plain
training is made of. So the step that doubles as well is wrong, and only plain training in another
process shows it. The library is torch: then there is nothing to install.
"""

from importlib.metadata import version
from pathlib import Path

from properties.helpers.toy import KNOWN

NAME = "withrecipe"

RECIPES = """
from torch import nn

from harness.recipes import Recipe, row

FACTOR = 1.0


class Scorer(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.embed, self.head = nn.Embedding(case.vocab, 4), nn.Linear(4, 1)

    def forward(self, ids):
        return self.head(self.embed(ids))[..., 0]


def loss(model, batch):
    return FACTOR * (scores(model, batch) * batch["wanted"]).mean()


def scores(model, batch):
    return (model(batch["input_ids"]) * batch["attention_mask"]).sum(1)


RECIPES = {key: Recipe(Scorer, loss, {"wanted": row()}) for key in ("right", "doubled")}
RECIPES["bare"] = Recipe(Scorer, lambda model, batch: FACTOR * scores(model, batch).mean())
"""

CANDIDATE = """
from functools import partial

from torch import distributed as dist
from torch.nn import functional as F

from harness.recipes import step
from withrecipe import recipes

recipes.FACTOR = TIMES = 2.0


def train(times, model, batch, mesh):
    group = mesh["sp"].get_group()
    pad = -batch["input_ids"].shape[1] % group.size()
    ids, real = (
        F.pad(batch[name], (0, pad)).chunk(group.size(), 1)[group.rank()]
        for name in ("input_ids", "attention_mask")
    )
    own = (model(ids) * real).sum(1)
    dist.all_reduce(score := own.detach().clone(), group=group)
    weight = times() * batch.get("wanted", 1.0)
    (own * weight).mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
    return (score * weight).mean()


STEPS = {
    "right": step(recipes.RECIPES["right"])(partial(train, lambda: 1.0)).run,
    "doubled": step(recipes.RECIPES["doubled"])(partial(train, lambda: TIMES)).run,
    "bare": step(recipes.RECIPES["bare"])(partial(train, lambda: 1.0)).run,
}
"""

LIMITS = """
from harness.against import RECIPE_LIMITS


def one_replica(case):
    return None if case.dp == 1 else f"dp={case.dp}: it knows one replica only"


LIMITS = dict.fromkeys(("right", "doubled", "bare"), one_replica)
STATED = dict.fromkeys(LIMITS, f"{RECIPE_LIMITS} micro=1 checkpoint=0 dp=1")
"""

MENDS = """
from unittest.mock import patch


def scaled():
    from withrecipe import candidate

    return patch.object(candidate, "TIMES", 1.0)


MENDS = {"scaled": scaled}
"""

# The first of the bugs of the toy: it is in a step that computes too large a loss.
LISTED = (
    KNOWN.split("[[bug]]")[1]
    .replace('["step", "crowded"]', '["doubled"]')
    .replace('["weight", "grad.*"]', '["loss", "grad.*"]')
    .replace('when = ["sp>1"]', "when = []")
    .replace('fixed = "1.1"', 'fixed = ""')
)


def make(folder: Path) -> Path:
    """Write the package, and return the folder to import it from."""
    package = folder / "outside" / NAME
    package.mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "recipes.py": RECIPES,
        "candidate.py": CANDIDATE,
        "limits.py": LIMITS,
        "mends.py": MENDS,
        "known.toml": f"[[bug]]{LISTED}",
        "requirements.txt": f"torch=={version('torch').partition('+')[0]}\n",
    }.items():
        (package / name).write_text(text)
    facts = folder / "outside" / f"{NAME}-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[harness.candidates]\n{NAME} = {NAME}\n")
    return folder / "outside"
