import math
import random

import pytest

from headrace.fleet.cache.semantic.index import Vector, VectorIndex, cosine, vector_of


def random_vector(draw: random.Random, size: int = 64) -> list[float]:
    return [draw.gauss(0, 1) for _ in range(size)]


def unit(values: list[float]) -> Vector:
    found = vector_of(values)
    assert found is not None
    return found


def beside(draw: random.Random, values: list[float], by: float) -> list[float]:
    return [value + draw.gauss(0, by) for value in values]


def test_vectors_are_made_unit() -> None:
    vector = unit([3.0, 0.0, -4.0])
    assert list(vector.values) == pytest.approx([0.6, 0.0, -0.8])
    assert vector.signs == 0b100
    assert cosine(vector, unit([0.0, 0.0, -1.0])) == pytest.approx(0.8)
    assert cosine(vector, unit([1.0])) == 0.0


@pytest.mark.parametrize("values", [[], [0.0], [math.nan], [math.inf], [1e38, 1e38]])
def test_what_has_no_direction(values: list[float]) -> None:
    found = vector_of(values)
    assert found is None or cosine(found, found) == pytest.approx(1.0, abs=1e-5)
    if values != [1e38, 1e38]:
        assert found is None


def test_it_finds_what_looking_at_all_finds() -> None:
    draw = random.Random(1)
    index = VectorIndex(max_entries=5000, max_scan=5000)
    centres = [random_vector(draw) for _ in range(200)]
    vectors = {}
    for number in range(2000):
        key = b"%d" % number
        vectors[key] = unit(beside(draw, centres[number % 200], 0.5))
        index.add(key, b"c", str(number), vectors[key])
    found = 0
    for centre in centres:
        wanted = unit(beside(draw, centre, 0.1))
        best = max(vectors, key=lambda key: cosine(wanted, vectors[key]))
        near = index.near(b"c", wanted, 0.8)
        assert near == sorted(near, reverse=True)
        assert all(one.similarity >= 0.8 for one in near)
        found += near[0].key == best
    assert found >= 150


def test_conversations_are_apart() -> None:
    index = VectorIndex(max_entries=10, max_scan=10)
    index.add(b"k", b"one", "t", unit([1.0, 1.0]))
    assert index.near(b"two", unit([1.0, 1.0]), 0.5) == []
    (near,) = index.near(b"one", unit([1.0, 1.0]), 0.5)
    assert (near.key, near.text) == (b"k", "t")


def test_the_least_recently_used_goes_first() -> None:
    index = VectorIndex(max_entries=3, max_scan=10)
    for name in (b"a", b"b", b"c"):
        index.add(name, name, "", unit([1.0]))
    index.touch(b"a")
    index.touch(b"nothing")
    index.add(b"d", b"d", "", unit([1.0]))
    assert len(index) == 3
    assert [bool(index.near(name, unit([1.0]), 0.5)) for name in (b"a", b"b", b"c", b"d")] == [
        True, False, True, True
    ]  # fmt: skip
    index.remove(b"a")
    index.remove(b"a")
    assert len(index) == 2


def test_a_search_has_a_bound() -> None:
    index = VectorIndex(max_entries=100, max_scan=2)
    for number in range(10):
        index.add(b"%d" % number, b"c", "", unit([1.0, float(number)]))
    assert {near.key for near in index.near(b"c", unit([1.0, 5.0]), 0.5)} == {b"8", b"9"}


def test_other_models_vectors_are_not_near() -> None:
    index = VectorIndex(max_entries=10, max_scan=10)
    index.add(b"k", b"c", "", unit([1.0, 1.0]))
    assert index.near(b"c", unit([1.0, 1.0, 1.0]), 0.5) == []


def test_memory_is_bounded() -> None:
    draw = random.Random(2)
    index = VectorIndex(max_entries=50, max_scan=50)
    for number in range(2000):
        index.add(b"%d" % number, b"%d" % (number % 7), "", unit(random_vector(draw, 8)))
    assert len(index) == 50
    for context in range(7):
        index.near(b"%d" % context, unit(random_vector(draw, 8)), 0.5)
    for number in range(2000):
        index.remove(b"%d" % number)
    assert len(index) == 0
    assert index.near(b"0", unit([1.0] * 8), 0.5) == []
