"""The in-process panel against fp64 over the whole vocabulary, on random models and on the real one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.errors import BadRequest, InvalidMeasurement
from bench.kld import capture, distance, inprocess, local, model, windows
from bench.kld import head as heads
from bench.kld.inprocess import Stock
from tests.lab.kld import tiny


def states(stock: Stock, edited: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return stock.base.hidden.reshape(*stock.shape, -1), stock.hidden(0)


@pytest.mark.parametrize("tied", [False, True])
def test_null_edit_is_exactly_zero(tied: bool) -> None:
    stock = Stock(tiny.llama(tie_word_embeddings=tied), tiny.windows(), entries=(2,), batch=2)
    for found in (stock.score(0), stock.score(2), stock.score(3), stock.score(0, full=True)):
        assert torch.equal(found.kld, torch.zeros(5, 12, dtype=torch.float64))
        assert bool(found.agree.all())
        assert not bool(found.lost.any())
    tv = stock.score(full=True).tv
    assert tv is not None
    assert torch.equal(tv, torch.zeros_like(tv))


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_cheap_and_full_form_against_fp64(alpha: float) -> None:
    edited = tiny.llama()
    stock = Stock(edited, tiny.windows(), entries=(2,), batch=2)
    tiny.edit(edited, range(2, 4), alpha)
    truth = tiny.exact(*states(stock, edited), edited.lm_head.weight.detach())
    cheap, whole = stock.score(2), stock.score(2, full=True)
    assert float(truth.mean()) > 0.005
    assert float((cheap.kld - truth).abs().max()) <= 2e-5
    assert float((whole.kld - truth).abs().max()) <= 2e-5
    assert torch.equal(cheap.agree, whole.agree)
    assert torch.equal(cheap.lost, whole.lost)
    assert cheap.tv is None
    assert torch.equal(stock.score(0).kld, cheap.kld)  # a replay from further below gives the same bits


def test_an_edit_below_a_kept_entry_is_seen() -> None:
    edited = tiny.llama()
    stock = Stock(edited, tiny.windows(2), entries=(2,))
    tiny.edit(edited, range(1, 2), 2.0)
    assert torch.equal(stock.score(1).kld, stock.score(0).kld)
    assert float(stock.score(1).kld.mean()) > 1e-4


def test_lost_means_twenty_or_more_are_likelier() -> None:
    # the stock's first choice is token 0; 19, then 20 tokens are likelier now
    logits = torch.zeros(2, 30)
    logits[0, 1:20], logits[1, 1:21] = 1.0, 1.0
    agree, lost = inprocess._ranks(logits, logits.amax(1), torch.tensor([0, 0]))
    assert agree.tolist() == [False, False]
    assert lost.tolist() == [False, True]


def test_the_likeliest_tokens_are_taken_in_fp64() -> None:
    """A logit that the fp32 product misses by 1e-3 moves the sum by 1e-5 and more: with the fp64 logit nothing of that is left."""
    stock = Stock(tiny.llama(), tiny.windows(1))
    rows, part = stock.base.hidden[:4], slice(0, 4)
    logits = stock.head.logits(rows)
    top, lse = stock.base.top[part], stock.base.lse[part]
    right, _ = stock._log_sum(logits.clone(), logits.amax(1), rows, lse, top)
    wrong = logits.scatter_add(1, top[:, :1], torch.full((4, 1), 1e-3))
    assert torch.allclose(stock._log_sum(wrong, wrong.amax(1), rows, lse, top)[0], right, rtol=0, atol=1e-6)


def test_the_stock_is_that_of_the_models_own_forward() -> None:
    edited = tiny.llama()
    stock = Stock(edited, tiny.windows(2))
    logits = [edited(torch.tensor([window.tokens[:-1]])).logits[0].double().log_softmax(1).detach() for window in tiny.windows(2)]
    confidence = torch.stack(logits).exp().amax(2)
    assert float((stock.score(0).confidence - confidence).abs().max()) < 1e-5
    tiny.edit(edited, range(4), 2.0)
    after = [edited(torch.tensor([window.tokens[:-1]])).logits[0].double().log_softmax(1).detach() for window in tiny.windows(2)]
    truth = torch.stack([(p.exp() * (p - q)).sum(1) for p, q in zip(logits, after, strict=True)])
    assert float((stock.score(0).kld - truth).abs().max()) <= 2e-5


@pytest.mark.parametrize("form", ["packed", "plain"])
def test_a_product_is_the_weights_own(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "plain":
        monkeypatch.setattr(heads, "_packed", lambda weight, x: x * float("nan"))  # a processor without such a kernel
    draw = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=draw) for shape in ((2, 7, 24), (40, 24)))
    assert torch.allclose(heads.product(weight, 8)(x), x @ weight.T, atol=1e-5)


def test_an_edited_head_takes_the_general_form() -> None:
    edited = tiny.llama()
    stock = Stock(edited, tiny.windows())
    before = edited.lm_head.weight.detach().clone()
    with torch.no_grad():
        edited.lm_head.weight[5] *= 3
    found = stock.score(0)
    hidden = stock.base.hidden.double()
    log_p, log_q = ((hidden @ weight.double().T).log_softmax(1) for weight in (before, edited.lm_head.weight.detach()))
    truth = (log_p.exp() * (log_p - log_q)).sum(1).reshape(stock.shape)
    assert float(truth.mean()) > 1e-3
    assert found.tv is not None
    assert float((found.kld - truth).abs().max()) <= 2e-5


def test_capped_logits_take_the_general_form() -> None:
    edited = tiny.gemma2()
    stock = Stock(edited, tiny.windows())
    assert not stock.head.plain
    assert torch.equal(stock.score(1).kld, torch.zeros(5, 12, dtype=torch.float64))
    ids = torch.tensor([window.tokens[:-1] for window in tiny.windows()])
    log_p = edited(ids).logits.detach().double().log_softmax(2)
    tiny.edit(edited, range(1, 3), 3.0)
    log_q = edited(ids).logits.detach().double().log_softmax(2)
    truth = (log_p.exp() * (log_p - log_q)).sum(2)
    assert float(truth.mean()) > 1e-3
    assert float((stock.score(1).kld - truth).abs().max()) <= 2e-5


def test_an_edit_that_destroys_the_model_is_still_right() -> None:
    """Logits that overflow fp32 when shifted by the stock's sum alone."""
    edited = tiny.llama()
    stock = Stock(edited, tiny.windows(2))
    with torch.no_grad():
        edited.base_model.norm.weight *= 60
    truth = tiny.exact(*states(stock, edited), edited.lm_head.weight.detach())
    assert float(truth.max()) > 50
    assert float(((stock.score(3).kld - truth) / truth.clamp(min=1)).abs().max()) <= 1e-5


