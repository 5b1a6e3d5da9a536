import pytest

from headrace.config.units import counted, format_size, parse_duration, parse_flag, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("1.5G", 3 * 2**29),
        ("2GB", 2 * 10**9),
        ("7b", 7),
        ("1T", 2**40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "12 parsecs", "1.2.3", "٣", "nan", "1 2"])
def test_what_is_not_a_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("50ms", 0.05),
        ("2m", 120.0),
        ("1.5 h", 5400.0),
        ("10us", 1e-5),
        ("3S", 3.0),
        ("30d", 2_592_000.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "fast", "-1s", "1w", "inf"])
def test_what_is_not_a_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_duration(text)


def test_flags() -> None:
    assert all(parse_flag(text) for text in ("1", "true", "Yes", " on "))
    assert not any(parse_flag(text) for text in ("0", "False", "no", "OFF"))
    with pytest.raises(ValueError, match="neither true nor false"):
        parse_flag("maybe")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (2**52, "4096 TiB")],
)
def test_sizes_are_shown_in_the_largest_fitting_unit(size: int, text: str) -> None:
    assert format_size(size) == text


def test_one_thing_is_not_said_as_several() -> None:
    assert [counted(number, "replica") for number in (0, 1, 2)] == [
        "0 replicas",
        "1 replica",
        "2 replicas",
    ]
