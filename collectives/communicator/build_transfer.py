"""From a call's arguments to an action: sends and receives."""

from __future__ import annotations

from typing import Any

from multiring.collectives.arrays import View
from multiring.collectives.communicator.action import TransferAction
from multiring.collectives.communicator.check import input_view, output_view, refuse_overlap, require_device
from multiring.collectives.communicator.contract import Executor
from multiring.collectives.communicator.device_action import bind_streams, streams_of
from multiring.collectives.communicator.options import PeerOptions, check_names, root_of, timeout_of
from multiring.errors import ArgumentError

__all__ = ["recv", "send", "send_recv"]

_KNOWN = frozenset(PeerOptions.__annotations__)


def _action(
    executor: Executor, name: str, result: Any, held: tuple[View, ...], options: dict[str, Any]
) -> TransferAction:
    check_names(name, options, _KNOWN)
    for view in held:
        require_device(executor, name, "x", view)
    action = TransferAction(name, result, held, executor, timeout_of(name, options.get("timeout")))
    action.streams = streams_of(executor, name, options.get("stream"), *held)
    bind_streams(executor, action, action.streams)
    return action


def _peer(executor: Executor, name: str, value: Any, what: str, alone: bool) -> int:
    peer = root_of(executor, name, value, what)
    if alone and peer == executor.rank:
        raise ArgumentError(
            f"{name}: {what}: got {peer}, this rank itself, which would wait for ever; wanted another rank; use "
            "send_recv or a group"
        )
    return peer


def send(executor: Executor, x: Any, peer: Any, *, grouped: bool = False, **options: Any) -> TransferAction:
    """Build a send; only in a group may the peer be this rank."""
    to = _peer(executor, "send", peer, "peer", not grouped)
    view = input_view("send", "x", x)
    action = _action(executor, "send", None, (view,), options)
    action.sends.append((action.pack(view), view.size, view.dtype, to))
    return action


def recv(executor: Executor, x: Any, peer: Any, *, grouped: bool = False, **options: Any) -> TransferAction:
    """Build a receive."""
    source = _peer(executor, "recv", peer, "peer", not grouped)
    view = output_view("recv", "x", x)
    action = _action(executor, "recv", x, (view,), options)
    action.receives.append((action.unpack(view), view.size, view.dtype, source))
    return action


def send_recv(executor: Executor, x: Any, destination: Any, out: Any, source: Any, **options: Any) -> TransferAction:
    """Build a send and a receive at once."""
    name = "send_recv"
    to, origin = (
        _peer(executor, name, destination, "destination", False),
        _peer(executor, name, source, "source", False),
    )
    sent, received = input_view(name, "send_array", x), output_view(name, "receive_array", out)
    refuse_overlap(name, sent, received, "nothing else", ("send_array", "receive_array"))
    action = _action(executor, name, out, (sent, received), options)
    action.sends.append((action.pack(sent), sent.size, sent.dtype, to))
    action.receives.append((action.unpack(received), received.size, received.dtype, origin))
    return action
