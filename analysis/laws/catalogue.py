"""Every law that ``--law=`` knows. A new one is a small file beside these and a row here."""

from collections.abc import Callable

import pandas as pd

from analysis.errors import AnalysisError
from analysis.laws.joint import chinchilla, joint
from analysis.laws.joint_data import joint_data
from analysis.laws.joint_floors import joint_floors
from analysis.laws.joint_gamma import joint_gamma
from analysis.laws.law import Law
from analysis.laws.local import local

#: By name: the law for a table in which the injection is counted.
LAWS: dict[str, Callable[[pd.DataFrame], Law]] = {
    "joint": joint,
    "chinchilla": chinchilla,
    "joint_data": joint_data,
    "joint_floors": joint_floors,
    "joint_gamma": joint_gamma,
    "local": local,
}


def law_for(name: str, counted: pd.DataFrame) -> Law:
    """The law of this name; AnalysisError names those there are."""
    if name not in LAWS:
        raise AnalysisError(f"law {name!r}: choose one of {', '.join(LAWS)}")
    return LAWS[name](counted)
