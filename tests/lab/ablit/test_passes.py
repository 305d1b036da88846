"""The lean passes against transformers, and the panel against the definition in fp64."""

from typing import Any

import pytest
import torch

from ablit import panel, reply
from ablit.edit import Vectors, edited
from ablit.lean import Lean, causal, joint, unsupported
from ablit.spec import EditSpec
from bench.errors import BadRequest, InvalidMeasurement
from tests.lab.ablit.tiny import END, SHA, bench, loaded, vectors

PROMPTS = ["hi", "a longer prompt than that", "one more", "x"]


def test_window_is_the_models_own() -> None:
    tiny = loaded()
    lean, ids = Lean(tiny.model), torch.randint(0, 256, (3, 40), generator=torch.Generator().manual_seed(1))
    mine = lean.window(lean.window(lean.embed(ids), 0, 2), 2, 4)
    assert torch.allclose(lean.final(mine), tiny.model.model(ids).last_hidden_state, atol=5e-5)


@pytest.mark.parametrize("time", [1, 31, 32, 75])
def test_attention_is_torchs(time: int) -> None:
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, time, heads, 8, generator=draw).transpose(1, 2) for heads in (6, 2, 2))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.allclose(causal(q, k, v), expected.transpose(1, 2).flatten(2), atol=1e-6)
    half = causal(*(each.bfloat16() for each in (q, k, v)))
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.float(), expected.transpose(1, 2).flatten(2), atol=0.05)


def test_what_the_first_layer_attends_to_need_not_be_formed_again() -> None:
    lean, draw = Lean(loaded().model), torch.Generator().manual_seed(1)
    x, other = torch.randn(2, 20, 32, generator=draw), torch.randn(2, 20, 32, generator=draw)
    whole = lean.window(x, 1, 4)
    assert torch.equal(lean.window(x, 1, 4, None, lean.attend(x, 1)), whole)
    assert not torch.allclose(lean.window(x, 1, 4, None, lean.attend(other, 1)), whole, atol=1e-3)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("shared", ["", "what all begin with: "])
@pytest.mark.parametrize("alike", [1, 3, 8])
def test_answers_are_those_of_generate(first: int, shared: str, alike: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "_ALIKE", alike)
    tiny = loaded(seed=3)
    lean, texts = Lean(tiny.model), [shared + prompt for prompt in PROMPTS]
    _, open_ended = reply.answers(reply.chat(lean, tiny.tokenizer, texts, frozenset()), first, 12)
    # a byte that the first answer has in its middle ends answers too: rows leave the batch at different times
    ends = frozenset({END, open_ended[0].text.encode("latin-1")[4]})
    asked = reply.chat(lean, tiny.tokenizer, texts, ends)
    assert asked.prefix.tolist() == [list(f">{shared}".encode())]
    _, found = reply.answers(asked, first, 12)
    expected = []
    for prompt in texts:
        ids = torch.tensor([tiny.tokenizer.encode(f">{prompt}<")])
        options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": sorted(ends)}
        new = tiny.model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1] :].tolist()
        expected.append((tiny.tokenizer.decode(new), new[-1] in ends, len(new)))
    assert [(answer.text, answer.ended, answer.tokens) for answer in found] == expected
    assert len({answer.tokens for answer in found}) > 1


