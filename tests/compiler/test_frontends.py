"""Every family against transformers: the graph, run by the reference interpreter on the checkpoint's own weights, gives transformers'
logits, hidden states and greedy tokens. Also: what the graph declares, and the tables that copy facts of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints
from checkpoints import CASES, GREEDY, LONG
from thinlm.artifacts.check_model import graph_problems
from thinlm.compiler.frontends import ADAPTERS, ModelInfo, SourceCheckpoint, open_checkpoint
from thinlm.compiler.frontends.config_reader import IGNORED, ConfigReader
from thinlm.compiler.frontends.rope import SCALINGS, rope_defaults, rope_of
from thinlm.runtime_min.interp import evaluate
from thinlm.schemas import manifest
from thinlm.schemas.errors import FrontendError
from thinlm.schemas.graph import Graph
from thinlm.schemas.verify import verify

# Largest difference over the largest value. Measured on the cases below: 1.2e-6, transformers' own float32 rounding.
RELATIVE = 2e-5
SURE = 0.02  # a greedy step whose best two logits are closer than this proves nothing


@dataclass(frozen=True)
class Opened:
    folder: Path
    graph: Graph
    weights: SourceCheckpoint
    info: ModelInfo
    model: Any

    def run(self, ids: np.ndarray, dtype: type = np.float64) -> dict[str, np.ndarray]:
        return {name: value[0] for name, value in evaluate(self.graph, self.weights, ids, dtype).items()}


@pytest.fixture(scope="module", params=CASES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    folder = checkpoints.write(request.param, tmp_path_factory.mktemp(request.param))
    return Opened(folder, *open_checkpoint(folder), checkpoints.load(folder))


def relative(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


def test_the_graph_may_be_shipped(opened: Opened) -> None:
    """It keeps A-23 (artifacts/SPEC.md), so an artifact of it can be opened."""
    info = opened.info
    facts = manifest.ModelInfo(
        family=info.family,
        architecture=info.architecture,
        layers=1,
        parameters=1,
        vocab_size=info.vocab_size,
        tokenizer_vocab=info.vocab_size,
        context=info.context_length,
        eos_ids=(),
        bos_id=None,
    )
    assert list(graph_problems(opened.graph, facts)) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_and_hidden_states(opened: Opened, dtype: type) -> None:
    """Far past every window, of every layer."""
    ids = checkpoints.prompt(opened.info.vocab_size, LONG)
    want, got = checkpoints.trace(opened.model, ids), opened.run(ids, dtype)
    assert {"logits", "hidden.embed", "hidden.0", "hidden.1", "hidden.2", "hidden.final"} <= set(want) == set(got)
    assert {name: relative(got[name], want[name]) for name in want if relative(got[name], want[name]) > RELATIVE} == {}


def test_greedy_tokens(opened: Opened) -> None:
    for seed in range(20):
        ids = checkpoints.prompt(opened.info.vocab_size, 16, seed)
        want, gap = checkpoints.greedy(opened.model, ids)
        if gap > SURE:
            break
    else:
        pytest.fail("no prompt without near ties")
    for token in want:
        assert int(opened.run(ids, np.float32)["logits"][-1].argmax()) == token
        ids = np.append(ids, [[token]], 1)
    assert ids.shape == (1, 16 + GREEDY)


def test_graph_declares_what_is_stored(opened: Opened) -> None:
    graph, weights = opened.graph, opened.weights
    assert verify(graph) == ()
    for p in graph.params:
        assert (weights.shape(p.name), weights.encoding(p.name)) == (p.shape, f"{p.dtype}/1")
    stored = {weights.bindings[p.name].tensor for p in graph.params}
    assert stored.isdisjoint(weights.dropped)
    assert stored | set(weights.dropped) == set(weights.folder.tensors)
    tied = not any(p.role == "head" for p in graph.params)
    assert tied == opened.model.config.get_text_config().tie_word_embeddings
    assert {p.layer for p in graph.params} == {None, *range(opened.model.config.get_text_config().num_hidden_layers)}


def test_what_is_dropped(tmp_path: Path) -> None:
    scaled = open_checkpoint(checkpoints.write("llama-scaled", tmp_path / "a"))[1]
    assert scaled.dropped == CASES["llama-scaled"].extra
    wrapper = open_checkpoint(checkpoints.write("gemma3-wrapper", tmp_path / "b"))[1]
    assert len(wrapper.dropped) > 20
    assert all(name.startswith(("vision_tower.", "multi_modal_projector.")) for name in wrapper.dropped)


def test_stored_dtypes_may_mix(tmp_path: Path) -> None:
    graph = open_checkpoint(checkpoints.write("mistral", tmp_path))[0]
    assert {(p.role == "norm", p.dtype) for p in graph.params} == {(True, "f32"), (False, "bf16")}


def test_windows_and_ropes(tmp_path: Path) -> None:
    """The cases really have them: a window per layer, and two sets of frequencies where layer types rotate differently."""
    for name, windows, ropes in (("mistral", [13] * 3, 1), ("qwen2-window", [0, 9, 9], 1), ("gemma3", [14, 0, 14, 0], 2), ("qwen2", [0] * 3, 1)):
        graph = open_checkpoint(checkpoints.write(name, tmp_path / name))[0]
        assert [dict(n.attrs).get("window", 0) for n in graph.nodes if n.op == "attention"] == windows
        assert len(graph.consts) == ropes


# Keys of our tables that transformers has under another name or not at all.
OTHERWISE = {"rope_theta", "rope_local_base_freq", "partial_rotary_factor", "sliding_window_pattern", "use_mrope"}


@pytest.mark.parametrize("architecture", ADAPTERS)
def test_defaults_are_those_of_transformers(architecture: str) -> None:
    from transformers import CONFIG_MAPPING

    adapter = ADAPTERS[architecture]
    theirs = {f: field.default for f, field in CONFIG_MAPPING[adapter.model_type].__dataclass_fields__.items()}
    ours: Mapping[str, Any] = {k: v for k, v in adapter.defaults.items() if k not in OTHERWISE and k in theirs}
    assert ours == {k: theirs[k] for k in ours}
    relatives = {"attention_bias", "mlp_bias", "pretraining_tp", "head_dim"}  # derived tables hold keys that only a relative reads
    assert set(adapter.defaults) - set(ours) <= OTHERWISE | relatives


@pytest.mark.parametrize("head_dim", [2, 18, 64, 128, 256])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {"rope_type": "default", "rope_theta": 123456.7},
        {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "llama3", "rope_theta": 1e4, "factor": 32, "low_freq_factor": 2, "high_freq_factor": 3.5},
    ],
    ids=lambda rope: f"{rope['rope_type']}-{rope['rope_theta']:g}",
)
def test_frequencies(rope: dict[str, Any], head_dim: int) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    given = rope if rope["rope_type"] != "llama3" else {**rope, "original_max_position_embeddings": 512}
    theirs = LlamaRotaryEmbedding(LlamaConfig(head_dim=head_dim, rope_parameters=dict(given), max_position_embeddings=4096)).inv_freq.numpy()
    reader = ConfigReader(given, rope_defaults(10000.0, 4096), "rope")
    ours = np.array(rope_of(reader, head_dim).freqs)
    reader.finish()
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=0)  # powers differ by an ulp, and blending multiplies that


def test_unknown_rope_types_are_refused() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for kind in sorted(set(ROPE_INIT_FUNCTIONS) - set(SCALINGS)):
        with pytest.raises(FrontendError, match=kind):
            rope_of(ConfigReader({"rope_type": kind, "factor": 2.0}, rope_defaults(1e4, 64), "rope"), 16)


def test_ignored_keys_change_nothing_for_transformers() -> None:
    """No family's own config field is on the list of keys that nobody needs to read, but those about training and the file itself."""
    from transformers import CONFIG_MAPPING

    own = {f for a in ADAPTERS.values() for f in CONFIG_MAPPING[a.model_type].__dataclass_fields__}
    harmless = {"attention_dropout", "initializer_range", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "architectures"}
    harmless |= {"transformers_version", "model_type", "output_hidden_states", "return_dict", "id2label", "label2id", "problem_type"}
    assert own & IGNORED == harmless
