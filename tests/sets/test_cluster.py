"""Which worker a process is, from environments as clusters set them; SLURM's were printed by its own jobs."""

import re

import pytest

from lantern_jax.apps.sets.cluster import assigned, chosen
from lantern_jax.apps.sets.plan import Worker
from tests.refused import refused


def array(task, first=0, last=3, count=4, step=1) -> dict[str, str]:
    names = {"ID": task, "MIN": first, "MAX": last, "COUNT": count, "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in names.items()} | {
        "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"
    }  # fmt: skip


def step(task, count) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(task), "SLURM_NTASKS": str(count), "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_STEP_ID": "0", "SLURM_STEPID": "0",
    }  # fmt: skip


def indexed(index, count) -> dict[str, str]:
    return {"JOB_COMPLETION_INDEX": str(index), "JOB_COMPLETIONS": str(count)}


def without(environment, *names):
    return {name: value for name, value in environment.items() if name not in names}


SHORT = without(array(5, 4, 6, 3), "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_MAX")
FOUND = {
    "an array that does not start at 0": (array(5, 4, 6, 3), "2/3"),
    "an array with a step": (array(7, 3, 7, 3, 2), "3/3"),
    "an array whose end is no multiple of its step": (array(8, 0, 8, 3, 4), "3/3"),
    "an array, where no step and no end is told": (SHORT, "2/3"),
    "a step by few variables": ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, "3/4"),
    "a step smaller than its job": (step(1, 2) | {"SLURM_NTASKS": "8"}, "2/2"),
    "a step in an array": (array(5, 3, 7, 3, 2) | step(1, 2), "4/6"),
    "a step of one in an array": (array(2) | step(0, 1), "3/4"),
    "a batch script of an array of jobs of two tasks": (array(5, 3, 7, 3, 2) | {"SLURM_NTASKS": "2"}, "2/3"),
    "an indexed job": (indexed(11, 12), "12/12"),
    "both, of one mind": (array(1) | indexed(1, 4), "2/4"),
    "empty variables": ({"SLURM_ARRAY_TASK_ID": ""} | indexed(0, 2), "1/2"),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_cluster_says_which_worker_a_process_is(name):
    environment, expected = FOUND[name]
    found = assigned(environment)
    assert found == Worker.parse(expected) and found.why and "\n" not in found.why
    assert chosen("auto", environment) == chosen(None, environment) == found


def test_every_task_is_a_different_worker():
    for count in (1, 2, 5):
        arrays = [array(task, 2, 2 + 3 * (count - 1), count, 3) for task in range(2, 2 + 3 * count, 3)]
        both = [one | step(task, 3) for one in arrays for task in range(3)]
        for environments in (arrays, both, [step(task, count) for task in range(count)]):
            workers = [assigned(environment) for environment in environments]
            assert workers == [Worker(number + 1, len(environments)) for number in range(len(environments))]


def test_jax_distributed():
    assert assigned({}, (2, 4)) == Worker(3, 4)
    # Its processes are those of the step, or the job's pods.
    assert assigned(step(1, 4), (2, 4)) == Worker(3, 4)
    assert assigned(indexed(1, 4) | {"JOB_COMPLETIONS": ""}, (2, 4)) == Worker(3, 4)
    assert assigned(array(1), (1, 2)) == Worker(4, 8)
    with pytest.raises(ValueError, match=r"process 4 of jax\.distributed is not one of its 4"):
        assigned({}, (4, 4))


WRONG = {
    "SLURM_ARRAY_TASK_COUNT is not set": without(array(1), "SLURM_ARRAY_TASK_COUNT"),
    "SLURM_ARRAY_TASK_ID is 'x', not a whole number from 0 on": array("x"),
    "SLURM_ARRAY_TASK_ID is '-1'": array(-1),
    "SLURM_ARRAY_TASK_COUNT is '0', not a whole number from 1 on": array(0, count=0),
    "SLURM_ARRAY_TASK_STEP is '0', not a whole number from 1 on": array(0, step=0),
    f"SLURM_ARRAY_TASK_COUNT is '{'9' * 30}'": array(0, count="9" * 30),
    "task 1 of a SLURM array of 3 tasks from 1 to 6, step 1, has no place": array(1, 1, 6, 3),
    "submit the array as a range such as 0-2": array(6, 1, 6, 3),
    "task 8 of a SLURM array": array(8, 3, 7, 3, 2),
    "SLURM_NTASKS is not set": {"SLURM_PROCID": "1"},
    "SLURM_PROCID is '²'": {"SLURM_PROCID": "²", "SLURM_NTASKS": "4"},
    "process 4 of the SLURM step is not one of its 4, counted from 0": step(4, 4),
    "JOB_COMPLETIONS is not set: set it to the job's completions": {"JOB_COMPLETION_INDEX": "0"},
    "JOB_COMPLETIONS is 'many'": indexed(0, "many"),
    "index 3 of the indexed job is not one of its 3, counted from 0": indexed(3, 3),
    "this is worker 1/4 for task 0 of the SLURM array 0-3, 1/2 for index 0 of 2 of the indexed job": array(0)
    | indexed(0, 2),
}


@pytest.mark.parametrize("line", WRONG)
def test_odd_values_are_a_one_line_error(line):
    for given in ("auto", None):
        with refused(re.escape(line) + ".*give --worker i/N$"):
            chosen(given, WRONG[line])


def test_a_flag_wins():
    assert chosen("2/3", {}) == Worker(2, 3)
    assert chosen("2/4", array(1)) == Worker(2, 4) and not chosen("2/4", array(1)).why
    why = "as --worker says, not 2/4 for task 1 of the SLURM array 0-3"
    assert chosen("1/1", array(1)) == Worker() and chosen("1/1", array(1)).why == why
    for environment in WRONG.values():
        assert chosen("2/3", environment) == Worker(2, 3)
    for text in ("", "3", "0/2", "3/2", "1/0", "a/b", "-1/2", "1/2/3", "1 /2", "²/3"):
        with pytest.raises(ValueError, match="is not valid: give i/N"):
            chosen(text, array(1))


def test_without_a_cluster_there_is_one_worker():
    batch_script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    for environment in ({}, {"HOME": "/"}, batch_script, {"SLURM_JOB_ID": "7"}):
        assert assigned(environment) is None
        assert chosen(None, environment) == Worker()
    with pytest.raises(ValueError, match="auto found no SLURM array or step, no indexed job"):
        chosen("auto", {})
    with pytest.raises(ValueError, match="this job of 4 tasks started one process: put srun before"):
        chosen("auto", batch_script)
