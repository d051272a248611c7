"""The module of skyrl's workers, with those that can be copied out of it without ray."""

import sys
from types import ModuleType

from harness.candidates.published.skyrl import library


def install() -> None:
    name = f"{library.TRAIN}.workers.worker"
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(PolicyWorkerBase=library.PolicyWorker, RefWorkerBase=library.RefWorker)
