"""For all tests."""

import gc
import os

# Before torch is imported, here and in children: OpenMP threads that spin while they wait make two cores shared by a
# server, a trainer and the tests many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What collecting the tests imports stays: each worker would go through it again and again, a quarter of that time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
