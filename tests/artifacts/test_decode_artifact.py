"""examples/decode_artifact.py equals the reader bit for bit, for every format and for one that only a manifest knows."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny_artifact
from source import ROOT
from thinlm.artifacts import FORMATS, Format, open_artifact, pack
from thinlm.schemas.encoding import FormatSpec, PartSpec

SCRIPT = ROOT / "examples" / "decode_artifact.py"

# Five-bit codes into a table, one power-of-two scale per 24 inputs.
INVENTED = Format(
    FormatSpec(
        name="codebook5-g24/7",
        group=24,
        parts=(PartSpec(name="codes", type="u5", count="in"), PartSpec(name="exponent", type="u8", count="groups")),
        value=("mul", ("take", tuple(round(math.sinh(n / 9 - 1.7), 3) for n in range(32)), "codes"), ("exp2", ("sub", "exponent", 130))),
    )
)


def _load():
    import importlib.util

    spec = importlib.util.spec_from_file_location("decode_artifact", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("fmt", [*FORMATS.values(), INVENTED], ids=lambda fmt: fmt.name)
def test_every_tensor_of_every_format(fmt: Format, tmp_path: Path) -> None:
    path = tiny_artifact.build(tmp_path / "x.thin", fmt)
    artifact, script = open_artifact(path), _load()
    manifest = script.json.loads(script.read(path, "manifest.json"))
    for name in ("blk.0.attn.o", "blk.1.ffn.up", "blk.1.ffn.down", "blk.1.ffn_norm", "final_norm"):
        got, want = script.tensor(path, manifest, name), artifact.f32(name)
        assert got.dtype == want.dtype == np.float32
        assert np.isfinite(want).all()
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_invented_format_means_what_it_says(tmp_path: Path) -> None:
    artifact = open_artifact(tiny_artifact.build(tmp_path / "x.thin", INVENTED))
    assert artifact.format("embed").family == "custom"
    (slab,) = artifact.slabs("blk.0.attn.q")
    parts = INVENTED.unpack(slab.raw, tiny_artifact.HIDDEN)
    table = np.array(INVENTED.spec.value[1][1], np.float32)  # pyright: ignore[reportIndexIssue]
    scale = np.float32(2) ** (parts["exponent"].astype(np.float32) - 130)
    np.testing.assert_array_equal(artifact.f32("blk.0.attn.q"), table[parts["codes"]] * np.repeat(scale, 24, axis=1))


def test_command_line_without_the_package(tmp_path: Path) -> None:
    folder = tiny_artifact.build(tmp_path / "x.thin")
    want = open_artifact(folder).f32("blk.1.ffn.down")
    for path in (folder, pack(folder)):
        out = tmp_path / "out.npy"
        blocked = "import sys; sys.modules['thinlm'] = None; sys.argv = sys.argv[1:]; exec(open(sys.argv[0]).read())"
        command = [sys.executable, "-c", blocked, str(SCRIPT), str(path), "blk.1.ffn.down", "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("blk.1.ffn.down [72, 300] min")
        np.testing.assert_array_equal(np.load(out), want)


def test_it_names_no_format_and_no_package() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    assert [name for name in FORMATS if name.split("/")[0] in text and "-" in name] == []
    assert "import thinlm" not in text


def test_a_changed_page_is_refused(tmp_path: Path) -> None:
    path = tiny_artifact.build(tmp_path / "x.thin")
    weights = path / "weights" / "00000.safetensors"
    data = bytearray(weights.read_bytes())
    data[-200] ^= 1
    weights.write_bytes(data)
    done = subprocess.run([sys.executable, str(SCRIPT), str(path), "embed"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not what pages.idx says" in done.stderr
