import json

import pytest

from analysis.tables.planned import planned_runs
from launch.study import group_by_shape, load_study, refuse_strangers, run_id, write_plan
from looped_jax.errors import UserError
from tests.launch.sweeps import PLANNED


@pytest.fixture
def study(tmp_path):
    return load_study(PLANNED, tmp_path)


def test_a_study_is_planned(study, tmp_path):
    assert study.name == "tiny"
    assert [run.name for run in study.runs] == ["r1_100", "r1_200", "r2_100"]
    run = study.runs[0]
    assert run.tokens == 100 * 4 * 16
    assert run.flops == run.tokens * run.resolved.flops_per_token
    assert run.folder.path.parent == tmp_path / "runs"
    assert not (tmp_path / "runs").exists()


def test_runs_of_one_shape_are_together_with_the_most_flops_first(study):
    groups = group_by_shape(study.runs)
    assert [[run.name for run in group] for group in groups] == [["r1_200", "r1_100"], ["r2_100"]]


def test_the_folder_of_a_run_depends_on_what_changes_its_numbers(study, tmp_path):
    config = study.runs[0].config
    assert study.runs[0].folder.path.name == run_id(config)
    assert [run_id(run.config) for run in load_study(PLANNED, tmp_path, data="elsewhere").runs] == [
        run_id(run.config) for run in study.runs
    ]
    for key, value in {"seed": 1, "checkpoint": {"every_steps": 1, "keep": 1}}.items():
        assert (run_id(config | {key: value}) == run_id(config)) == (key == "checkpoint")
    other_length = config | {"data": config["data"] | {"sequence_length": 8}}
    assert run_id(other_length) != run_id(config)


def test_data_takes_the_place_of_every_folder(tmp_path):
    study = load_study(PLANNED, tmp_path, data="elsewhere")
    assert {run.resolved.data.folder for run in study.runs} == {"elsewhere"}


BODIES = {
    "def get_run(): pass": "has no function get_runs()",
    "get_runs = lambda: 3": "get_runs() returned no list of ConfigDict",
    "get_runs = lambda: [{}]": "get_runs() returned no list of ConfigDict",
    "get_runs = lambda: []": "get_runs() returned no run",
    "get_runs = lambda: [run(1, 5), run(1, 5)]": "name = 'r1_5' of two runs",
    "get_runs = lambda: [change(name='a/b')]": "name = 'a/b'; allowed: letters, digits",
    "get_runs = lambda: [change(study='')]": "study = ['']; allowed: one and the same name",
    "get_runs = lambda: [run(1, 5), change(study='other')]": "study = ['other', 'tiny']; allowed",
    "get_runs = lambda: [change(sede=1)]": "r2_5: config.sede is not a config key",
    "get_runs = lambda: [change(seed=-1)]": "r2_5: seed = -1; allowed: at least 0",
}
PRELUDE = """
from tests.launch.tiny_study import run
def change(**keys):
    config = run(2, 5)
    config.unlock()
    config.update(keys)
    return config
"""


@pytest.mark.parametrize("body", BODIES)
def test_what_is_no_study_is_refused(body, tmp_path):
    path = tmp_path / "study.py"
    path.write_text(PRELUDE + body)
    with pytest.raises(UserError) as error:
        load_study(path, tmp_path)
    assert str(error.value).startswith(f"study {path}: ")
    assert BODIES[body] in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"), [("none.py", "no such file"), ("study.txt", "not a Python file")]
)
def test_a_file_that_cannot_be_loaded_is_refused(name, message, tmp_path):
    (tmp_path / "study.txt").write_text("")
    with pytest.raises(UserError, match=message):
        load_study(tmp_path / name, tmp_path)


def test_runs_that_a_study_no_longer_has_are_refused(study, tmp_path):
    def leave(name, of_study):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"config": {"study": of_study}}))

    leave(study.runs[0].folder.path.name, "tiny")
    leave("of-another-study", "another")
    (tmp_path / "runs" / "no-run").mkdir()
    refuse_strangers(study, tmp_path)
    leave("r1_100-00000000", "tiny")
    with pytest.raises(
        UserError, match=r"1 run\(s\) that study 'tiny' no longer has \(r1_100-0000"
    ):
        refuse_strangers(study, tmp_path)


ARGUMENT = """
def get_runs(arg=""):
    if arg not in ("", "size=44m"):
        raise ValueError(f"{arg!r}; allowed: size=44m")
    return [run(2, 5), run(2, 10)] if arg else [run(2, 5)]
"""


def test_the_plan_tells_an_analysis_how_much_is_done(study, tmp_path):
    write_plan(study, tmp_path)
    assert planned_runs(tmp_path) == {"runs": len(study.runs), "finished": 0}
    folder = study.runs[0].folder
    folder.path.mkdir(parents=True)
    folder.summary_path.write_text("{}")
    assert planned_runs(tmp_path) == {"runs": len(study.runs), "finished": 1}
    (tmp_path / "study.json").write_text("[")
    assert planned_runs(tmp_path) is None


def test_a_study_may_take_an_argument(tmp_path):
    path = tmp_path / "study.py"
    path.write_text(PRELUDE + ARGUMENT)
    assert len(load_study(path, tmp_path).runs) == 1
    assert len(load_study(tmp_path / "study.py:size=44m", tmp_path).runs) == 2
    with pytest.raises(UserError, match=r"study .*: 'size=1b'; allowed: size=44m"):
        load_study(tmp_path / "study.py:size=1b", tmp_path)


def test_an_argument_that_a_study_does_not_take_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"planned_study.py takes no argument"):
        load_study(PLANNED.with_name("planned_study.py:size=44m"), tmp_path)


def test_overrides_reach_every_run_and_make_it_another(study, tmp_path):
    changes = ["--config.model.width=16", "--config.optimizer.rate=1", "--config.mesh=data:2"]
    runs = load_study(PLANNED, tmp_path, changes=changes).runs
    assert {(run.resolved.model.width, run.resolved.model.heads) for run in runs} == {(16, 4)}
    assert {run.resolved.optimizer.rate for run in runs} == {1.0}
    assert not {run.folder.path for run in runs} & {run.folder.path for run in study.runs}
    same = load_study(PLANNED, tmp_path, changes=["--config.mesh=data:2"]).runs
    assert [run.folder.path for run in same] == [run.folder.path for run in study.runs]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "--config.model.widht=16",
            r"r1_100: unknown config key 'widht' in .*: .*'width'",
        ),
        ("--config.model.width=wide", r"r1_100: flag --config.model.width=wide: invalid .*'wide'"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(change, message, tmp_path):
    with pytest.raises(UserError, match=message):
        load_study(PLANNED, tmp_path, changes=[change])
