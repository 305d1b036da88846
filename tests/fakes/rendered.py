"""Replies made into pieces once, before the first request: rendering 64 long replies on arrival would delay their first tokens."""

from collections.abc import Iterator

from tests.fakes import render
from tests.fakes.framing import Piece, pieces
from tests.fakes.script import Reply, Scenario

_ANY_ID = render.request_id(0)
_VERBATIM = ("raw", "comment", "done", "end")


class Rendered:
    """The pieces of each reply of a scenario. Only replies with one event per piece are kept: elsewhere the borders depend on
    the length of the request's number."""

    def __init__(self, scenario: Scenario) -> None:
        self._model = scenario.models[0]
        self._kept = {
            id(reply): tuple(pieces(render.events(reply, self._model, 0), reply.framing))
            for reply in scenario.replies
            if reply.status == 200 and reply.framing == "event"
        }

    def pieces(self, reply: Reply, model: str, request: int) -> Iterator[Piece]:
        """The pieces of this reply to this request."""
        kept = self._kept.get(id(reply))
        if kept is None or model != self._model:
            yield from pieces(render.events(reply, model, request), reply.framing)
            return
        own_id = render.request_id(request)
        for piece in kept:
            yield piece if request == 0 or piece.done[0].kind in _VERBATIM else _renumbered(piece, own_id)


def _renumbered(piece: Piece, own_id: bytes) -> Piece:
    """The id stands at the start of each event, before any text of the script."""
    data = piece.data.replace(_ANY_ID, own_id, 1)
    return Piece(piece.due_s, data, (piece.done[0]._replace(data=data),))
