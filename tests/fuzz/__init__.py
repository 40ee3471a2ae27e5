"""Fuzzers of everything that a stranger can hand us: `python -m tests.fuzz --minutes 30 --seed 0`. `--help` lists the targets."""
