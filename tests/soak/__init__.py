"""Soak tools: whole compiles, stopped again and again. `python -m tests.soak.kill --help`, `python -m tests.soak.disk_full --help`."""
