"""One file per kind of check. Each takes models, graphs or weights and gives back figures (`Check`), which certify/gate.py judges."""