def test_answers_see_the_edit_and_twice_is_the_same() -> None:
    tiny = loaded(seed=3)
    asked = reply.chat(Lean(tiny.model), tiny.tokenizer, PROMPTS, tiny.ends)
    stock, answers = reply.answers(asked, 1, 8)
    with edited(tiny.model, EditSpec(direction=SHA, layers=(1, 2, 3), alpha=3), vectors()):
        moved, _ = reply.answers(asked, 1, 8)
        fresh, _ = reply.answers(reply.chat(Lean(tiny.model), tiny.tokenizer, PROMPTS, tiny.ends), 0, 8)
    again, same = reply.answers(asked, 1, 8)
    assert torch.equal(stock, again)
    assert answers == same
    assert float((stock - moved).abs().max()) > 0.1
    assert torch.allclose(moved, fresh, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("silent", [0, 2])
def test_answers_of_several_edits_go_on_together(silent: int, dtype: torch.dtype) -> None:
    """Each as it is alone, though the edits are taken back by then and rows leave at different times."""
    tiny = loaded(seed=3, dtype=dtype)
    asked = reply.chat(Lean(tiny.model), tiny.tokenizer, PROMPTS, frozenset(range(0, 257, 9)))
    begun, alone = [], []
    for alpha, targets in ((0.0, ("o_proj",)), (3.0, ("o_proj",)), (2.0, ("o_proj", "down_proj"))):
        with edited(tiny.model, EditSpec(direction=SHA, layers=(1, 3), alpha=alpha, targets=targets), vectors()) as edits:
            begun.append(reply.begun(asked, 1, 12, {(edit.layer, edit.target) for edit in edits}))
            alone.append(reply.answers(asked, 1, 12, silent)[1])
    together = reply.together(asked, begun, 12, silent)
    assert together == alone
    assert len({tuple(answer.text for answer in answers) for answers in together}) == 3
    assert len({answer.tokens for answers in together for answer in answers}) > 2


def test_what_no_edit_touches_is_one_product_for_all_rows() -> None:
    tiny = loaded()
    lean = Lean(tiny.model)
    stock, one = lean.packed(0, set()), lean.packed(0, {(2, "o_proj")})
    assert [now.out is was.out for now, was in zip(one, stock, strict=True)] == [True, True, False, True]
    assert all(now.down is was.down for now, was in zip(one, stock, strict=True))
    both = joint([stock, one], [1, 2])
    assert [each.out is was.out for each, was in zip(both, stock, strict=True)] == [True, True, False, True]
    tiny.model.model.layers[2].self_attn.o_proj.weight.data.mul_(2)
    doubled = lean.packed(0, {(2, "o_proj")})
    x = torch.randn(4, 1, 32, generator=torch.Generator().manual_seed(1))
    expected = torch.cat([stock[2].out(x[:1]), 2 * stock[2].out(x[1:])])
    assert torch.allclose(joint([stock, doubled], [1, 3])[2].out(x), expected, atol=1e-5)
    assert torch.allclose(joint([stock, doubled], [0, 4])[2].out(x), 2 * stock[2].out(x), atol=1e-5)


def test_some_prompts_give_their_state_only() -> None:
    tiny = loaded(seed=3)
    asked = reply.chat(Lean(tiny.model), tiny.tokenizer, PROMPTS, tiny.ends)
    state, answers = reply.answers(asked, 1, 8)
    same, some = reply.answers(asked, 1, 8, silent=2)
    assert torch.equal(state, same)
    assert some == answers[2:]


def test_the_last_layer_is_whole_where_it_is_asked_for() -> None:
    """Only a pass without `last` leaves out what nobody reads of the model's last layer: directions read it at several positions."""
    tiny = loaded()
    lean = Lean(tiny.model)
    x = lean.embed(torch.arange(20).view(2, 10))
    start = torch.zeros(2, dtype=torch.int64)
    whole, short = lean.step(x, 0, lean.memory(10, start), 4), lean.step(x, 0, lean.memory(10, start))
    assert whole.shape == x.shape
    assert short.shape == (2, 1, x.shape[2])
    assert torch.allclose(whole[:, -1:], short, atol=1e-5)
    assert torch.allclose(whole, lean.window(x, 0, 4), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pass_that_is_not_the_models_is_refused(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, cut = loaded(dtype=dtype), bench(loaded()).windows
    panel.Base(tiny.model, cut)
    plain = Lean.rotation
    monkeypatch.setattr(Lean, "rotation", lambda self, positions: plain(self, positions * 1.01))
    with pytest.raises(BadRequest, match="LlamaForCausalLM: the lean pass over its layers does not give the model's own result"):
        panel.Base(tiny.model, cut)


def test_unsupported_models() -> None:
    tiny = loaded()
    assert unsupported(tiny.model) is None
    tiny.model.config.model_type = "gemma2"
    with pytest.raises(BadRequest, match="gemma2 cannot be swept here"):
        Lean(tiny.model)


def test_panel_against_fp64_and_the_null_edit() -> None:
    tiny = loaded()
    base = bench(tiny).base
    null = base.measure(2)
    assert bool((null.kld == 0).all())
    assert bool((null.tv == 0).all())
    assert bool(null.agree.all())
    with edited(tiny.model, EditSpec(direction=SHA, layers=(2, 3), alpha=2), vectors()):
        found = base.measure(2)
        now = base.hidden(0).flatten(0, 1)
    head, old = tiny.model.lm_head.weight.double(), base.base.hidden.double()
    p, q = torch.softmax(old @ head.T, 1), torch.softmax(now.double() @ head.T, 1)
    exact = (p * (p.log() - q.log())).sum(1).view_as(found.kld)
    assert float(exact.mean()) > 0.01
    assert float((exact - found.kld).abs().max()) < 2e-5
    tv = ((p - q).abs().sum(1) / 2)[:: panel.TV_STRIDE].view_as(found.tv)
    assert float((tv - found.tv).abs().max()) < 5e-4
    assert torch.equal(found.agree, (p.argmax(1) == q.argmax(1)).view_as(found.agree))


def test_points_that_begin_alike_share_what_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = loaded()
    base, rest = bench(tiny).base, Lean._rest
    run: list[int] = []

    def noted(lean: Lean, layer: Any, *others: Any) -> torch.Tensor:
        run.append(lean.layers.index(layer))
        return rest(lean, layer, *others)

    monkeypatch.setattr(Lean, "_rest", noted)

    def layers_of(direction: Vectors, alpha: float, *layers: int) -> list[int]:
        """The layers that were run for the first windows; the figures are, to the bit, those of a bench that has seen no other point."""
        run.clear()
        spec = EditSpec(direction=direction.id, layers=layers, alpha=alpha)
        with edited(tiny.model, spec, direction) as edits:
            found, anew = base.measure(layers[0], edits, (2, 3)), list(run)
            alone = base.measure(layers[0])
        assert torch.equal(found.kld, alone.kld)
        assert torch.equal(found.tv, alone.tv)
        return anew[: len(anew) // len(base._entries[0])]

    one, other = vectors(), vectors(6)
    assert layers_of(one, 2, 1) == [1, 2, 3]
    assert layers_of(one, 2, 1, 2) == [2, 3]
    assert layers_of(one, 2, 1, 2, 3) == [3]
    assert layers_of(one, 2, 1, 3) == [2, 3]
    assert layers_of(one, 1, 1, 2, 3) == [1, 2, 3]  # another alpha
    assert layers_of(other, 1, 1, 2, 3) == [1, 2, 3]  # another direction
    assert layers_of(other, 1, 1, 2) == [3]
    assert layers_of(other, 0, 1, 2) == [1, 2, 3]  # the twin
    assert layers_of(one, 2, 2, 3) == [2, 3]  # stock enters 2, but its layer 2 is another


def test_full_kld_by_hand() -> None:
    head = torch.tensor([[1.0], [0.0]])
    # p = (2/3, 1/3), q = (1/2, 1/2): 2/3 ln(4/3) + 1/3 ln(2/3) = 0.0566330
    old, new = torch.tensor([[2.0]]).log(), torch.tensor([[1.0]]).log()
    assert panel.full_kld(head, old, new).tolist() == pytest.approx([0.0566330], abs=1e-6)


def test_total_variation_by_hand() -> None:
    # rows 0 and 8 of nine count; terms 2:1 are p = (2/3, 1/3), 5:5 are q = (1/2, 1/2)
    p, q = torch.tensor([[2.0, 1.0]] * 9), torch.tensor([[5.0, 5.0]] + [[9.0, 1.0]] * 7 + [[2.0, 1.0]])
    assert panel.total_variation(panel.shares(p), panel.shares(q)).tolist() == pytest.approx([1 / 6, 0.0], abs=2e-4)
    assert panel.total_variation(panel.shares(p), panel.shares(p)).tolist() == [0.0, 0.0]


def test_states_that_are_not_finite_are_no_measurement() -> None:
    tiny = loaded()
    base = bench(tiny).base
    tiny.model.model.layers[3].mlp.down_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(InvalidMeasurement, match="not finite at some position\ntry: a smaller alpha"):
        base.measure(2)


def test_packed_weights_are_those_of_now() -> None:
    """Every pass of answers packs what an edit may have changed: none sees the weights of the one before."""
    tiny = loaded(seed=3)
    asked = reply.chat(Lean(tiny.model), tiny.tokenizer, PROMPTS, tiny.ends)
    stock, _ = reply.begun(asked, 1, 0)
    spec = EditSpec(direction=SHA, layers=(1, 2, 3), alpha=3, targets=("o_proj", "down_proj"))
    with edited(tiny.model, spec, vectors()):
        moved, memory = reply.begun(asked, 1, 0)
        ids = torch.tensor([tiny.tokenizer.encode(f">{PROMPTS[1]}<")])
        theirs = tiny.model.model(ids).last_hidden_state[0, -1]
    assert memory.products
    assert torch.allclose(moved[1], theirs, atol=1e-4)
    assert float((stock[1] - moved[1]).abs().max()) > 0.1


def test_a_head_with_a_cap_cannot_be_swept() -> None:
    tiny = loaded()
    tiny.model.config.final_logit_softcapping = 30.0
    cut = bench(loaded()).windows
    tiny.model.lm_head.register_forward_hook(lambda layer, args, out: torch.tanh(out / 30) * 30)
    with pytest.raises(BadRequest, match="the model's head has a bias, a cap or a scale: it cannot be swept here"):
        panel.Base(tiny.model, cut)
