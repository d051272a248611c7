"""prox_logp_method loglinear takes the version of the token before each target: logprobs and
loss_mask are rolled, versions are not

areal 1.0.4: a prompt of two tokens, and a response of three, of which each was made by another
version. With --control one version made all three, and the first of them is not compared.

pip install areal==1.0.4; needs no GPU, and no second rank, for the bug shows on one. Exit status
1 if it shows.
"""

import importlib.util
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import torch

CONTROL = "--control" in sys.argv
NOW = 3
VERSIONS = [1, 1, 1] if CONTROL else [0, 1, 2]


def published():
    """The actor's module, without the services that its packages start."""
    absent = "areal.experimental.training_service"
    controller = f"{absent}.controller.controller"
    for name in ("areal.experimental", absent, f"{absent}.controller", controller):
        sys.modules[name] = types.ModuleType(name)
    ray, numba = types.ModuleType("ray"), types.ModuleType("numba")
    ray.remote = numba.njit = lambda of: of
    sys.modules.update(ray=ray, numba=numba)
    sys.modules[controller].GatewayTrainController = object
    for name in ("areal.infra.rpc", "areal.infra.rpc.serialization"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["areal.infra.rpc.serialization"].serialize_value = None
    place = Path(importlib.util.find_spec("areal").submodule_search_locations[0])
    for name in ("areal", "areal.infra", "areal.engine", "areal.trainer", "areal.trainer.ppo"):
        package = types.ModuleType(name)
        package.__path__ = [str(place.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    sys.modules["areal.infra"].TrainController = object
    # The library logs the time to what is stdout now.
    with redirect_stdout(sys.stderr):
        from areal.api.cli_args import PPOActorConfig
        from areal.trainer.ppo import actor

        config = PPOActorConfig(
            *("e", "t", "p"),
            backend="fsdp:d1",
            use_decoupled_loss=True,
            prox_logp_method="loglinear",
        )
        return actor, actor.PPOActor(config, SimpleNamespace())


def main():
    module, actor = published()
    # As RLVRWorkflow yields a row: what belongs to a token is in its place.
    row = {
        "input_ids": torch.tensor([[5, 6, 7, 8, 9]]),
        "attention_mask": torch.ones(1, 5).bool(),
        "loss_mask": torch.tensor([[0, 0, 1, 1, 1]]),
        "logprobs": torch.tensor([[0.0, 0.0, -1.0, -1.0, -1.0]]),
        "versions": torch.tensor([[-1, -1, *VERSIONS]]),
        "rewards": torch.tensor([1.0]),
    }
    data = actor._compute_advantages(row)
    # The policy of now gives each token -2, the one that acted gave it -1.
    now = torch.full((1, 5), -2.0)
    proximal = module._resolve_proximal_logp(
        None, "loglinear", data["logprobs"], now, data["versions"], NOW
    )
    got = proximal[data["loss_mask"].bool()].tolist()
    expected = [-1 - (NOW - 1 - version) / (NOW - version) for version in VERSIONS]
    if CONTROL:
        expected, got = expected[1:], got[1:]
    print(f"expected log-probabilities of the proximal policy: {shown(expected)}")
    print(f"got                                                {shown(got)}")
    return int(any(abs(a - b) > 1e-3 for a, b in zip(expected, got, strict=True)))


def shown(numbers):
    return " ".join(f"{number:7.4f}" for number in numbers)


if __name__ == "__main__":
    sys.exit(main())
