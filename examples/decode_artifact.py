"""Decode any tensor of a .thin artifact with the Python standard library and numpy only; no number format is named here.

python decode_artifact.py NAME.thin|NAME.thin.zip                      lists the tensors
python decode_artifact.py NAME.thin|NAME.thin.zip TENSOR [-o OUT.npy]  float32, in the source's shape; bit for bit what the runtime uses

Everything comes from manifest.json and pages.idx, as artifacts/SPEC.md describes. This is a reader for people who want to be sure that
they can always read their weights; it trusts the artifact (use `thinc verify` first if you don't).
"""

import argparse
import hashlib
import json
import struct
import zipfile
from math import prod
from pathlib import Path

import numpy as np

FLOATS = {"f16": "<f2", "f32": "<f4"}


def read(artifact, path, start=0, size=-1):
    """`size` bytes of one file of a folder or packed artifact, from `start`."""
    if Path(artifact).is_dir():
        with open(Path(artifact) / path, "rb") as file:
            file.seek(start)
            return file.read(size)
    with zipfile.ZipFile(artifact) as archive, archive.open(path) as file:
        file.seek(start)
        return file.read(size)


def page_places(artifact, index_path):
    """[(path, offset, bytes, sha256)] of every page, from pages.idx."""
    data = read(artifact, index_path)
    files, pages = struct.unpack_from("<IQ", data, 12)
    at, paths = 24, []
    for _ in range(files):
        _, length = struct.unpack_from("<QH", data, at)
        paths.append(data[at + 10 : at + 10 + length].decode())
        at += 10 + length
    at += -at % 8 + 56 * files  # the files' headers have records too
    records = (struct.unpack_from("<QQQ32s", data, at + 56 * p) for p in range(pages))
    return [(paths[file], offset, length, digest) for file, offset, length, digest in records]


def e4m3(codes):
    """8-bit floats: sign, 4 exponent bits (bias 7), 3 mantissa bits; all ones is NaN."""
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(mantissa + 8, exponent - 10))
    value = np.where(codes & 127 == 127, np.float32(np.nan), value)
    return np.where(codes & 128, -value, value).astype(np.float32)


def extent(part, cols, group):
    """(elements, bytes) of one part of a row."""
    width = {"bf16": 16, "f8e4m3": 8}.get(part["type"]) or int(part["type"][1:])
    count = {"in": cols, "groups": -(-cols // (group or cols)), "one": 1}[part["count"]]
    return count, -(-count * width // 8)


def elements(raw, kind, count):
    """u8[rows, bytes] -> [rows, count] numbers of one element type."""
    if kind in FLOATS:
        return np.ascontiguousarray(raw).view(FLOATS[kind])
    if kind == "bf16":
        return (np.ascontiguousarray(raw).view("<u2").astype(np.uint32) << 16).view(np.float32)
    if kind == "f8e4m3":
        return e4m3(raw)
    width = int(kind[1:])
    bits = np.unpackbits(raw, axis=1, bitorder="little")[:, : count * width].reshape(len(raw), count, width)
    return np.packbits(bits, axis=2, bitorder="little")[:, :, 0]


def decode(raw, spec, cols):
    """u8[rows, row_bytes] -> float32[rows, cols], by the format's description."""
    group = spec["group"] or cols
    parts, at = {}, 0
    for part in spec["parts"]:
        count, size = extent(part, cols, spec["group"])
        values = elements(raw[:, at : at + size], part["type"], count)
        parts[part["name"]] = np.repeat(values, group, axis=1)[:, :cols] if part["count"] == "groups" else values
        at += size

    def value(node):
        if isinstance(node, str):
            return parts[node].astype(np.float32)
        if not isinstance(node, list):
            return np.float32(node)
        if node[0] == "take":
            return np.array(node[1], np.float32)[parts[node[2]]]
        if node[0] == "exp2":
            return np.ldexp(np.float32(1), value(node[1]).astype(np.int32))
        return {"add": np.add, "sub": np.subtract, "mul": np.multiply}[node[0]](value(node[1]), value(node[2]))

    return np.broadcast_to(value(spec["value"]), (len(raw), cols)).astype(np.float32)


def tensor(artifact, manifest, name):
    """One tensor, decoded slab by slab; each page is compared with its digest."""
    entry = next(t for t in manifest["tensors"] if t["name"] == name)
    spec, layout, shape = manifest["formats"][entry["encoding"]], entry["layout"], entry["shape"]
    pages = page_places(artifact, manifest["page_index"]["path"])
    out = np.empty((prod(shape[:-1]), shape[-1]), np.float32)
    end, step = out.shape[layout["axis"]], layout["step"]
    for k, start in enumerate(range(0, end, step)):
        target = out[start : start + step] if layout["axis"] == 0 else out[:, start : start + step]
        path, offset, length, digest = pages[layout["first_page"] + k]
        page = read(artifact, path, offset, length)
        if hashlib.sha256(page).digest() != digest:
            raise SystemExit(f"page {layout['first_page'] + k} in {path} is not what pages.idx says")
        at = layout["tail_offset"] if start + step >= end else layout["offset"]
        rows, cols = target.shape
        row_bytes = sum(extent(part, cols, spec["group"])[1] for part in spec["parts"])
        raw = np.frombuffer(page, np.uint8, rows * row_bytes, at).reshape(rows, row_bytes)
        target[:] = decode(raw, spec, cols)
    return out.reshape(shape)


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description="Decode a tensor of a .thin artifact.")
    parser.add_argument("artifact")
    parser.add_argument("tensor", nargs="?", help="without it, the tensors are listed")
    parser.add_argument("-o", "--output", help="a .npy file")
    args = parser.parse_args()
    manifest = json.loads(read(args.artifact, "manifest.json"))
    names = [t["name"] for t in manifest["tensors"]]
    if args.tensor not in names:
        print("\n".join(f"{t['name']}  {t['shape']}  {t['encoding']}" for t in manifest["tensors"]))
        raise SystemExit(f"no tensor {args.tensor!r}" if args.tensor else 0)
    values = tensor(args.artifact, manifest, args.tensor)
    if args.output:
        np.save(args.output, values)
    print(f"{args.tensor} {list(values.shape)} min {values.min():g} max {values.max():g} rms {np.sqrt(np.mean(values.astype(float) ** 2)):g}")


if __name__ == "__main__":
    main()
