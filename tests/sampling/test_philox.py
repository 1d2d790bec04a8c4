"""The random numbers: published answers, and independence of the three parts of the counter."""

import pytest

from octavo.sampling.philox import philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(counter, key, words):
    assert philox4x32(counter, key) == words


def test_uniform_is_in_range_and_takes_53_bits():
    values = [uniform(7, 0, position) for position in range(2000)]
    assert all(0.0 <= value < 1.0 for value in values)
    assert len(set(values)) == len(values)
    assert abs(sum(values) / len(values) - 0.5) < 0.03
    assert any(int(value * 2**53) & 1 for value in values)


def test_every_part_of_the_counter_matters():
    corners = (0, 1, 2**31, 2**32 - 1)
    seen = {uniform(seed, sample, position) for seed in (*corners, 2**32, 2**64 - 1) for sample in corners for position in corners}
    assert len(seen) == 6 * 4 * 4
