"""The arguments of training scripts: an experiment, the word that it takes, and changes to its values."""

import pytest

from lantern_jax.families.llamagen.model import published_config
from tests.refused import refused_each
from train import script

DRAFTER = "configs/llamagen_c2i_drafter.py"


def parsed(*words):
    parser = script.make_parser("")
    script.add_experiment(parser)
    return script.parse(parser, list(words), "demo_drafter.py").config


@pytest.mark.parametrize("size", ["B", "3B"])
def test_an_experiment_is_given_its_word(size):
    changes = ["--config.adam_rate=0.5", "--config.model.num_heads", "4"]
    config = parsed("--config", f"{DRAFTER}:{size}", *changes)
    layers = published_config(size).transformer
    assert (config.model.hidden_dim, config.model.num_heads) == (layers.hidden_dim, 4)
    assert config.adam_rate == 0.5
    assert parsed("--config", DRAFTER).to_dict() == parsed("--config", f"{DRAFTER}:B").to_dict()


MISSING = "argument --config: .* is not a"


@pytest.mark.parametrize(("experiment", "line"), [
    (f"{DRAFTER}:Q", rf"--config {DRAFTER}:Q cannot be used \(unknown LlamaGen size 'Q'"),
    ("configs/demo_drafter.py:B", "it takes no word such as B"),
    ("configs/tiny_target.py", "--config configs/tiny_target.py has no"),
    *((name, MISSING) for name in (f"{DRAFTER}:", ":", "nowhere.py:B", "nowhere.py")),
])  # fmt: skip
def test_words_and_files_that_cannot_be_used_are_refused_in_one_line(experiment, line):
    refused_each({line: lambda: parsed("--config", experiment)})
