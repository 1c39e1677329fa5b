"""The official LANTERN and LANTERN++ with random weights and forced accept lengths (``eval.peers``)."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from eval.peer_clones import (
    CAPTION,
    FEWEST,
    TOKENS,
    ForcedLuck,
    Sample,
    Way,
    extrapolated,
    importable,
    imported,
    named_version,
)
from eval.peer_llamagen import sample_of, seconds_of
from lantern_jax.families.llamagen.model import T5_XL_DIM, LlamaGenConfig
from lantern_jax.io.errors import LanternError

PLAIN = "lantern-ar"
# By row: the static tree, None for one grown anew each round; k; delta, or lambda in LANTERN++. The trees and numbers
# are those of the released scripts.
SPECULATIVE: dict[str, tuple[str | None, int, float]] = {
    "lantern": (None, 1000, 0.1),
    "lantern++-57": ("naive_extend_57", 10, 5.0),
    "lantern++": ("mc_sim_7b_63", 10, 5.0),
}
# Its dynamic tree: nodes, levels after the first, the best of each node.
_DYNAMIC = (59, 4, 10)
_CAPTION_SLOTS = 120
# Where the program looks for the neighbours of every code, below the current folder.
_NEIGHBOURS = "ckpts/llamagen/vq_distances/top_16383_indices.npy"


class RandomFeatures:
    """Random text features in place of Flan-T5-XL's, with a caption of a usual length."""

    def __init__(self, device: str, dtype: torch.dtype):
        self._features = torch.randn(1, _CAPTION_SLOTS, T5_XL_DIM, device=device, dtype=dtype)
        self._mask = torch.zeros(1, _CAPTION_SLOTS, dtype=torch.long, device=device)
        self._mask[:, :CAPTION] = 1

    def get_text_embeddings(self, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the same features and mask for any prompt."""
        return self._features, self._mask


class Lantern:
    """The official program for LlamaGen's text-conditional model, with random weights.

    Args:
        clone: the folder of a clone.
        config: the model's size.
        dtype: of weights and caches.
        device: "cuda" or "cpu".

    Attributes:
        replaced: what is not as in the released program, a line each.

    Raises:
        LanternError: the installed transformers does not fit.
    """

    def __init__(self, clone: Path, config: LlamaGenConfig, dtype: torch.dtype, device: str):
        self._clone, self.device, self.config = clone, device, config
        self.replaced = [
            "LANTERN: random weights in target and drafter",
            f"LANTERN: random features of a caption of {CAPTION} tokens in place of Flan-T5-XL's",
            "LANTERN: a random table of neighbours in place of the tokenizer's",
            "LANTERN: `random.random`, by which it accepts or refuses, so that accept lengths are forced",
            "LANTERN: models/__init__.py is not run (it imports Lumina-mGPT, which needs flash-attn and xllmx)",
        ]
        self._transformers = imported("transformers")
        self._transformers.logging.set_verbosity_error()
        try:
            with importable(clone), torch.no_grad():
                self.target, self.whole = self._load(clone, dtype)
        except (ImportError, AttributeError, TypeError, KeyError, ValueError) as error:
            raise self.unfit(error) from error

    @property
    def millions(self) -> float:
        """Parameters of the target in millions."""
        return sum(leaf.numel() for leaf in self.target.parameters()) / 1e6

    def plain(self, guidance: float, top_k: int) -> Way:
        """Returns the row of its plain decoding."""

        def decode(tokens: int) -> None:
            # What a tree left behind.
            self.target.model.tree_mask = None
            self.target.generate(
                ["x"], max_length=tokens, temperature=1.0, top_k=top_k, top_p=1.0, cfg=guidance
            )

        title = "official LANTERN, plain decoding"
        return Way(PLAIN, title, lambda _, tokens: sample_of(decode, 1, self.device, tokens))

    def speculative(self, name: str, guidance: float, top_k: int, chances: Sequence[float]) -> Way:
        """Returns the row of a relaxed rule with its tree, and forced accept lengths."""
        tree, k, bound = SPECULATIVE[name]
        luck, settings = ForcedLuck(chances), {"lantern": True, "static_tree": tree is not None}
        settings |= {"lantern_k": min(k, self.config.vocab_size - 1), "lantern_delta": bound}
        if tree is not None:
            settings["tree_choices"] = getattr(self._module, tree)
        settings |= {"temperature": 1.0, "top_k": top_k, "top_p": 1.0, "cfg": guidance}
        mean = 1 + sum(length * chance for length, chance in enumerate(chances))

        def decode(tokens: int) -> tuple[float, list[int]]:
            self._module.random = luck
            with self._counted(luck) as lengths:
                took = seconds_of(
                    lambda: self.whole.generate(["x"], max_length=tokens, **settings), self.device
                )
            return took, lengths

        def sample(_: int, rounds: int | None) -> Sample:
            # It ends after the round that goes beyond the tokens asked for.
            took, lengths = decode(TOKENS if rounds is None else round(mean * rounds) - 1)
            each, done = 1 + sum(lengths) / len(lengths), float(len(lengths))
            if rounds is not None:
                few, first = decode(round(mean * FEWEST) - 1)
                total = TOKENS / each
                took, done = extrapolated((len(first), few), (done, took), total), total
            return Sample(took, 1e3 * took / done, each)

        kind = f"tree of {_DYNAMIC[0]}, dynamic" if tree is None else f"static {tree}"
        program = "LANTERN" if tree is None else "LANTERN++"
        letter = "delta" if tree is None else "lambda"
        return Way(name, f"official {program}, {kind}, k {settings['lantern_k']}, {letter} {bound:g}", sample)

    @contextlib.contextmanager
    def _counted(self, luck: ForcedLuck) -> Iterator[list[int]]:
        """Collects the lengths that rounds accept, and forces the next one before each verification."""
        lengths: list[int] = []

        def counted(verify):
            def verified(*given, **named):
                luck.begin()
                found = verify(*given, **named)
                lengths.append(int(found[1]))
                return found

            return verified

        names = ("evaluate_posterior", "evaluate_posterior_v1")
        for name in names:
            self.whole.__dict__[name] = counted(getattr(self.whole, name))
        try:
            yield lengths
        finally:
            for name in names:
                del self.whole.__dict__[name]

    def _load(self, clone: Path, dtype: torch.dtype) -> tuple[Any, Any]:
        """Returns the target, and the whole program around it."""
        for name, content in {
            "models": {"__path__": [str(clone.resolve() / "models")]},
            "models.base_models.llamagen.t5": {"T5Embedder": lambda **_: RandomFeatures(self.device, dtype)},
        }.items():
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(content)
        from models import ea_model_llamagen
        from models.configs.configs import EConfig
        from models.drafters import cnets_llamagen
        from models.kv_variants import modeling_llamagen_kv

        self._module = ea_model_llamagen
        config = self._target_config()
        self._mend(modeling_llamagen_kv, cnets_llamagen, config)
        with torch.device(self.device):
            target = modeling_llamagen_kv.LlamaForCausalLM(config)
            for leaf in target.parameters():
                if leaf.dim() > 1:
                    leaf.normal_(std=0.02)
        target = target.to(device=self.device, dtype=dtype).eval()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            file = Path("config.json")
            file.write_text(json.dumps(self._drafter_shape()))
            self._write_neighbours(Path(_NEIGHBOURS))
            with torch.device(self.device):
                drafter = cnets_llamagen.Model(EConfig.from_pretrained(str(file)), bias=True).state_dict()
            nodes, depth, best = _DYNAMIC
            whole = ea_model_llamagen.EaModel(target, "random", str(file), nodes, depth, best, 1.0, drafter)
        return target, whole.to(device=self.device, dtype=dtype).eval()

    def _shape(self) -> dict[str, Any]:
        config = self.config
        return {
            "hidden_size": config.dim, "intermediate_size": config.transformer.hidden_dim,
            "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_heads,
            "vocab_size": config.vocab_size, "max_position_embeddings": 2048, "hidden_act": "silu",
            "pretraining_tp": 1, "tie_word_embeddings": False,
        }  # fmt: skip

    def _drafter_shape(self) -> dict[str, Any]:
        more = {"model_type": "llama", "num_hidden_layers": 1, "input_type": "t2i", "caption_dim": T5_XL_DIM}
        return self._shape() | more | {"rms_norm_eps": 1e-6}

    def _target_config(self) -> Any:
        """Returns the config of the target, with the fields that its published file adds to Llama's."""
        config = self._transformers.LlamaConfig(
            **self._shape(), num_hidden_layers=self.config.num_layers, rms_norm_eps=1e-5
        )
        added = {
            "rope_theta": 10000.0, "rope_base": 10000, "attention_bias": False, "block_size": TOKENS,
            "cls_token_num": _CAPTION_SLOTS, "input_type": "t2i", "caption_dim": T5_XL_DIM, "num_classes": 1000,
            "class_dropout_p": 0.1, "token_dropout_p": 0.1, "ffn_dropout_p": 0.1, "resid_dropout_p": 0.1,
        }  # fmt: skip
        for name, value in added.items():
            setattr(config, name, value)
        return config

    def _mend(self, kv: ModuleType, cnets: ModuleType, config: Any) -> None:
        """Mends what newer releases of transformers changed, and says so."""
        version = self._transformers.__version__
        if int(version.split(".")[0]) < 5:
            return
        # It refuses a list of tied names, and none are tied here.
        kv.LlamaForCausalLM._tied_weights_keys = None
        # A table of angles that is made and never read, from a field that has another name by now.
        cnets.LlamaAttention._init_rope = lambda attention: None
        names = "_tied_weights_keys, the drafter's unused _init_rope"
        if not hasattr(config, "use_return_dict"):
            object.__setattr__(config, "use_return_dict", True)
            names += ", config.use_return_dict"
        self.replaced.append(f"LANTERN: for transformers {version}: {names}")

    def _write_neighbours(self, file: Path) -> None:
        codes, width = self.config.vocab_size, 1 + max(k for _, k, _ in SPECULATIVE.values())
        rng = np.random.default_rng(0)
        table = np.stack([rng.permutation(codes)[:width] for _ in range(codes)]).astype(np.uint16)
        file.parent.mkdir(parents=True)
        np.save(file, table)

    def unfit(self, error: Exception) -> LanternError:
        """Returns the line for an error of the official code: which version of transformers it names."""
        wanted = named_version(self._clone, "transformers") or "an older one"
        return LanternError(
            f"the official LANTERN does not run with transformers {self._transformers.__version__} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:120]}): its requirements name {wanted}, "
            f"pip install transformers=={wanted}"
        )
