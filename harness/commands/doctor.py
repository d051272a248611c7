"""`doctor`: what will run here."""

import argparse

from harness.commands.options import PASSED, json_option, print_json

HELP = "say what can run on this machine, what cannot, and why"


def add(parser: argparse.ArgumentParser) -> None:
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    from harness.doctor import examine, show

    facts = examine()
    if options.json:
        print_json(facts)
    else:
        show(facts)
    return PASSED
