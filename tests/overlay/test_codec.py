"""Decoding, against values worked out by hand from the format's description."""

import pytest
import torch
from vllm_glm_exl3 import codec


def words(count: int, **at: int) -> torch.Tensor:
    """One tile of `count` words, zero but for wN=value."""
    tile = torch.zeros(count, dtype=torch.int32)
    for place, value in at.items():
        tile[int(place[1:])] = value
    return tile.to(torch.int16)


def test_windows_of_four_bits() -> None:
    # the stream begins with word 1, then word 0; it ends with word 63, then word 62
    window = codec.windows(words(64, w0=0x1234, w1=0xABCD, w62=0x0F0E))
    assert [hex(int(window[t])) for t in (0, 1, 2, 3, 4, 7, 8)] == ["0xf0ea", "0xeab", "0xeabc", "0xabcd", "0xbcd1", "0x1234", "0x2340"]
    assert int(window[255]) == 0x0F0E


def test_windows_of_three_bits() -> None:
    # ABCD = 1010 1011 1100 1101: the windows end after 3, 6, 9, ... bits
    window = codec.windows(words(48, w1=0xABCD))
    assert [int(window[t]) for t in (0, 1, 2, 4)] == [0b101, 0b101010, 0b101010111, 0b101010111100110]
    assert int(window[5]) == 0xABCD << 2 & 0xFFFF


@pytest.mark.parametrize(
    ("codebook", "window", "value"),
    [
        (codec.MCG, 0, 1.84375),  # twice fp16 0x3b60 = 0.921875
        (codec.MCG, 1, 0.134521484375),  # 0xcbac1fed & 0x8fff8fff ^ 0x3b603b60 = 0xb0cc348d: 0.284423828125 - 0.14990234375
        (codec.INST3, 0, 0.76806640625),  # 64248484 = 0x03d45aa4 -> 0x38b431c4: 0.587890625 + 0.18017578125
        (codec.MUL1, 0, -3.453125),  # 1024 * 0.00676727294921875 - 10.3828125
        (codec.MUL1, 1, 0.64111328125),  # bytes 0x83 + 0xdc + 0xd1 + 0x2d = 605: 1629 * 0.00676727... - 10.3828125 = 0.6410751, rounded
    ],
)
def test_codebooks(codebook: int, window: int, value: float) -> None:
    assert float(codec.values(torch.tensor(window), codebook)) == value


def test_order_of_a_tile() -> None:
    trellis = torch.randint(-32768, 32768, (1, 1, 64), dtype=torch.int32, generator=torch.Generator().manual_seed(1)).to(torch.int16)
    stream = codec.values(codec.windows(trellis[0, 0]), codec.MCG)
    tile = codec.inner(trellis, codec.MCG)
    places = {0: (0, 0), 1: (1, 0), 2: (8, 0), 3: (9, 0), 4: (0, 8), 7: (9, 8), 8: (2, 0), 31: (15, 8), 32: (0, 1), 255: (15, 15)}
    assert {t: float(tile[place]) for t, place in places.items()} == {t: float(stream[t]) for t in places}


def test_tiles_lie_in_rows_and_columns() -> None:
    trellis = torch.randint(-32768, 32768, (2, 3, 64), dtype=torch.int32).to(torch.int16)
    whole = codec.inner(trellis, codec.MCG)
    assert whole.shape == (32, 48)
    assert torch.equal(whole[16:, 32:], codec.inner(trellis[1:, 2:], codec.MCG))


def test_rotation_is_the_normalised_hadamard_transform() -> None:
    unit = torch.zeros(256)
    unit[128 + 3] = 1.0
    turned = codec.rotate(unit)
    assert float(turned[:128].abs().max()) == 0.0
    # row 3 of the Sylvester matrix: sign is (-1)^(bits that the index shares with 3)
    assert torch.allclose(turned[128:132] * 128**0.5, torch.tensor([1.0, -1.0, -1.0, 1.0]))
    assert torch.allclose(codec.rotate(turned), unit, atol=1e-6)


@pytest.mark.parametrize("codebook", [codec.INST3, codec.MCG, codec.MUL1])
def test_linear_is_the_product_with_the_weight(codebook: int) -> None:
    torch.manual_seed(0)
    trellis = torch.randint(-32768, 32768, (2, 16, 8, 16 * 3), dtype=torch.int32).to(torch.int16)
    suh, svh, x = torch.randn(2, 256).half(), torch.randn(2, 128).half(), torch.randn(2, 5, 256)
    dense = codec.weight(trellis, suh, svh, codebook)
    assert dense.shape == (2, 256, 128)
    assert torch.allclose(codec.linear(x, trellis, suh, svh, codebook), x @ dense, rtol=1e-3, atol=1e-2)
