"""What is said of bytes that are free, or too few."""

import pytest

from eagle3.files.disk import GIB, gib


@pytest.mark.parametrize(
    ("n", "told"),
    [
        (924 * GIB, "924 GiB"),
        (GIB + GIB // 2, "1.50 GiB"),
        (GIB // 10, "0.10 GiB"),
        (GIB // 256, "4.00 MiB"),
        (100_000, "0.10 MiB"),
        (0, "0.00 MiB"),
    ],
)
def test_little_is_not_none(n: int, told: str) -> None:
    assert gib(n) == told
