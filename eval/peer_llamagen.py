"""The official LlamaGen as it was released, and the strongest PyTorch made of its layers (``eval.peers``).

Axes: R rows (conditional, then unconditional), B batch, H heads, E head width, D width, V codes.
"""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from eval.peer_clones import FEWEST, TOKENS, Sample, Way, extrapolated, importable, quiet
from lantern_jax.families.llamagen.model import LlamaGenConfig

EAGER, STRONGEST = "llamagen", "strongest"
# Tokens before a graph is captured.
_WARM_UP = 3


def synchronize(device: str) -> None:
    """Waits for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], Any], device: str) -> float:
    """Returns the seconds that some work takes on the device."""
    synchronize(device)
    began = time.perf_counter()
    with quiet(), torch.no_grad():
        work()
        synchronize(device)
    return time.perf_counter() - began


def sample_of(decode: Callable[[int], Any], batch: int, device: str, tokens: int | None) -> Sample:
    """Times plain decoding of a batch, ``decode(tokens)``; if stopped early, the rest is assumed alike."""
    took = seconds_of(partial(decode, tokens or TOKENS), device)
    if tokens is not None:
        few = seconds_of(partial(decode, FEWEST), device)
        took = extrapolated((FEWEST, few), (tokens, took), TOKENS)
    return Sample(took / batch, 1e3 * took / TOKENS)


class LlamaGen:
    """The official model with random weights.

    Args:
        clone: the folder of a clone.
        config: the model's size.
        dtype: of weights and caches.
        device: "cuda" or "cpu".

    Attributes:
        replaced: what is not as in the released program, a line each.
    """

    def __init__(self, clone: Path, config: LlamaGenConfig, dtype: torch.dtype, device: str):
        self.device, self.dtype, self.replaced = device, dtype, ["LlamaGen: random weights in every layer"]
        # As its own script of class-conditional sampling does.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("high")
        with importable(clone):
            from autoregressive.models import generate, gpt
        self.generate, self.rotate = generate.generate, gpt.apply_rotary_emb
        self._mend_torch()
        with torch.device(device), torch.no_grad():
            arguments = gpt.ModelArgs(
                dim=config.dim, n_layer=config.num_layers, n_head=config.num_heads, vocab_size=config.vocab_size,
                block_size=TOKENS, num_classes=config.num_labels - 1, cls_token_num=1, model_type="c2i",
            )  # fmt: skip
            self.model = gpt.Transformer(arguments)
            # Zero as it begins training: every code would be as probable.
            self.model.output.weight.normal_(std=0.02)
        self.model = self.model.to(device=device, dtype=dtype).eval()

    @property
    def millions(self) -> float:
        """Parameters in millions."""
        return sum(leaf.numel() for leaf in self.model.parameters()) / 1e6

    def classes(self, batch: int) -> torch.Tensor:
        """Returns a class for every picture."""
        return torch.arange(batch, device=self.device) * 97 % self.model.num_classes

    def eager(self, batch: int, guidance: float, top_k: int) -> Way:
        """Returns the row of the program as it was released."""

        def decode(tokens: int) -> None:
            self.generate(
                self.model, self.classes(batch), tokens, cfg_scale=guidance, cfg_interval=-1, temperature=1.0,
                top_k=top_k, top_p=1.0, sample_logits=True,
            )  # fmt: skip

        return Way(
            EAGER,
            "official LlamaGen, eager, as released",
            lambda _, tokens: sample_of(decode, batch, self.device, tokens),
        )

    def strongest(self, batch: int, guidance: float, top_k: int) -> Way:
        """Returns the row of the strongest PyTorch: compiled, and on a GPU one graph per token."""
        token = WholeToken(self, batch, guidance, top_k)
        with quiet(), torch.no_grad():
            step, how = _advance(token, self.device)
        if how.startswith("eager"):
            self.replaced.append(f"LlamaGen's layers: no graph, {how}")

        def decode(tokens: int) -> None:
            token.rewind()
            for _ in range(tokens):
                step()

        return Way(
            STRONGEST,
            f"LlamaGen's layers, whole token {how.partition(':')[0]}",
            lambda _, tokens: sample_of(decode, batch, self.device, tokens),
        )

    def _mend_torch(self) -> None:
        if hasattr(torch.backends.cuda, "sdp_kernel"):
            return

        # The loop enters this name, which is gone from newer releases, once per token.
        @contextlib.contextmanager
        def sdp_kernel(**_):
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                yield

        torch.backends.cuda.sdp_kernel = sdp_kernel
        self.replaced.append("LlamaGen: torch.backends.cuda.sdp_kernel, which this torch no longer has")


class WholeToken(torch.nn.Module):
    """A token from the last one's id to its own, over the official layers, with everything kept on the device.

    The class is looked up in the same table as the codes, so that the first token is a step like all others.

    Args:
        program: whose layers, weights and caches are used.
        batch: pictures decoded together.
        guidance: the scale.
        top_k: sample from that many codes; 0 for all.
    """

    def __init__(self, program: LlamaGen, batch: int, guidance: float, top_k: int):
        super().__init__()
        self.net, self.rotate = program.model, program.rotate
        self.batch, self.guidance, self.top_k = batch, guidance, top_k
        with torch.device(program.device):
            self.net.setup_caches(2 * batch, 1 + TOKENS, program.dtype)
            # Another row may give the model other caches later.
            self.caches = torch.nn.ModuleList(layer.attention.kv_cache for layer in self.net.layers)
            table = torch.cat([self.net.tok_embeddings.weight, self.net.cls_embedding.embedding_table.weight])
            classes = program.classes(batch)
            given = torch.cat([classes, torch.full_like(classes, self.net.num_classes)])
            kept = {
                "table": table.detach(), "angles": self.net.freqs_cis, "given": given + self.net.vocab_size,
                "places": torch.arange(self.net.max_seq_length), "place": torch.zeros(1, dtype=torch.long),
                "ids": torch.zeros(2 * batch, dtype=torch.long),
                "drawn": torch.zeros(batch, self.net.max_seq_length, dtype=torch.long),
            }  # fmt: skip
        for name, value in kept.items():
            self.register_buffer(name, value)
        for buffer in self.buffers():
            # Graphs write to these in place.
            torch._dynamo.mark_static_address(buffer)

    def rewind(self) -> None:
        """Begins new pictures."""
        self.ids.copy_(self.given)
        self.place.zero_()

    def logits(self) -> torch.Tensor:
        """Returns the guided logits [B, V] after the last token."""
        hidden = functional.embedding(self.ids, self.table)[:, None]
        seen, angles = (self.places <= self.place)[None, None, None], self.angles[self.place]
        for layer, cache in zip(self.net.layers, self.caches, strict=True):
            hidden = hidden + self._attention(layer, cache, layer.attention_norm(hidden), seen, angles)
            hidden = hidden + layer.feed_forward(layer.ffn_norm(hidden))
        scores = self.net.output(self.net.norm(hidden))[:, 0].float()
        given, free = scores[: self.batch], scores[self.batch :]
        return free + self.guidance * (given - free)

    def _attention(self, layer, cache, hidden, seen, angles) -> torch.Tensor:
        part = layer.attention
        shape = (len(hidden), 1, part.n_head, part.head_dim)
        query, key, value = (piece.view(shape) for piece in part.wqkv(hidden).split(part.dim, dim=-1))
        query, key = self.rotate(query, angles), self.rotate(key, angles)
        query, key, value = (piece.transpose(1, 2) for piece in (query, key, value))
        keys, values = cache.update(self.place, key, value)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
        return part.wo(mixed.transpose(1, 2).reshape(hidden.shape))

    def draw(self, logits: torch.Tensor) -> None:
        """Draws the token and leaves everything ready for the next one."""
        if self.top_k:
            least = torch.topk(logits, self.top_k).values[:, -1:]
            logits = torch.where(logits < least, -torch.inf, logits)
        chances = torch.softmax(logits, dim=-1)
        token = torch.argmax(chances / torch.empty_like(chances).exponential_(1), dim=-1)
        self.drawn.index_copy_(1, self.place, token[:, None])
        self.ids.copy_(torch.cat([token, token]))
        self.place.add_(1)


def _advance(token: WholeToken, device: str) -> tuple[Callable[[], Any], str]:
    """Returns what decodes a token, and how: compiled, in a graph on a GPU, or eager where nothing compiles."""

    def eager() -> None:
        token.draw(token.logits())

    # The graph is captured by hand, around both parts.
    options = {"triton.cudagraphs": False}
    logits, draw = (
        torch.compile(part, fullgraph=True, dynamic=False, options=options)
        for part in (token.logits, token.draw)
    )

    def compiled() -> None:
        draw(logits())

    token.rewind()
    try:
        compiled()
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        return eager, f"eager: torch.compile does not work here ({type(error).__name__}: {why})"
    if device != "cuda":
        return compiled, "compiled by inductor"
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            compiled()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compiled()
    return graph.replay, "compiled by inductor, in one CUDA graph"
