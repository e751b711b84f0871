"""How much of a study is done: ``launch.sweep`` lists the planned runs in the study's folder."""

import json
from pathlib import Path
from typing import TypedDict

STUDY_FILE = "study.json"


class Planned(TypedDict):
    """Numbers of runs."""

    runs: int
    finished: int


def planned_runs(folder: Path) -> Planned | None:
    """Of the study in this folder; None where no plan lies there or it cannot be read."""
    try:
        plan = json.loads((folder / STUDY_FILE).read_bytes())
        folders = [folder / run["folder"] for run in plan["runs"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    finished = sum((run / "summary.json").is_file() for run in folders)
    return {"runs": len(folders), "finished": finished}