def test_nan_weights_are_refused() -> None:
    edited = tiny.llama()
    stock = Stock(edited, tiny.windows())
    with torch.no_grad():
        edited.base_model.layers[3].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(InvalidMeasurement, match="not finite at some position"):
        stock.score(0)


def test_layers_outside_the_model_and_foreign_tokens_are_refused() -> None:
    with pytest.raises(BadRequest, match="no layer 4; the model has layers 0 to 3"):
        Stock(tiny.llama(), tiny.windows(), entries=(4,))
    with pytest.raises(BadRequest, match="no layer 9"):
        Stock(tiny.llama(), tiny.windows()).score(9)
    with pytest.raises(BadRequest, match="cut by another tokenizer"):
        Stock(tiny.llama(vocab_size=50), tiny.windows())
    with pytest.raises(BadRequest, match="at least one window, all of the same length"):
        Stock(tiny.llama(), [*tiny.windows(1), *tiny.windows(1, positions=4)])


def test_a_head_that_does_more_than_we_know_is_refused() -> None:
    odd = tiny.llama()
    odd.lm_head.register_forward_hook(lambda layer, args, out: out * 1.5)
    with pytest.raises(BadRequest, match="does more between its last norm and its logits"):
        Stock(odd, tiny.windows())


def test_captures_score_like_the_stock_object(tmp_path: Path) -> None:
    """Two capture files through numpy give what the in-process scorer gives."""
    edited, cut = tiny.llama(), tiny.windows()
    stock = Stock(edited, cut)
    fields: dict[str, Any] = {"model": "tiny", "weights_sha256": None, "edit": "stock", "tokenizer_sha256": None}
    fields |= {"panel": "p", "panel_sha256": "0" * 64, "windows": capture.cuts(cut)}
    capture.write(local.captured(edited, local.final_states(edited, cut, lambda line: None), fields), tmp_path / "a.npz")
    tiny.edit(edited, range(1, 4), 2.0)
    capture.write(local.captured(edited, local.final_states(edited, cut, lambda line: None), fields), tmp_path / "b.npz")
    found = distance.positions(capture.read(tmp_path / "a.npz"), capture.read(tmp_path / "b.npz"))
    scored = stock.score(1).windows()
    assert [(w.agree, w.lost, w.bucket) for w in found] == [(w.agree, w.lost, w.bucket) for w in scored]
    assert max(abs(a - b) for f, s in zip(found, scored, strict=True) for a, b in zip(f.kld, s.kld, strict=True)) <= 20
    assert len(list(tmp_path.glob("head-*"))) == 1


@pytest.mark.timeout(600)
@pytest.mark.model
def test_the_real_model_against_fp64() -> None:
    """SmolLM2, alpha 3 on layers 10 to 29, every stratum: at most 2e-5 nats at any position, and the null edit exactly 0."""
    edited, tokenizer = local.load(model.converted(tiny.real_gguf(), print), "float32")
    cut = windows.cut(windows.load(), lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], positions=96, per_stratum=1)
    stock = Stock(edited, cut, entries=(10,))
    assert torch.equal(stock.score(10).kld, torch.zeros(5, 96, dtype=torch.float64))
    tiny.edit(edited, range(10, 30), 3.0)
    found = stock.score(10)
    truth = tiny.exact(stock.base.hidden.reshape(5, 96, -1), stock.hidden(10), edited.lm_head.weight.detach())
    assert 0.005 < float(truth.mean()) < 0.1
    assert float((found.kld - truth).abs().max()) <= 2e-5


def test_the_whole_panel_fits_the_real_tokenizer() -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model.converted(tiny.real_gguf(), print))
    cut = local.cut(windows.load(), tokenizer, None)
    assert sum(window.positions for window in cut) == 20_480
    assert len({window.tokens for window in cut}) == 40
