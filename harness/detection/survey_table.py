"""Show which mistakes were found so far, and at the end in which case each was."""

from rich.console import Console
from rich.text import Text

from harness.console import empty_table, print_plain
from harness.detection.mistakes import Survey
from harness.report import explain


class SurveyProgress:
    """Print a line whenever a case has shown further mistakes."""

    def __init__(self, console: Console) -> None:
        self._console, self._shown = console, 0

    def __call__(self, survey: Survey) -> None:
        if len(survey.shown) > self._shown:
            self._shown = len(survey.shown)
            print_plain(
                self._console,
                f"case {survey.cases}: {self._shown} of {len(survey.possible)} mistakes are shown",
            )


def show_survey(survey: Survey, console: Console) -> None:
    """Show in which case each mistake was found, and which were not."""
    if survey.failure is not None:
        print_plain(console, f"The step itself fails.\n\n{explain(survey.failure)}")
        return
    if not survey.cases:
        reasons = [f"{count} times because of '{why}'" for why, count in survey.refused.items()]
        print_plain(console, f"The step supports no case that was drawn: {'; '.join(reasons)}")
        return
    table = empty_table("mistakes that these cases show")
    table.add_column("case", justify="right", no_wrap=True)
    table.add_column("mistake", no_wrap=True)
    table.add_column("what is wrong", overflow="fold")
    for mistake in survey.shown:
        table.add_row(str(mistake.tried), mistake.anomaly, Text(mistake.sentence))
    console.print(table)
    for mistake in survey.possible:
        if not mistake.case:
            why = f"cannot be tried: {mistake.fault}" if mistake.fault else "not shown"
            print_plain(console, f"{why}  {mistake.anomaly}: {mistake.sentence}")
    cases = "1 case" if survey.cases == 1 else f"{survey.cases} cases"
    others = len(survey.mistakes) - len(survey.possible)
    print_plain(
        console,
        f"\n{len(survey.shown)} of {len(survey.possible)} mistakes are shown by {cases}"
        + (f"; {others} more cannot be made with this loss" if others else ""),
    )
