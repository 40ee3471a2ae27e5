"""Settings that all tests share: deterministic hypothesis, no network, and GPU tests skipped where there is no GPU."""

import os

import pytest
from hypothesis import settings

# The same examples on every machine and run; look for new ones with --hypothesis-profile=explore.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None, max_examples=50)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("fixed")

# Must be set before transformers is imported: the oracles it computes come from local files alone.
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked gpu where torch sees no device."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
