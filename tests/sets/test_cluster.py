"""Which part of a set a process makes, from environments as clusters set them."""

import re

import pytest

from lantern_jax.apps.sets.cluster import assigned, chosen
from lantern_jax.apps.sets.set_plan import Part
from tests.refused import refused


def array(task, first=0, last=3, count=4, step=1) -> dict[str, str]:
    names = {"ID": task, "MIN": first, "MAX": last, "COUNT": count, "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in names.items()} | {
        "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"
    }  # fmt: skip


def step(task, count) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(task), "SLURM_NTASKS": str(count), "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_STEP_ID": "0",
    }  # fmt: skip


def indexed(index, count) -> dict[str, str]:
    return {"JOB_COMPLETION_INDEX": str(index), "JOB_COMPLETIONS": str(count)}


FOUND = {
    "an array that does not start at 0": (array(5, 4, 6, 3), "2/3"),
    "an array with a step": (array(7, 3, 7, 3, 2), "3/3"),
    "a step smaller than its job": (step(1, 2) | {"SLURM_NTASKS": "8"}, "2/2"),
    "a step in an array": (array(5, 3, 7, 3, 2) | step(1, 2), "4/6"),
    "a step of one in an array": (array(2) | step(0, 1), "3/4"),
    "a batch script of an array of jobs of two tasks": (array(5, 3, 7, 3, 2) | {"SLURM_NTASKS": "2"}, "2/3"),
    "an indexed job": (indexed(11, 12), "12/12"),
    "empty variables": ({"SLURM_ARRAY_TASK_ID": ""} | indexed(0, 2), "1/2"),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_cluster_decides_the_part(name):
    environment, expected = FOUND[name]
    found = assigned(environment)
    assert found == Part.parse(expected) and found.why
    assert chosen("auto", environment) == chosen(None, environment) == found


def test_every_task_has_another_part():
    for count in (1, 2, 5):
        arrays = [array(task, 2, 2 + 3 * (count - 1), count, 3) for task in range(2, 2 + 3 * count, 3)]
        both = [one | step(task, 3) for one in arrays for task in range(3)]
        for environments in (arrays, both, [step(task, count) for task in range(count)]):
            parts = [assigned(environment) for environment in environments]
            assert parts == [Part(number + 1, len(environments)) for number in range(len(environments))]


def test_jax_distributed_takes_the_place_of_the_step():
    assert assigned({}, (2, 4)) == assigned(step(1, 4), (2, 4)) == Part(3, 4)
    assert assigned(array(1), (1, 2)) == Part(4, 8)


WRONG = {
    "SLURM_ARRAY_TASK_ID is 'x', not a number": array("x"),
    "submit the array as a range such as 0-2": array(6, 1, 6, 3),
    "JOB_COMPLETIONS is None, not a number": {"JOB_COMPLETION_INDEX": "0"},
}


@pytest.mark.parametrize("line", WRONG)
def test_odd_values_are_refused(line):
    with refused(re.escape(line) + ".*give --worker i/N$"):
        chosen(None, WRONG[line])


def test_an_explicit_part_wins():
    assert chosen("2/4", array(1)) == Part(2, 4) and chosen("1/1", array(1)) == Part()
    for text in ("", "3", "0/2", "3/2", "a/b", "-1/2", "1/2/3"):
        with refused("is not valid: give i/N"):
            chosen(text, array(1))


def test_without_a_cluster_there_is_one_part():
    batch_script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    for environment in ({}, batch_script):
        assert assigned(environment) is None and chosen(None, environment) == Part()
    with refused("auto found no SLURM array or step, no indexed job"):
        chosen("auto", {})
    with refused("put srun before the command"):
        chosen("auto", batch_script)
