"""For the tests with a real server."""

import pytest

pytest.register_assert_rewrite("tests.e2e.dumping")  # its failed asserts then show the values
