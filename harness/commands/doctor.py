"""`doctor`: report which devices, transports and kernels work on this machine."""

from harness.commands.options import PASSED, Output, print_json


def run(*, options: Output = Output()) -> int:
    from harness.doctor import examine, show

    facts = examine()
    if options.json:
        print_json(facts)
    else:
        show(facts)
    return PASSED
