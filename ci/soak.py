"""Judge many cases in fp64: each must pass, and none may come near what is allowed.

`ci/soak` runs it. What `check` prints as JSON stays in .harness/soak.json.
"""

import json
import subprocess
import sys

from project import ROOT

CASES, PASSED = 10_000, ("EQUAL", "WITHIN")
# The largest share of a budget that rounding in fp64 may use.
LIMIT = 0.5


def main() -> None:
    options = sys.argv[1:]
    cases = int(options.pop(0)) if options and options[0].isdigit() else CASES
    kept = ROOT / ".harness" / "soak.json"
    kept.parent.mkdir(exist_ok=True)
    check = [sys.executable, "-m", "harness", "check", "--dtype=fp64", "--json", *options]
    with kept.open("w") as out:
        done = subprocess.run([*check, f"--cases={cases}"], stdout=out, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    for name, candidate in json.loads(kept.read_text())["candidates"].items():
        used, passed = candidate["used"], sum(map(candidate["verdicts"].get, PASSED, (0, 0)))
        if passed < cases:
            sys.exit(f"soak: {name} passed {passed} cases of {cases}")
        if used >= LIMIT:
            sys.exit(f"soak: {name} used {used:.3g} of what is allowed; the limit is {LIMIT}")
        print(
            f"soak: {name} passed {passed} cases and used at most {used:.3g} of what is allowed; "
            f"in {candidate['asked_again']} of them plain training was asked again"
        )


if __name__ == "__main__":
    main()
