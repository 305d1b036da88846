"""A trace under construction: which way of counting holds, and what is made of half characters."""

from bench.columns import NO_FINISH, Columns, whole


def counted(*stated: tuple[int | None, int | None, int | None]) -> list[int | None]:
    columns = Columns(0)
    return [columns.count(*one) for one in stated]


def test_the_first_way_of_counting_is_kept() -> None:
    """(usage, timings, token ids): a server that states ids first and usage later must not jump from one to the other."""
    assert counted((None, None, 2), (7, None, 4), (None, None, 6)) == [2, 4, 6]
    assert counted((0, None, None), (1, 9, 9), (None, 9, 9)) == [None, 1, None]
    assert counted((None, 3, 2), (5, 6, 4)) == [3, 6]
    assert counted((None, None, None)) == [None]


def test_times_are_seconds_from_the_beginning() -> None:
    columns = Columns(1_000_000_000)
    columns.add(1_250_000_499, "c", 1)
    trace = columns.trace(1_500_000_000, None)
    assert (trace.t_s, trace.t_end_s, trace.error) == ((0.25,), 0.5, NO_FINISH)


def test_whole_characters() -> None:
    assert whole("\ud83d\ude00") == "\U0001f600"
    assert whole("a\ud83d") == "a\ufffd"
    assert whole("Gr\u00fc\u00dfe") == "Gr\u00fc\u00dfe"
