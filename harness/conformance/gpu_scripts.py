"""The script beside a page that shows its bug on two GPUs, and patches nothing."""

from pathlib import Path

from harness.candidates.published.bugs import Bug
from harness.candidates.published.library import Library
from harness.conformance.scripts import FOLDER

GPU = "gpu"


def gpu_script_of(library: Library, bug: Bug, docs: Path) -> Path:
    """Return the path of the script with which a bug shows on two GPUs."""
    return docs / FOLDER / library.name / GPU / f"{bug.key}.py"


def gpu_script_section(library: Library, bug: Bug, docs: Path) -> list[str]:
    """Return the paragraphs of a page about its script for GPUs; none if there is no script."""
    script = gpu_script_of(library, bug, docs)
    if not script.is_file():
        return []
    name = f"{GPU}/{script.name}"
    text = (
        f"[{name}]({name}) is for two GPUs. It runs the library as it is installed, and patches "
        "nothing. **It was not run on GPUs; we had none.** With a CPU in place of each GPU, and "
        "stand-ins for kernels of GPUs and for packages that are not installed here, it ends "
        "with 1, and with `--control` it ends with 0."
    )
    return ["## On two GPUs", text, f"```\ntorchrun --nproc-per-node 2 {name}\n```"]
