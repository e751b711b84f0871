"""Tables that several tests of the analysis start from."""

from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis import RunTable, Settings, Study, fit_study, load_runs
from analysis.page import style


@pytest.fixture(autouse=True, scope="module")
def unrendered(request):
    """Figures are made but not rendered, which takes most of a report's time.

    A module with RENDERS_FIGURES sees the files themselves, as tests/test_contract.py does.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not hasattr(request.module, "RENDERS_FIGURES"):
            patch.setattr(style, "_render", lambda *_, **__: b"<svg/>")
        yield


@pytest.fixture(scope="session")
def published_csv() -> Path:
    return Path(analysis.__file__).parent / "data" / "schwethelm2026_isodepth.csv"


@pytest.fixture(scope="session")
def published(published_csv) -> RunTable:
    """The 116 runs of arXiv:2604.21106; tests that change the frame copy it."""
    return load_runs(published_csv)


@pytest.fixture(scope="session")
def published_study(published) -> Study:
    """What `fit` makes of them, from few starts and resamples."""
    return fit_study(published, Settings(starts=6, resamples=20))


@pytest.fixture
def frame(published) -> pd.DataFrame:
    """A copy of the published runs to spoil."""
    return published.runs.copy()


@pytest.fixture
def write_csv(tmp_path):
    def write(frame: pd.DataFrame, name: str = "runs.csv") -> Path:
        path = tmp_path / name
        frame.to_csv(path, index=False)
        return path

    return write
