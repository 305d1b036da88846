"""The edit by itself: worked by hand on small matrices, and to the last bit on slices of large ones."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from vllm_glm_exl3.ablation import direction as directions
from vllm_glm_exl3.ablation import formula
from vllm_glm_exl3.errors import BadAblation

W = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
R = torch.tensor([0.0, 2.0])  # not of length 1


def random_weight(out: int, wide: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(out * wide)
    return torch.randn(out, wide, generator=made).to(dtype), torch.randn(out, generator=made)


@pytest.mark.parametrize(
    ("alpha", "second_row", "ratio"),
    [(0.0, [3.0, 4.0], 1.0), (1.0, [0.0, 0.0], 0.0), (2.0, [-3.0, -4.0], -1.0), (3.0, [-6.0, -8.0], -2.0), (-1.0, [6.0, 8.0], 2.0)],
)
def test_by_hand(alpha: float, second_row: list[float], ratio: float) -> None:
    """Along the second axis only the second row changes, to 1 - alpha times itself."""
    edited = formula.project(W, R, alpha)
    assert edited.tolist() == [[1.0, 2.0], second_row]
    assert formula.signed_ratio(W, edited, R) == ratio
    assert formula.relative_change(W, edited) == pytest.approx(abs(alpha) * 5 / math.sqrt(30))
    assert W.tolist() == [[1.0, 2.0], [3.0, 4.0]], "the weight itself stays"


def test_oblique_direction_by_hand() -> None:
    """r = (1, 1): r^T W = (4, 6), |r|^2 = 2, so alpha 1 takes (2, 3) off both rows."""
    assert formula.project(W, torch.tensor([[1.0, 1.0]]), 1.0).tolist() == [[-1.0, -1.0], [1.0, 1.0]]


def test_length_does_not_matter() -> None:
    weight, r = random_weight(64, 32)
    assert torch.allclose(formula.project(weight, r, 3.0), formula.project(weight, r * 1000, 3.0), atol=1e-5)
    assert float(formula.unit(r * 1000).norm()) == pytest.approx(1, abs=1e-6)
    assert formula.unit(torch.tensor([[0.0, -3.0, 4.0]])).tolist() == pytest.approx([0.0, -0.6, 0.8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_against_double_precision(dtype: torch.dtype) -> None:
    weight, r = random_weight(576, 100, dtype)
    wide, long = weight.double(), r.double()
    wanted = wide - 3 * torch.outer(long, long @ wide) / (long @ long)
    found = formula.project(weight, r, 3.0)
    assert found.dtype == dtype
    near = {torch.float32: 2e-5, torch.bfloat16: 2**-8 * 8, torch.float16: 2**-11 * 8}[dtype]
    assert float((found.double() - wanted).abs().max()) < near
    assert formula.signed_ratio(weight, found, r) == pytest.approx(-2, abs=1e-2 if dtype != torch.float32 else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("out", "widths"),
    [(576, [192, 192, 192]), (576, [1, 7, 64, 3, 501]), (577, [1023, 1, 1025, 33]), (1, [1, 2]), (37, [1] * 20), (4096, [1500, 548])],
    ids=str,
)
def test_a_part_of_the_edit_is_the_edit_of_the_part(out: int, widths: list[int], dtype: torch.dtype) -> None:
    weight, r = random_weight(out, sum(widths), dtype)
    whole = formula.project(weight, r, 3.0)
    parts = [formula.project(part, r, 3.0) for part in weight.split(widths, 1)]
    assert torch.equal(torch.cat(parts, 1), whole)
    strided = formula.project(weight.t().contiguous().t(), r, 3.0)
    assert torch.equal(strided, whole)


def test_threads_do_not_matter() -> None:
    weight, r = random_weight(1024, 2048)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = formula.project(weight, r, 2.5)
        torch.set_num_threads(3)
        assert torch.equal(formula.project(weight, r, 2.5), one)
    finally:
        torch.set_num_threads(before)


def test_alpha_zero_keeps_every_byte() -> None:
    weight = torch.tensor([[-0.0, 1.0], [-3.0, 2.0]])  # minus zero, less a zero that is negative too, would be zero
    assert torch.equal(formula.project(weight, R, 0.0).view(torch.int32), weight.view(torch.int32))


@pytest.mark.parametrize(
    ("direction", "said"),
    [
        (torch.zeros(4), "the direction is zero"),
        (torch.tensor([1.0, math.nan]), "not finite"),
        (torch.tensor([1.0, -math.inf]), "not finite"),
        (torch.ones(2, 3), r"is \[hidden\] or \[1, hidden\], and this one is \[2, 3\]"),
        (torch.ones(1, 1, 3), r"this one is \[1, 1, 3\]"),
        (torch.tensor(1.0), r"this one is \[\]"),
        (torch.ones(0), r"this one is \[0\]"),
    ],
)
def test_directions_that_are_none(direction: Tensor, said: str) -> None:
    for call in (formula.unit, lambda r: formula.project(W, r, 1.0)):
        with pytest.raises(BadAblation, match=said):
            call(direction)


@pytest.mark.parametrize(
    ("weight", "alpha", "said"),
    [
        (torch.ones(3, 2), 1.0, "the direction has 2 values, and the weight 3 rows"),
        (torch.ones(2, 2, dtype=torch.int16), 1.0, "this one is torch.int16"),
        (torch.ones(2, 2).to(torch.float8_e4m3fn), 1.0, "this one is torch.float8_e4m3fn"),
        (torch.ones(2), 1.0, r"this one is torch.float32 \[2\]"),
        (W, math.nan, "alpha nan is not finite"),
    ],
)
def test_what_cannot_be_edited(weight: Tensor, alpha: float, said: str) -> None:
    with pytest.raises(BadAblation, match=said):
        formula.project(weight, R, alpha)


def test_figures_that_do_not_exist() -> None:
    with pytest.raises(BadAblation, match="no component along the direction"):
        formula.signed_ratio(torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [0.0]]), R)
    with pytest.raises(BadAblation, match=r"the weight was \[2, 2\] and is \[2, 3\]"):
        formula.relative_change(W, torch.ones(2, 3))


@pytest.mark.parametrize(
    ("text", "count", "numbers"),
    [("15-18", 20, (15, 16, 17, 18)), ("1,3,5-7", 8, (1, 3, 5, 6, 7)), ("3, 1-2 ,2", 4, (1, 2, 3)), ("0-0", 1, (0,)), ("7", 8, (7,))],
)
def test_layers(text: str, count: int, numbers: tuple[int, ...]) -> None:
    assert formula.layers(text, count) == numbers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is neither a number nor a range"),
        ("1,,2", "'' is neither"),
        ("5-3", "5-3 is empty; write 3-5"),
        ("5-8", "no layer 8, the last of 8 is 7"),
        ("-1", "'-1' is neither"),
        ("1-", "'1-' is neither"),
        ("all", "'all' is neither"),
        ("1.5", "'1.5' is neither"),
    ],
)
def test_layers_refused(text: str, said: str) -> None:
    with pytest.raises(BadAblation, match=said):
        formula.layers(text, 8)


# --- files ---


def test_written_and_read(tmp_path: Path) -> None:
    made = directions.write(tmp_path / "d.safetensors", torch.tensor([[1.0, 2.0, 2.0]]), {"model": "some/model"})
    assert (made.vectors.tolist(), made.hidden, dict(made.metadata)) == ([1.0, 2.0, 2.0], 3, {"model": "some/model", "hidden": "3"})
    again = directions.read(tmp_path / "d.safetensors")
    assert again.sha256 == made.sha256
    assert torch.equal(again.of(31), again.vectors)


def test_vectors_per_layer(tmp_path: Path) -> None:
    made = directions.write(tmp_path / "d.safetensors", torch.tensor([[1.0, 0.0], [0.0, 0.0], [3.0, 4.0]]), {})
    assert made.of(2).tolist() == [3.0, 4.0]
    with pytest.raises(BadAblation, match="the direction is zero"):
        made.of(1)
    with pytest.raises(BadAblation, match="vectors for layers 0 to 2, and none for layer 3"):
        made.of(3)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 4)])
def test_the_recipes_file(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "d.pt"
    torch.save({"directions": torch.arange(1.0, 1 + math.prod(shape)).reshape(shape), "note": "x"}, path)
    assert directions.read(path).of(0).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_no_code_is_run_from_a_file(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"directions": Trap()}, tmp_path / "d.pt")
    with pytest.raises(BadAblation, match=r"d\.pt cannot be loaded"):
        directions.read(tmp_path / "d.pt")
    assert not (tmp_path / "sprung").exists()


def _file(path: Path, content: object) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".pt":
        torch.save(content, path)
    else:
        save_file(content, path, metadata={"hidden": "4"})
    return path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.safetensors", b"not one", r"a\.safetensors is no safetensors file"),
        ("a.safetensors", {"other": torch.ones(4)}, 'has no tensor "direction" but other'),
        ("a.safetensors", {"direction": torch.zeros(4)}, r"a\.safetensors: the direction is zero"),
        ("a.safetensors", {"direction": torch.tensor([[1.0], [math.nan]])}, "not finite"),
        ("a.safetensors", {"direction": torch.ones(5)}, "its metadata says hidden 4, and its vectors have 5 values"),
        ("a.safetensors", {"direction": torch.ones(2, 2, 4)}, r"this one is \[2, 2, 4\]"),
        ("a.pt", b"", r"a\.pt cannot be loaded"),
        ("a.pt", {"direction": torch.ones(4)}, 'has no tensor "directions"'),
        ("a.pt", torch.ones(4), 'has no tensor "directions"'),
        # the unpickler's KeyError, IndexError, struct.error and UnpicklingError
        (
            "a.pt",
            b"hello, this is a text file\n",
            r"it is no file of torch\.save, or a damaged one \(KeyError: 101\)",
        ),
        ("a.pt", b"every word of a text\n", r"a\.pt cannot be loaded"),
        ("a.pt", b"refused\n", r"a\.pt cannot be loaded"),
        ("a.pt", b"J12", r"a\.pt cannot be loaded"),
        ("a.pt", b"GGUF" + bytes(64), r"a\.pt cannot be loaded"),
        ("a.pt", {"directions": torch.ones(4).to_sparse()}, r"a\.pt: its torch\.float32 tensor cannot be read as a direction"),
        (
            "a.pt",
            {"directions": torch.ones(3, 4).to(torch.float8_e4m3fn)},
            r"its torch\.float8_e4m3fn tensor cannot be read",
        ),
        ("a.pt", {"directions": torch.empty(4, device="meta")}, "cannot be read as a direction"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: object, said: str) -> None:
    with pytest.raises(BadAblation, match=said):
        directions.read(_file(tmp_path / name, content))


@pytest.mark.parametrize("length", range(0, 1400, 50))
def test_a_file_that_was_cut_off(tmp_path: Path, length: int) -> None:
    whole = tmp_path / "whole.pt"
    torch.save({"directions": torch.ones(32)}, whole)
    assert length < whole.stat().st_size
    (tmp_path / "cut.pt").write_bytes(whole.read_bytes()[:length])
    with pytest.raises(BadAblation, match=r"cut\.pt cannot be loaded"):
        directions.read(tmp_path / "cut.pt")


def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "d.safetensors"
    first = directions.write(path, torch.ones(4), {})

    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        directions.write(path, torch.zeros(4) + 2, {})
    assert directions.read(path).sha256 == first.sha256
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        directions.write(tmp_path / "none" / "d.safetensors", torch.ones(4), {})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadAblation, match=r"none\.pt cannot be read: No such file"):
        directions.read(tmp_path / "none.pt")


def test_importing_needs_no_vllm() -> None:
    text = (
        "import sys, vllm_glm_exl3.ablation.formula, vllm_glm_exl3.ablation.direction as d; print([m for m in sys.modules if m == 'vllm'])"
    )
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout == "[]\n"
