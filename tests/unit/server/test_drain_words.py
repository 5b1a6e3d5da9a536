"""What a drain says."""

import pytest

from headrace.server.replica import counted


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 requests"), (1, "1 request"), (2, "2 requests")]
)
def test_the_number_decides_the_word(number, said):
    assert counted(number) == said
