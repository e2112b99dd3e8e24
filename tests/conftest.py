"""For all tests."""

import os

# Before torch is imported, here and in children: OpenMP threads that spin while they wait make two cores shared by a
# server, a trainer and the tests many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
