"""Nothing opens a network connection: compile, certify, verify, run and chat in a network namespace without interfaces, with an empty home."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_source
from processes import Surroundings

UNSHARE = ("unshare", "-rn")
# One process for all verbs, so that torch is loaded once. Standard output gets one JSON line: what the network looks like, and the exit codes.
SCRIPT = """
import json, os, socket, sys
from thinlm.compiler.cli import run

def reachable():
    try:
        socket.create_connection(("127.0.0.1", 9), 1).close()
    except OSError as e:
        return "" if "unreachable" in str(e).lower() or "cannot assign" in str(e).lower() else str(e)
    return "connected"

said, sys.stdout = sys.stdout, open("said", "w")
codes = [run(arguments) for arguments in json.loads(sys.argv[1])]
interfaces = [name for _, name in socket.if_nameindex()]
said.write(json.dumps([interfaces, reachable(), [name for name in os.environ if name.startswith("HF_")], codes]))
"""


def namespaces() -> str:
    """Why there can be no network namespace here, "" where there can."""
    try:
        done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare command"
    return "" if done.returncode == 0 else f"the system refuses unprivileged user namespaces: {done.stderr.strip()}"


@pytest.mark.skipif(bool(namespaces()), reason=namespaces())
def test_every_verb_works_without_a_network(tmp_path: Path) -> None:
    tiny_source.write(tmp_path / "model")
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "quick.json").write_text(json.dumps({"calibration_tokens": 1024}))
    verbs = (
        ["compile", "model", "-o", "T.thin", "--recipe", "quick.json", "--weights-budget", "55%"],
        ["certify", "T.thin", "--source", "model"],
        ["verify", "T.thin"],
        ["run", "T.thin", "--prompt", "the cat", "--max-new-tokens", "4"],
        ["chat", "T.thin", "--max-new-tokens", "4"],
    )
    where = Surroundings(environment={"HOME": str(home)})
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-c", SCRIPT, json.dumps(verbs)],
        cwd=tmp_path,
        env=where.variables(),
        input="Hello\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    interfaces, reachable, hub_variables, codes = json.loads(done.stdout)
    assert set(interfaces) <= {"lo"} and reachable == "" and hub_variables == [], "the namespace is none, so nothing was shown"
    assert codes == [0] * len(verbs), done.stderr
    assert list(home.iterdir()) == [], "written into the user's home"
