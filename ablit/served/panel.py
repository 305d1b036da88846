"""Two captures over HTTP as the panel of an ablation receipt: the k most likely tokens of either and one bucket for the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ablit.receipt import Panel, Window
from ablit.served.ask import Said
from ablit.served.facts import Floor
from bench.kld import distance
from bench.kld.capture import Capture

Doubles = NDArray[np.float64]


def facts(stock: Capture, edited: Capture) -> Panel:
    """KLD a lower bound, total variation too. Raises InvalidMeasurement for captures that do not fit together."""
    distance.refuse_unlike(stock, edited)
    meta, windows, all_kld = stock.meta, [], []
    for number, cut in enumerate(meta.windows):
        p_ids, q_ids = stock.arrays["ids"][number], edited.arrays["ids"][number]
        log_p, log_q = (each.arrays["logprobs"][number].astype(np.float64) for each in (stock, edited))
        kld, agree, _, _ = distance.top_k_rows(p_ids, q_ids, log_p, log_q)
        tv = float(total_variation(p_ids, q_ids, log_p, log_q).sum())
        windows.append(
            Window(name=cut.name, positions=cut.positions, kld=float(kld.sum()), tv=tv, agree=int(agree.sum()), kld_max=float(kld.max()))
        )
        all_kld.append(kld)
    median, p99, p999 = (float(mark) for mark in np.quantile(np.concatenate(all_kld), [0.5, 0.99, 0.999]))
    texts = hashlib.sha256("\n".join(f"{cut.name} {cut.tokens_sha256}" for cut in meta.windows).encode()).hexdigest()
    named = f"{meta.panel} {meta.panel_sha256[:12]}"
    return Panel(form="top-k", texts=named, texts_sha256=texts, windows=tuple(windows), median=median, p99=p99, p999=p999)


def total_variation(p_ids: NDArray[np.int32], q_ids: NDArray[np.int32], log_p: Doubles, log_q: Doubles) -> Doubles:
    """[rows] sum of |p - q| / 2 over the tokens that both list and one bucket for all others."""
    same = p_ids[:, :, None] == q_ids[:, None, :]
    common = same.any(2)
    p = np.where(common, np.exp(log_p), 0.0)
    q = np.where(common, (same * np.exp(log_q)[:, None, :]).sum(2), 0.0)
    rest = np.abs((1 - p.sum(1)) - (1 - q.sum(1)))
    found: Doubles = (np.abs(p - q).sum(1) + rest) / 2
    return found


def floor(panel: Panel, boot: str) -> Floor:
    """The noise floor that a twin's panel is; `boot`: the twin's."""
    means = [window.kld / window.positions for window in panel.windows]
    mean = sum(window.kld for window in panel.windows) / sum(window.positions for window in panel.windows)
    return Floor(boot=boot, mean=mean, max_window_mean=max(means))


def first_tokens(stock: Sequence[Said], edited: Sequence[Said]) -> tuple[float, ...]:
    """KLD of the first answer token, nats, of each prompt; () unless every answer has equally many log-probabilities."""
    counts = {len(said.ids) for said in (*stock, *edited)}
    if len(counts) != 1 or counts == {0}:
        return ()
    p_ids, q_ids = (np.array([said.ids for said in side], np.int32) for side in (stock, edited))
    log_p, log_q = (np.array([said.logprobs for said in side], np.float64) for side in (stock, edited))
    return tuple(round(value, 6) for value in distance.top_k_rows(p_ids, q_ids, log_p, log_q)[0].tolist())
